"""Packed runs: small and complete; they replace earlier ones and repeat their predictions."""

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from hmerbench.benchmarks import evaluate as evaluation
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.evaluate import evaluate_committed
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.resolve import load
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.packing import pack, packed
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.training.trainer import train
from hmerbench.evaluation.scoring.metrics import TABULATED
from hmerbench.models.weights import load_weights
from tests.helpers.paths import ROOT
from tests.helpers.tiny import tiny_archive, tiny_config


@pytest.fixture(scope="module")
def scored(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run, trained and scored, whose settings claim CROHME."""
    config, opened = tiny_config(archive, {"training": {"epochs": 1}}), open_archive(archive)
    run = RunFolder(tmp_path_factory.mktemp("runs") / config.run_name, config)
    train(run, opened)
    predict(run, opened, ["2014"])
    score(run, opened, ["2014"])
    run.write("config.yaml", config.to_yaml().replace("name: foreign", "name: crohme"))
    return run.path


@pytest.fixture
def run(scored: Path, tmp_path: Path) -> Path:
    """A copy of it in a workspace."""
    return shutil.copytree(scored, tmp_path / "results/runs" / scored.parent.name / scored.name)


def test_a_packed_run_is_small_and_complete(run: Path, tmp_path: Path) -> None:
    target = pack(run)
    assert target == tmp_path / "results/reproduced/comer-fusion/tiny-seed7"
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {
        "README.md", "best.safetensors", "config.yaml", "environment.json", "errors/2014.json", "history.jsonl",
        "predictions/2014.tsv", "scores/2014.csv", "scores/2014.json",
    }  # fmt: skip
    original, packed = load_weights(run / "best.safetensors"), load_weights(target / "best.safetensors")
    assert packed.settings == load(target / "config.yaml").model == original.settings
    for ours, theirs in zip(packed.state_dict().values(), original.state_dict().values(), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert (target / "best.safetensors").stat().st_size < 0.7 * (run / "best.safetensors").stat().st_size
    exprate = json.loads((run / "scores/2014.json").read_text())["exprate"]
    card = (target / "README.md").read_text()
    assert f"| 2014 | 5 | {exprate:.2f} |" in card and "starting from" not in card and "lost" not in card
    (run / "environment.json").write_text('{"versions": {"torch": "2.11.0"}}')
    assert "Trained wholly or in part by a program that is lost" in (pack(run) / "README.md").read_text()


def test_the_card_of_a_fine_tuned_run_names_the_weights_it_started_from(run: Path) -> None:
    start = {"start": {"weights": "comer-fusion/large-seed7", "digest": "0123456789abcdef" * 4}}
    with (run / "config.yaml").open("a") as file:
        yaml.safe_dump(start, file)
    assert " minutes, starting from the weights of comer-fusion/large-seed7 (SHA-256 0123456789abcdef…). Epoch" in (
        (pack(run) / "README.md").read_text()
    )


def test_committed_cards_have_the_headings_of_new_ones() -> None:
    """But for those of metrics that are younger."""
    cards = [path.read_text() for path in (ROOT / "results/reproduced").glob("*/*/README.md")]
    columns = "".join(
        f" {metric.heading} \\|" if metric.always else f"( {metric.heading} \\|)?" for metric in TABULATED
    )
    headings = re.compile(rf"^\| set \| n \|{columns} 95 % interval over images \|$", re.MULTILINE)
    assert cards and all(headings.search(card) for card in cards)


def test_packing_again_replaces_the_folder(run: Path) -> None:
    target = pack(run)
    (target / "stale.txt").write_text("left over")
    assert pack(run, weights=False) == target
    assert not (target / "stale.txt").exists() and not (target / "best.safetensors").exists()
    assert not (target / "errors").exists() and (target / "scores/2014.json").exists()
    assert not [path for path in target.parent.iterdir() if path != target]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_stopped_packing_leaves_the_earlier_copy(
    run: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    target, replace = pack(run), os.replace
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}

    def stopped(source: Path, destination: Path) -> None:
        if Path(destination) == target and Path(source).name == "run":
            raise error
        replace(source, destination)

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(os, "replace", stopped)
        pack(run, weights=False)
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_packing_left_is_no_run(run: Path) -> None:
    """Killed after the old copy was moved aside: it is not listed, and the next packing puts things in order."""
    target = pack(run)
    moved = target.parent / f".pack-{target.name}/old"
    moved.parent.mkdir()
    target.rename(moved)
    assert RunFolder.under(target.parent) == []
    assert pack(run) == target and list(target.parent.iterdir()) == [target]


def test_one_process_packs_at_a_time(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(0, 100).__next__)
    with locked(tmp_path / "results/local", ".packing"), pytest.raises(UserError, match="is working in it; wait until"):
        pack(run)


def test_unfinished_runs_and_other_data_are_refused(run: Path, tmp_path: Path) -> None:
    (run / "scores/2014.json").unlink()
    with pytest.raises(UserError, match=r"not trained, recognized and scored yet \(2014\)"):
        pack(run)
    settings = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(settings.replace("limit: null", "limit: 20"))
    with pytest.raises(UserError, match="read only 20 images of a set"):
        pack(run)
    (run / "config.yaml").write_text(settings.replace("name: crohme", "name: embedded"))
    with pytest.raises(UserError, match="only runs on CROHME"):
        pack(run)
    with pytest.raises(UserError, match="not a run folder"):
        pack(tmp_path / "nothing")
    assert not (tmp_path / "results/reproduced").exists()


def test_a_packed_run_is_told_to_be_one(run: Path) -> None:
    with pytest.raises(UserError, match="it is packed already: it has no checkpoint"):
        pack(pack(run))


def test_a_folder_outside_of_a_workspace_is_not_packed() -> None:
    name = "bttr/smoke-seed7-0123abcd"
    assert packed(Path("/results/runs/bttr/smoke"), name) == Path("/results/reproduced/bttr/smoke-seed7")
    with pytest.raises(UserError, match="/run: it is in no workspace; move it to runs/bttr/ in one"):
        packed(Path("/run"), name)


def test_a_reproduced_run_repeats_its_predictions(run: Path, archive: Path, tmp_path: Path, capsys) -> None:
    pack(run)
    results = tmp_path / "results"
    evaluate_committed(archive, ["2014"], [], results)
    rate = json.loads((run / "scores/2014.json").read_text())["exprate"]
    printed = capsys.readouterr().out
    (row,) = [line.split("│") for line in printed.splitlines() if line.startswith("│ comer-fusion/tiny-seed7")]
    cells = [cell.strip() for cell in row[4:10]]
    assert cells == [f"{rate:.2f}", f"{rate:.2f}", "5 of 5", "0", "0", "1"]  # the last: lost, won and p
    assert "rounded to float16" in printed and "far more expressions are lost than won" in " ".join(printed.split())
    with locked(results / "local/evaluated", ".evaluating"), pytest.raises(UserError, match="is working in it"):
        evaluate_committed(archive, ["2014"], [], results)
    with pytest.raises(UserError, match="no run of bttr has weights"):
        evaluate_committed(archive, [], ["bttr"], results)
    with pytest.raises(UserError, match="give it with CROHME="):
        evaluate_committed(None, [], [], results)
    with pytest.raises(UserError, match="it was scored on other data"):
        evaluate_committed(tiny_archive(tmp_path / "other", train=8), [], ["comer-fusion"], results)
    next(results.glob("reproduced/*/*/scores/2014.json")).unlink()
    with pytest.raises(UserError, match="no run of comer-fusion is scored on 2014; choose other years"):
        evaluate_committed(archive, [], [], results)


def test_a_stopped_evaluation_is_resumed(run: Path, archive: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    target = pack(run)
    shutil.copytree(target, target.with_name("tiny-seed8"))
    began: list[str] = []

    def evaluate_until(number: int) -> None:
        """Ctrl-C comes before the run of this number."""

        def counting(again: RunFolder, *arguments) -> None:
            if len(began) == number:
                raise KeyboardInterrupt
            began.append(again.path.name)
            predict(again, *arguments)

        began.clear()
        monkeypatch.setattr(evaluation, "predict", counting)
        evaluate_committed(archive, [], [], tmp_path / "results")

    with pytest.raises(KeyboardInterrupt):
        evaluate_until(1)
    evaluate_until(99)
    assert began == ["tiny-seed8"]
    printed = capsys.readouterr().out
    assert "plan: 2 runs, test sets 2014; 1 already done" in printed
    assert all(f"│ comer-fusion/tiny-seed{seed}" in printed for seed in (7, 8))
    with pytest.raises(KeyboardInterrupt):  # that one was finished, so this one begins anew
        evaluate_until(1)
    monkeypatch.setattr(evaluation, "environment", lambda device: {"revision": "another"})
    evaluate_until(99)
    assert began == ["tiny-seed7", "tiny-seed8"]
