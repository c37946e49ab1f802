"""A set with symbols of its own: trained, recognized, scored, and read by weights that lack them."""

import shutil
from pathlib import Path

import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.vocab import Vocabulary
from tests.helpers.tiny import tiny_archive, tiny_config

OWN = {"x": r"\aleph", "+": "@", "-": r"\heartsuit"}


def test_a_set_with_three_symbols_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, own = tiny_archive(tmp_path / "usual"), tiny_archive(tmp_path / "own")
    for split in ("train", "2014"):
        shutil.rmtree(own / "data" / split / "symLg")
        captions = own / "data" / split / "caption.txt"
        lines = [line.split("\t") for line in captions.read_text().splitlines()]
        written = {id_: " ".join(OWN.get(token, token) for token in text.split()) for id_, text in lines}
        captions.write_text("".join(f"{id_}\t{text}\n" for id_, text in written.items()))
    runs = {}
    for folder in (usual, own):
        archive, config = open_archive(folder), tiny_config(folder)
        runs[folder] = run = RunFolder(tmp_path / "runs" / folder.name, config)
        train(run, archive)
        predict(run, archive, ["2014"])
        assert score(run, archive, ["2014"])["2014"].n == 5
    words = Recognizer.load(runs[own].path).model.vocabulary.words
    assert words == (*Vocabulary().words, *sorted(OWN.values()))
    assert Recognizer.load(runs[usual].path).model.vocabulary.words == Vocabulary().words
    capsys.readouterr()
    predict(runs[usual], open_archive(own), ["2014"])
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "2014: words that these weights lack: " in said and "only where the scorer gives another word the same" in said
    )
