"""Reproduced runs: run folders packed for the repository, under results/reproduced/, where the tables read them.

Packing leaves out what only training needs (the checkpoint) and what can be made again (n-best lists by `evaluate`,
symLG and LgEval's summaries by `score`); weights become float16, with a model card beside them. Only one seed of a row
needs them. Language models are packed without any.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked, write_atomically
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import run_in
from hmerbench.evaluation.scoring.metrics import TABULATED, interval_text
from hmerbench.models.weights import load_weights, pack_weights


def pack(folder: Path, weights: bool = True) -> Path:
    """Copy a finished run to reproduced/<recipe>/ of its workspace, and return that path: a scored one on CROHME as
    <preset>-seed<k>, a tested language model as ptb-seed<k>. `weights`: a recognizer's with them, a model card and the
    error tables, for the first seed of a row.

    An earlier copy is replaced as a whole. Raises UserError for a run that is `unfit`.
    """
    run = run_in(folder)
    if run.unfit:
        raise UserError(f"{folder}: {run.unfit}")
    target = packed(folder, run.settings.run_name)
    with replaced(target) as fresh:
        for name in run.PARTS:
            copy_part(folder / name, fresh / name)
        if weights and isinstance(run, RunFolder):
            copy_part(folder / "errors", fresh / "errors")
            network = load_weights(run.weights_file).to(torch.float16)
            write_atomically(fresh / "best.safetensors", pack_weights(network))
            write_atomically(fresh / "README.md", card(run, sum(p.numel() for p in network.parameters())))
    return target


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A folder to fill, which then takes the place of a packed run as a whole. One process packs at a time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".pack-{target.name}"
    fresh, old = partial / "run", partial / "old"
    # the target's name is no lock's place, as it is replaced; two runs may have one target
    with locked(target.parents[2] / "local", ".packing", seconds=60), ExitStack() as stopped:
        _restore(target, old, partial)  # after a kill
        stopped.callback(_restore, target, old, partial)
        partial.mkdir()
        yield fresh
        # a folder cannot be replaced atomically: the old one is moved aside first, and back on failure
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)


def _restore(target: Path, old: Path, partial: Path) -> None:
    """Move the earlier copy back unless a new one is in its place, and clear up."""
    if old.exists() and not target.exists():
        os.replace(old, target)
    shutil.rmtree(partial, ignore_errors=True)


def packed(folder: Path, run_name: str) -> Path:
    """The place of a run's packed copy: reproduced/<run_name>, without its digest, of the workspace with
    runs/<recipe>/<folder>.

    Raises UserError for a folder that is not in one.
    """
    parents, name = folder.resolve().parents, Path(run_name.rpartition("-")[0])
    if len(parents) < 3:
        raise UserError(f"{folder}: it is in no workspace; move it to runs/{name.parent}/ in one, such as results/")
    return parents[2] / "reproduced" / name


def card(run: RunFolder, parameters: int) -> str:
    """The model card: what the weights are, how they were trained, and their scores."""
    environment = run.environment
    lines = [
        f"# {run.recipe}, preset {run.preset}, seed {run.seed}",
        "",
        *(["Trained wholly or in part by a program that is lost, not by this suite.", ""] if run.external else []),
        f"{parameters / 1e6:.2f} M parameters (float16), trained on CROHME's training set and what its preset adds: "
        f"{counted(len(run.history), 'epoch')} in {run.seconds[-1] / 60:.0f} minutes{run.settings.start.clause}. "
        f"Epoch selected by: {run.settings.select}.",
        f"Hardware: {run.hardware}, CPU threads: {environment.get('threads', 'unknown')}; "
        f"revision {environment.get('revision', 'unknown')}; versions in environment.json.",
        "",
        f"| set | n | {' | '.join(metric.heading for metric in TABULATED)} | 95 % interval over images |",
        f"|---|--:|{'--:|' * len(TABULATED)}---|",
    ]
    for name, score in run.scores.items():
        cells = [name, str(score.n), *map(score.printed, TABULATED), interval_text(score.exact, score.n)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "For research: trained on CROHME (CC BY-NC-SA 3.0). Reads images of one handwritten formula; symbols beyond "
        "those of CROHME, words and pages were never shown to it.",
    ]
    return "\n".join(lines) + "\n"


def copy_part(source: Path, target: Path) -> None:
    """Copy a file, or a folder without n-best lists and summaries; do nothing if `source` does not exist."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.jsonl", "*.txt"))
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
