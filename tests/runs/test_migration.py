"""Older runs are the same runs under their preset's present name, with predictions as tables."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks.config import RENAMED, resolve
from benchmarks.errors import UserError
from benchmarks.files import locked, zipped
from benchmarks.runs.folder import RunFolder, config_digest
from benchmarks.runs.migration import migrate, present
from benchmarks.training.checkpoint import load_checkpoint, save_checkpoint
from evaluation import InputError
from evaluation.scoring.inputs import read_predictions
from tests.helpers.places import ROOT

PREDICTIONS = {"a": "%a\n$\\frac { 1 } { 2 }$", "b": "%b\n$x$", "c": "%c\n$$"}


def made(root: Path, preset: str, former: str, digest: bool = True, **other: Any) -> RunFolder:
    """A run with the settings of `preset`, from when that was called `former`."""
    config = resolve("comer-fusion", preset, 7).changed({"preset": former})
    name = config.run_name if digest else config.run_name.rpartition("-")[0]
    run = RunFolder(root / name, config)
    run.write("config.yaml", config.to_yaml())
    run.write("environment.json", {"device": "CPU", **other})
    run.write("README.md", f"# comer-fusion, preset {former}, seed 7\n\nsmall, medium or large\n")
    run.write("predictions/2014.zip", zipped({f"{id_}.txt": text for id_, text in PREDICTIONS.items()}))
    run.write("scores/2014.json", "{}")
    run.record_source("predictions/2014.zip", "of the weights")
    run.record_source("scores/2014.json", run.file_digest("predictions/2014.zip"))
    save_checkpoint(run, {"w": torch.arange(3.0)}, {"digest": config.digest, "epoch": 2, "finished": False})
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_becomes_the_one_that_its_preset_makes_now(tmp_path: Path) -> None:
    shared = made(tmp_path, "medium", "ink")
    single = ROOT / "results/experiments/medium-single.yaml"
    made(tmp_path, str(single), "ink-single", trained_in=shared.path.name)
    untouched = made(tmp_path, "smoke", "smoke").path
    migrate([untouched])
    before = content(untouched)
    assert len(migrate([tmp_path])) == 2
    now = RunFolder(tmp_path / resolve("comer-fusion", "medium", 7).run_name)
    assert now.settings == resolve("comer-fusion", "medium", 7)
    assert now.path.joinpath("README.md").read_text().startswith("# comer-fusion, preset medium, seed 7\n\nsmall, ")
    assert tabulated(now)
    checkpoint = load_checkpoint(now)  # refuses the digest of other settings
    assert checkpoint and checkpoint[0]["w"].tolist() == [0, 1, 2] and checkpoint[1]["epoch"] == 2
    assert now.state == checkpoint[1]
    read = RunFolder(tmp_path / resolve("comer-fusion", str(single), 7).run_name)
    assert read.environment == {"device": "CPU", "trained_in": now.path.name}
    assert sorted(path.name for path in now.path.parent.iterdir()) == sorted(
        [now.path.name, read.path.name, untouched.name]
    )
    assert content(untouched) == before
    after = content(tmp_path)
    assert migrate([tmp_path]) == [] and content(tmp_path) == after


def tabulated(run: RunFolder) -> bool:
    """Whether a run has its predictions as a table, made and scored like the zip."""
    (table,) = run.path.glob("predictions/*")
    made = {"predictions/2014.tsv": "of the weights", "scores/2014.json": run.file_digest("predictions/2014.tsv")}
    return table.name == "2014.tsv" and read_predictions(table) == PREDICTIONS and run.sources == made


def test_predictions_become_tables(tmp_path: Path) -> None:
    run = made(tmp_path, "smoke", "smoke")
    assert migrate([tmp_path]) == [f"{run.path}: its predictions are tables now"]
    assert tabulated(RunFolder(run.path)) and migrate([tmp_path]) == []


def test_an_interrupted_migration_goes_on(tmp_path: Path) -> None:
    """The run that shared its weights is renamed already, under which name it is still found."""
    shared = made(tmp_path, "medium", "ink")
    made(tmp_path, str(ROOT / "results/experiments/medium-single.yaml"), "ink-single", trained_in=shared.path.name)
    migrate([shared.path])
    assert len(migrate([tmp_path])) == 1
    trained_in = [run.environment.get("trained_in") for run in RunFolder.under(tmp_path)]
    assert set(trained_in) == {None, RunFolder.under(tmp_path)[0].path.name}


def test_committed_runs_have_no_digest_in_their_name(tmp_path: Path) -> None:
    path = made(tmp_path, "large", "overnight", digest=False, trained_in="ink-seed7-00000000").path
    assert migrate([path]) == [f"{path}: now large-seed7"]
    run = RunFolder(path.with_name("large-seed7"))
    assert run.settings.preset == "large" and run.environment.get("trained_in") == "ink-seed7-00000000"  # not beside it


def test_a_run_of_an_older_suite_keeps_the_settings_that_it_had(tmp_path: Path) -> None:
    """Its digest is over those that there were, and stays so."""
    run = made(tmp_path, "medium", "ink")
    older = yaml.safe_load((run.path / "config.yaml").read_text()) | {"schema_version": 4}
    del older["search"]["convertible"]
    (run.path / "config.yaml").write_text(yaml.safe_dump(older, sort_keys=False))
    then = config_digest(older)
    assert then != run.settings.digest
    former = run.path.rename(run.path.with_name(f"ink-seed7-{then}"))
    save_checkpoint(RunFolder(former), {}, {"digest": then, "epoch": 2, "finished": True})
    migrate([tmp_path])
    (now,) = RunFolder.under(tmp_path)
    assert yaml.safe_load((now.path / "config.yaml").read_text()) == older | {"preset": "medium"}
    assert now.path.name == f"medium-seed7-{now.digest}" and dict(now.state or {})["digest"] == now.digest != then


@pytest.mark.parametrize("name", ["smoke", "paper", "mine", "hour", "mine-8-epochs", *RENAMED.values()])
def test_other_names_stay(name: str) -> None:
    assert present(name) == name


def test_shortened_presets_are_renamed_too() -> None:
    assert [present(f"{name}-8-epochs") for name in ("ink", "ink-single")] == [
        "medium-8-epochs",
        "medium-single-8-epochs",
    ]


def taken(run: RunFolder) -> None:
    config = resolve("comer-fusion", "medium", 7)
    run.path.parent.parent.joinpath(config.run_name).mkdir()


def renamed(run: RunFolder) -> None:
    run.path.rename(run.path.with_name("best"))


def damaged(run: RunFolder) -> None:
    run.path.joinpath("checkpoint.safetensors").write_bytes(b"x" * 40)


def foreign(run: RunFolder) -> None:
    save_checkpoint(run, {}, {"digest": "12345678"})


def truncated(run: RunFolder) -> None:
    os.truncate(run.path / "predictions/2014.zip", 60)


def broken(run: RunFolder) -> None:
    run.path.joinpath("config.yaml").write_text("preset: [ink")


REFUSED = {
    taken: "medium-seed7-.* exists already; delete one of the two",
    renamed: "best: a run of these settings is called ink-seed7 or ink-seed7-.*; rename the folder first",
    damaged: "its checkpoint is damaged; delete it",
    foreign: "its checkpoint belongs to configuration 12345678, not ",
    truncated: "ink-seed7-[0-9a-f]*/predictions/2014.zip: cannot be read as a zip",
    broken: "config.yaml: this is not YAML",
    lambda run: shutil.rmtree(run.path): "no run folder",
}


@pytest.mark.parametrize(("spoil", "words"), REFUSED.items(), ids=[name.__name__ for name in REFUSED])
def test_what_is_refused_stays_as_it_is(tmp_path: Path, spoil: Any, words: str) -> None:
    spoil(made(tmp_path, "medium", "ink"))
    before = content(tmp_path)
    with pytest.raises((UserError, InputError), match=words):
        migrate([tmp_path])
    after = content(tmp_path)
    assert {name: after[name] for name in after if not name.endswith(".training")} == before
    assert not list(tmp_path.rglob(".migrate*"))


def test_a_run_that_is_being_trained_is_left_alone(tmp_path: Path) -> None:
    run = made(tmp_path, "medium", "ink")
    with locked(run.path), pytest.raises(UserError, match="is working in it"):
        migrate([tmp_path])
    assert run.path.exists()


def test_a_full_disk_leaves_the_old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, "medium", "ink")
    before = content(run.path)
    real = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "checkpoint.safetensors":
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        migrate([tmp_path])
    assert {name: text for name, text in content(run.path).items() if name != ".training"} == before
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]
