"""Any weights on any archive: results apart and named, nothing recognized where the archive cannot be scored."""

import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hmerbench.benchmarks import evaluate
from hmerbench.benchmarks.cli.main import app
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.evaluate import evaluate_weights
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import last_own
from hmerbench.benchmarks.score import unseen_of
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.models.comer import CoMER
from hmerbench.models.settings import CoMERSettings
from tests.helpers.checkpoints import lightning
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.tiny import tiny_archive, tiny_config, untrained_run

TINY = CoMERSettings(d_model=16, growth_rate=4, num_layers=1, nhead=2, dim_feedforward=32, dc=4)


def own_set(folder: Path, **captions: str) -> Path:
    """A folder in CoMER's layout with black-on-white PNGs and captions alone."""
    images = folder / "data/mine/img"
    images.mkdir(parents=True)
    for id_, text in captions.items():
        paper = np.full((60, 40 + 24 * len(text), 3), 255, np.uint8)
        cv2.putText(paper, text.replace(" ", ""), (10, 45), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 3)
        cv2.imwrite(str(images / f"{id_}.png"), paper)
    (images.parent / "caption.txt").write_text("".join(f"{id_}\t{text}\n" for id_, text in captions.items()))
    return folder


def test_a_committed_network_on_images_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    archive = own_set(tmp_path / "own", one="1 2", two="x + 2")
    before = {path: path.stat().st_mtime_ns for path in MEDIUM.rglob("*")}
    folder = evaluate_weights(MEDIUM, archive, [], tmp_path / "results")
    place = folder.relative_to(tmp_path / "results")
    assert place.parts[0] == "local" and place.parts[1].startswith("foreign-")
    assert place.parts[2:4] == ("evaluated", "comer-fusion") and place.name.startswith("medium-seed7-")
    score = json.loads((folder / "scores/mine.json").read_text())
    assert score["n"] == 2 and score["missing"] == 0 and score["signature"].startswith("ExpRate|set:foreignmine|n:2|")
    said = capsys.readouterr().out
    assert "NOT CROHME" in said and "foreign data, not CROHME" in said
    again = ["score", str(folder), "--crohme", str(archive), "--results", str(tmp_path / "results")]
    assert CliRunner().invoke(app, again).exit_code == 0 and not [*tmp_path.rglob("mlflow.db")]  # it is no training
    assert before == {path: path.stat().st_mtime_ns for path in MEDIUM.rglob("*")}


@pytest.mark.parametrize(
    ("captions", "years", "message"),
    [
        ({"one": r"\frac { 1 }"}, [], "one does not convert to symLG"),
        ({"one": "1"}, ["2014"], "no test set '2014', only mine"),
        ({"one": r"\textcircled { a }"}, [], "one does not convert to symLG"),
        ({}, [], "holds no expression"),
    ],
)
def test_nothing_is_recognized_where_nothing_can_be_scored(tmp_path: Path, captions, years, message: str):
    with pytest.raises(FAULTS) as caught:
        evaluate_weights(MEDIUM, own_set(tmp_path / "own", **captions), years, tmp_path / "results")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "results").exists()


def test_a_checkpoint_of_the_authors_on_an_archive(tmp_path: Path):
    archive = own_set(tmp_path / "own", one="1 2")
    ckpt = lightning(tmp_path / "epoch=151.ckpt", CoMER(TINY))
    folder = evaluate_weights(ckpt, archive, ["mine"], tmp_path / "results")
    assert folder.parts[-3:-1] == ("evaluated", "epoch=151") and folder.name.startswith("paper-seed7-")
    assert json.loads((folder / "scores/mine.json").read_text())["n"] == 1


@pytest.mark.parametrize("kind", ["checkpoint", "run", "settings"])
def test_weights_of_one_name_share_no_results(tmp_path: Path, kind: str):
    """Nor do weights read in two ways; the same weights go on where they were."""
    archive = own_set(tmp_path / "own", one="1 2")
    shutil.copytree(archive / "data/mine", archive / "data/other")
    settings = Config(recipe="mine", preset="run", model=TINY).changed({"search.max_len": 8})
    weights = [untrained_run(tmp_path / place / "mine/run", settings).path for place in ("a", "b")]
    if kind == "checkpoint":
        weights = [lightning(folder / "last.ckpt", CoMER(TINY)) for folder in weights]
    elif kind == "settings":  # of the same weights
        untrained_run(weights[1], settings.changed({"search.beam_size": 2}))
        shutil.copy(weights[0] / "best.safetensors", weights[1])
    first, second = (evaluate_weights(path, archive, ["mine"], tmp_path / "results") for path in weights)
    assert first != second and (first / "scores/mine.json").exists() and (second / "scores/mine.json").exists()
    assert evaluate_weights(weights[0], archive, ["other"], tmp_path / "results") == first
    assert sorted(path.stem for path in first.glob("scores/*.json")) == ["mine", "other"]


def test_one_evaluation_at_a_time_in_a_folder(tmp_path: Path):
    archive, ckpt = own_set(tmp_path / "own", one="1 2"), lightning(tmp_path / "x.ckpt", CoMER(TINY))
    folder = evaluate_weights(ckpt, archive, [], tmp_path / "results")
    with locked(folder), pytest.raises(UserError, match="is working in it; wait until it ends"):
        evaluate_weights(ckpt, archive, [], tmp_path / "results")


def test_ones_own_set_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is read with those that `recognize` has by default; to compare committed rows, it must be CROHME."""
    archive = own_set(tmp_path / "own", one="1")
    assert CliRunner().invoke(app, ["data", "--crohme", str(archive)]).exit_code == 0
    best = lightning(tmp_path / "best.ckpt", CoMER(TINY))
    monkeypatch.setattr(evaluate, "default_weights", lambda: best)
    given = ["evaluate", "--crohme", str(archive), "--results", str(tmp_path / "results")]
    assert CliRunner().invoke(app, given, catch_exceptions=False).exit_code == 0
    assert list(tmp_path.glob("results/local/foreign-*/evaluated/best/*/scores/mine.json"))
    assert last_own(tmp_path / "results") == archive  # which the report shows
    with pytest.raises(UserError, match="or --weights to read any data"):
        evaluate.evaluate_committed(archive, [], ["comer-fusion"], ROOT / "results")


def test_weights_that_are_none(tmp_path: Path):
    archive = own_set(tmp_path / "own", one="1")
    with pytest.raises(UserError, match="no such weights"):
        evaluate_weights(tmp_path / "nothing.safetensors", None, [], tmp_path / "results")
    assert not (tmp_path / "results").exists()  # where the embedded set would be made
    given = ["evaluate", "--weights", str(MEDIUM), "--recipes", "bttr", "--crohme", str(archive)]
    assert isinstance(CliRunner().invoke(app, given).exception, UserError)


def test_a_run_reads_another_archive_apart(tmp_path: Path):
    """What it reads of data that it was not trained on is neither in its folder nor in its archive's; nor is it scored
    without what was trained on, unless these captions are named. It does not train on them."""
    archive, results = own_set(tmp_path / "own", one="1 2", two="x"), tmp_path / "results"
    data = {"name": "foreign", "digest": "ab" * 32}
    settings = Config.model_validate({"recipe": "mine", "preset": "run", "model": TINY, "data": data})
    run = untrained_run(results / "local/foreign-abababab/runs/mine/run", settings.changed({"search.max_len": 8}))
    before = sorted(run.path.rglob("*"))
    (tmp_path / "train.txt").write_text("a\tx\n")

    def told(command: str, *options: str) -> str:
        given = [command, str(run.path), "--crohme", str(archive), "--results", str(results), *options]
        return CliRunner().invoke(app, given, catch_exceptions=False).stdout

    (place,) = re.findall(r"recognized: (.*)/predictions", told("predict"))
    assert place.startswith(f"{results}/local/foreign-") and "/evaluated/mine/run-seed7-" in place
    first, second = told("score", "--training", str(tmp_path / "train.txt")).splitlines()
    assert first.startswith("ExpRate|set:foreignmine|n:2|") and "|n:1|" in second and "unseen:" in second
    assert (Path(place) / "scores/mine.json").exists() and before == sorted(run.path.rglob("*"))
    with pytest.raises(UserError, match=r"not what .* was trained on; name those captions with --training"):
        told("score", "--unseen")
    shutil.copytree(archive / "data/mine", archive / "data/train")
    with pytest.raises(UserError, match="was trained on other data"):
        told("train")


def test_scores_of_what_is_unseen_are_named_after_what_was_seen(tmp_path: Path) -> None:
    """Of one archive, trainings see different captions."""
    archive, names = open_archive(tiny_archive(tmp_path / "data")), list[str]()
    for data in ({}, {"limit": 3}, {"limit": 3, "max_tokens": 2}):
        run = RunFolder(tmp_path / f"run{len(names)}", tiny_config(archive.path, {"data": data}))
        run.write("predictions/2014.tsv", tsv(archive.captions("2014")))
        names += re.findall(r"unseen:([^|]*)", unseen_of(run, archive, "2014")) or ["nothing is left"]
    assert names[0] in (archive.caption_md5("train")[:8], "nothing is left") and len({*names}) == 3
    assert names[1][:9] == names[2][:9] == archive.caption_md5("train")[:8] + "+"
