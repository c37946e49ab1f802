"""The second line of a score leaves out what was trained on, and says so."""

from hashlib import md5
from pathlib import Path

import pytest

from hmerbench.evaluation import InputError, commands
from hmerbench.evaluation.scoring.score import fields_of

TEST = {"a": "x", "b": "x + 1", "c": "y ^ { 2 }", "d": "2"}
TRAIN = {"t": "x + 1", "u": "2 y", "v": "2"}
PREDICTED = {"a": "x", "b": "x + 1", "c": "y ^ { 3 }", "d": "1"}


def table(captions: dict[str, str]) -> str:
    return "".join(f"{key}\t{text}\n" for key, text in captions.items())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for split, captions in {"test": TEST, "train": TRAIN}.items():
        (tmp_path / "data/data" / split).mkdir(parents=True)
        (tmp_path / f"data/data/{split}/caption.txt").write_text(table(captions))
    (tmp_path / "p.tsv").write_text("id\ttokens\n" + table(PREDICTED))
    return tmp_path


@pytest.mark.parametrize("given", ["", "other.txt", "data:train"])
def test_a_second_line_without_what_was_trained_on(
    data: Path, given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    Path("other.txt").write_text(table(TRAIN))
    commands.score([Path("p.tsv")], ["data:test"], training=given)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "|n:4|" in first and "= 50.00 (" in first and "unseen" not in first
    signature, _, rest = last.partition(" = ")
    fields = fields_of(signature)
    assert (fields["n"], fields["unseen"], list(fields)[-1]) == ("2", md5(table(TRAIN).encode()).hexdigest()[:8], "v")
    assert rest.startswith("50.00 (") and rest.endswith(", without 2 whose captions were trained on")


def test_as_json_it_is_a_second_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.score([data / "p.tsv"], [f"{data}/data:test"], training="", as_json=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and '"n": 4' in lines[0] and '"n": 2' in lines[1] and "unseen:" in lines[1]


def test_nothing_may_be_left(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        commands.score([data / "p.tsv"], [f"{data}/data:test"], training=f"{data}/data:test", as_json=as_json)
        out, err = capsys.readouterr()
        told = (err if as_json else out).splitlines()[-1]
        assert told == "all 4 captions were trained on: no unseen expression is left"


@pytest.mark.parametrize(
    ("training", "fault"),
    [("nowhere.txt", "must be ARCHIVE.zip:SPLIT"), ("data:valid", "has no split valid"), ("p.tsv", "line 1")],
)
def test_training_captions_that_cannot_be_read_are_one_line(
    data: Path, training: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    Path("p2.tsv").write_text("no tab\n")
    with pytest.raises(InputError, match=fault):
        commands.score([Path("p.tsv")], ["data:test"], training=training if training != "p.tsv" else "p2.tsv")


def test_a_folder_of_lg_has_no_training_set(data: Path) -> None:
    folder = data / "lg"
    folder.mkdir()
    (folder / "a.lg").write_text("# IUD, a\nO, x_1, x, 1.0, O\n")
    with pytest.raises(InputError, match="has no training set; name the captions"):
        commands.score([data / "p.tsv"], [str(folder)], training="")
    with pytest.raises(InputError, match="has no captions, by which unseen"):
        commands.score([data / "p.tsv"], [str(folder)], training=f"{data}/data:train")
