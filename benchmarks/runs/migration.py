"""Runs made when presets had other names and predictions another form: `python -m benchmarks migrate`.

The name of its preset is among a run's settings, so it is part of their digest, by which the run's folder, its
checkpoint and a run that shares its weights know it. These are written anew; what was trained, read and scored stays.
Predictions were zips of a file per expression, and become tables.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import RENAMED
from benchmarks.errors import UserError
from benchmarks.files import locked
from benchmarks.runs.folder import RunFolder, config_digest
from benchmarks.yaml_files import read_yaml, to_yaml
from evaluation.scoring.inputs import read_predictions
from evaluation.scoring.prediction_lists import tsv
from evaluation.scoring.tokens import tokens_of
from models.errors import CheckpointError
from models.weights import pack_tensors, read_tensors


def migrate(roots: Sequence[Path]) -> list[str]:
    """Give every run below `roots` its present name and form, and return a line for each one changed.

    All are checked before any is changed, and each changes at once: the folder of the new name is complete before the
    old one goes. A second call finds nothing to do. Raises UserError for a folder without runs, or with another name
    than the suite gives; for a run that is being trained or damaged, and where the new name is taken. Raises InputError
    for predictions that cannot be read.
    """
    for root in roots:
        if not RunFolder.under(root):
            raise UserError(f"{root}: no run folder (with a config.yaml) is in it; give one, or a folder of them")
    targets = {run: _target(run) for run in RunFolder.under(*roots)}
    moves = {run: target for run, target in targets.items() if target != run.path}
    for run, target in moves.items():
        if target.exists():
            raise UserError(f"{run.path}: {target.name} exists already; delete one of the two")
    for run in targets:
        for split in run.sets("predictions/*.zip"):
            read_predictions(run.path / f"predictions/{split}.zip")  # which names a damaged one
    for run, target in moves.items():
        with locked(run.path):
            _move(run, target)
    zipped = [run for run in targets if run not in moves and run.sets("predictions/*.zip")]
    for run in zipped:
        with locked(run.path):
            _tabulate(run)
    renamed = [f"{run.path}: now {target.name}" for run, target in moves.items()]
    return renamed + [f"{run.path}: its predictions are tables now" for run in zipped]


def present(preset: str) -> str:
    """The present name of a preset, also of one with fewer epochs (`--minutes` calls it ink-8-epochs)."""
    return re.sub(r"^(.*?)(-\d+-epochs)?$", lambda part: RENAMED.get(part[1], part[1]) + (part[2] or ""), preset)


def _named(config: Mapping[str, Any], preset: str) -> tuple[str, str]:
    """Names of a run's folder at a preset, as committed and as trained."""
    short = f"{preset}-seed{config['seed']}"
    return short, f"{short}-{config_digest({**config, 'preset': preset})}"


def _target(run: RunFolder) -> Path:
    """The run's folder under its preset's present name."""
    if (preset := present(run.preset)) == run.preset:
        return run.path
    names = dict(zip(_named(run.stored, run.preset), _named(run.stored, preset), strict=True))
    if run.path.name not in names:
        raise UserError(f"{run.path}: a run of these settings is called {' or '.join(names)}; rename the folder first")
    return run.path.with_name(names[run.path.name])


def _move(run: RunFolder, target: Path) -> None:
    """Make the renamed copy of a run, and put it in the place of the run."""
    settings, preset = read_yaml(run.path / "config.yaml"), present(run.preset)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".migrate") as folder:
        fresh = RunFolder(Path(folder) / "run")
        shutil.copytree(run.path, fresh.path, ignore=shutil.ignore_patterns(".*"))  # locks and unfinished files
        fresh.write("config.yaml", to_yaml(settings | {"preset": preset}))
        if (card := fresh.path / "README.md").exists():
            card.write_text(card.read_text().replace(f", preset {run.preset},", f", preset {preset},", 1))
        if "trained_in" in run.environment:
            known = json.loads((run.path / "environment.json").read_text())
            fresh.write("environment.json", known | {"trained_in": _other(run, known["trained_in"])})
        if (checkpoint := fresh.path / "checkpoint.safetensors").exists():
            _rename_checkpoint(checkpoint, run, fresh)
        _tabulate(fresh)
        os.rename(fresh.path, target)
        os.rename(run.path, Path(folder) / "old")


def _tabulate(run: RunFolder) -> None:
    """Write predictions/<set>.tsv in place of each zip, from which the rest counts as made."""
    for split in run.sets("predictions/*.zip"):
        former, name = f"predictions/{split}.zip", f"predictions/{split}.tsv"
        run.write(name, tsv({id_: tokens_of(text) for id_, text in read_predictions(run.path / former).items()}))
        if run.sources:
            now = {former: name, run.file_digest(former): run.file_digest(name)}
            run.write("sources.json", {now.get(made, made): now.get(of, of) for made, of in run.sources.items()})
        (run.path / former).unlink()


def _other(run: RunFolder, name: str) -> str:
    """The present name of the run whose weights `run` has, if it lies beside it; otherwise the name as it was."""
    former = name.partition("-seed")[0]
    for other in RunFolder.under(run.path.parent):
        if _named(other.stored, former)[1] == name:
            return _named(other.stored, present(former))[1]
    return name


def _rename_checkpoint(path: Path, run: RunFolder, fresh: RunFolder) -> None:
    try:
        header, tensors = read_tensors(path)
        known = header["state"]["digest"]
    except (CheckpointError, LookupError, TypeError):
        raise UserError(f"{run.path}: its checkpoint is damaged; delete it to keep the rest") from None
    if known != run.digest:
        raise UserError(f"{run.path}: its checkpoint belongs to configuration {known}, not {run.digest}; delete it")
    state = header["state"] | {"digest": fresh.digest}
    fresh.write(path.name, pack_tensors(tensors, header | {"state": state}))
    fresh.write("checkpoint.json", state)
