"""Any weights on any archive: results apart and named, nothing recognized where the archive cannot be scored."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hmerbench.benchmarks.cli.main import app
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.evaluate import evaluate_weights
from hmerbench.models.comer import CoMER
from hmerbench.models.settings import CoMERSettings
from tests.helpers.places import MEDIUM, ROOT
from tests.models.test_weights import lightning


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
    assert place.parts[2:] == ("evaluated", "comer-fusion", "medium-seed7")
    score = json.loads((folder / "scores/mine.json").read_text())
    assert score["n"] == 2 and score["missing"] == 0 and score["signature"].startswith("ExpRate|set:foreignmine|n:2|")
    said = capsys.readouterr().out
    assert "NOT CROHME" in said and "foreign data, not CROHME" in said
    assert before == {path: path.stat().st_mtime_ns for path in MEDIUM.rglob("*")}


@pytest.mark.parametrize(
    ("captions", "years", "message"),
    [
        ({"one": r"\frac { 1 }"}, [], "one does not convert to symLG"),
        ({"one": "1"}, ["2014"], "no test set '2014', only mine"),
        ({"one": r"\aleph"}, [], "models/dictionary.txt"),
        ({}, [], "holds no expression"),
    ],
)
def test_nothing_is_recognized_where_nothing_can_be_scored(tmp_path: Path, captions, years, message: str):
    with pytest.raises(UserError) as caught:
        evaluate_weights(MEDIUM, own_set(tmp_path / "own", **captions), years, tmp_path / "results")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "results").exists()


def test_a_checkpoint_of_the_authors_on_an_archive(tmp_path: Path):
    archive = own_set(tmp_path / "own", one="1 2")
    settings = CoMERSettings(d_model=16, growth_rate=4, num_layers=1, nhead=2, dim_feedforward=32, dc=4)
    ckpt = lightning(tmp_path / "epoch=151.ckpt", CoMER(settings))
    folder = evaluate_weights(ckpt, archive, ["mine"], tmp_path / "results")
    assert folder.parts[-2:] == ("evaluated", "epoch=151")
    assert json.loads((folder / "scores/mine.json").read_text())["n"] == 1


def test_another_checkpoint_of_the_same_name_leaves_nothing_of_the_first(tmp_path: Path):
    settings = CoMERSettings(d_model=16, growth_rate=4, num_layers=1, nhead=2, dim_feedforward=32, dc=4)
    archive = own_set(tmp_path / "own", one="1 2")
    shutil.copytree(archive / "data/mine", archive / "data/other")
    for split in ("mine", "other"):
        (tmp_path / split).mkdir()
        ckpt = lightning(tmp_path / split / "last.ckpt", CoMER(settings))
        folder = evaluate_weights(ckpt, archive, [split], tmp_path / "results")
        assert [path.name for path in (folder / "scores").glob("*.json")] == [f"{split}.json"]


def test_ones_own_set_without_weights(tmp_path: Path):
    archive = own_set(tmp_path / "own", one="1")
    assert CliRunner().invoke(app, ["data", "--crohme", str(archive)]).exit_code == 0
    given = ["evaluate", "--crohme", str(archive), "--results", str(ROOT / "results")]
    with pytest.raises(UserError, match="or --weights to read any data"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_weights_that_are_none(tmp_path: Path):
    archive = own_set(tmp_path / "own", one="1")
    with pytest.raises(UserError, match="no such weights"):
        evaluate_weights(tmp_path / "nothing.safetensors", archive, [], tmp_path / "results")
    given = ["evaluate", "--weights", str(MEDIUM), "--recipes", "bttr", "--crohme", str(archive)]
    assert isinstance(CliRunner().invoke(app, given).exception, UserError)
