"""Training that starts from other weights: which rows they fill, what is recorded, resumption, and what it gained."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from hmerbench.benchmarks.cli.main import main
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training import fine_tuning
from hmerbench.benchmarks.training.fine_tuning import GAIN, fine_tuned, tell_gain
from hmerbench.benchmarks.training.learner import START, begin_with
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.files import CheckpointError
from hmerbench.models.network import build
from hmerbench.models.settings import NETWORKS, of_its_network
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import load_weights
from tests.helpers.tiny import tiny_archive, tiny_config

NEW = r"\aleph"
Begun = tuple[RunFolder, Path]  # a trained run, and a set of one's own with a word that it lacks


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Fewer epochs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fine_tuning, "EPOCHS", 4)
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("begun")
    usual, own = tiny_archive(folder / "usual"), tiny_archive(folder / "own")
    for split in ("train", "2014"):
        shutil.rmtree(own / "data" / split / "symLg")
        captions = own / "data" / split / "caption.txt"
        captions.write_text(captions.read_text().replace("x", NEW))
    (own / "data" / "2014").rename(own / "data" / "test")
    run = RunFolder(folder / "run", tiny_config(usual, {"training": {"validate_every": 3}}))
    train(run, open_archive(usual))
    return run, own


@pytest.fixture(scope="module")
def tuned(begun: Begun, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    first, own = begun
    archive = open_archive(own)
    run = fine_tuned(first.path, "", 7, archive, tmp_path_factory.mktemp("results"))
    train(run, archive)
    return run


@pytest.mark.parametrize("network", NETWORKS)
def test_known_words_keep_their_rows_and_new_ones_get_some(network: str) -> None:
    settings, words = of_its_network({"network": network, **NETWORKS[network].sizes["nano"]}), Vocabulary()
    start, model = build(settings, words), build(settings, words.extended([NEW, "x"]))
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    begin_with(model, start)
    longer = set[str]()
    for name, tensor in start.state_dict().items():
        own = model.state_dict()[name]
        assert torch.equal(own[: len(tensor)] if own.shape != tensor.shape else own, tensor), name
        if own.shape != tensor.shape:
            longer.add(name)
            assert len(own) == len(tensor) + 1 and torch.equal(own[-1], fresh[name][-1]), name
    assert longer >= {*model.word_rows}


def test_another_start_is_another_run(begun: Begun, tuned: RunFolder, tmp_path: Path) -> None:
    first, own = begun
    again = fine_tuned(first.path / "best.safetensors", "", 7, open_archive(own), tmp_path)
    assert again.settings == tuned.settings and again.settings.digest in tuned.path.name
    assert tuned.environment.get("start") == tuned.settings.start.model_dump()
    other = fine_tuned(tuned.path, "", 7, open_archive(own), tmp_path)
    assert other.settings.start.digest != again.settings.start.digest and other.path != again.path
    assert other.settings.data.scale == first.settings.data.scale and other.settings.model == first.settings.model
    assert "start" not in first.settings.to_yaml()


def test_a_killed_one_resumes_bit_equal(begun: Begun, tuned: RunFolder, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(line: dict) -> None:
        if line["epoch"] == 2:
            raise Killed

    archive = open_archive(begun[1])
    run = fine_tuned(begun[0].path, "", 7, archive, tmp_path)
    with pytest.raises(Killed):
        train(run, archive, kill)
    train(RunFolder(run.path), archive)  # without the weights that it started from
    assert run.weights_file.read_bytes() == tuned.weights_file.read_bytes()
    words = load_weights(run.weights_file).vocabulary.words
    assert words == (*Vocabulary().words, NEW)


def test_the_first_step_begins_with_the_weights(begun: Begun, tuned: RunFolder) -> None:
    losses = [line["loss"] for line in (begun[0].history[0], tuned.history[0])]
    assert losses[1] < losses[0]


def test_what_it_gained_is_told(begun: Begun, tuned: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    tell_gain(tuned, open_archive(begun[1]))
    gain, said = json.loads((tuned.path / GAIN).read_text()), capsys.readouterr().out
    assert gain["n"] == 5 and gain["of"] == "test" and gain["after"] - gain["before"] == gain["won"] - gain["lost"]
    assert f"held out, 5 images of test: {100 * gain['before'] / 5:.1f} %" in said
    assert "before" in said and f"{100 * gain['after'] / 5:.1f} %" in said


def test_without_a_test_set_a_part_of_train_is_held_out(begun: Begun, tmp_path: Path) -> None:
    first, own = begun
    shutil.copytree(own, tmp_path / "own")
    shutil.rmtree(tmp_path / "own/data/test")
    archive = open_archive(tmp_path / "own")
    run = fine_tuned(first.path, "", 7, archive, tmp_path)
    assert run.settings.select == "heldout" and run.settings.training.validate_every == run.settings.training.epochs
    run.write("best.safetensors", first.weights_file.read_bytes())
    tell_gain(run, archive)
    gain = json.loads((run.path / GAIN).read_text())
    assert gain["of"] == "train" and gain["n"] >= 1 and gain["before"] == gain["after"]


BAD = [  # weights and preset, and what is said
    ("nowhere", "", "there are no such weights"),
    ("own/data/train/caption.txt", "", "no config.yaml beside it"),
    ("run", "hurge", "no preset called 'hurge'"),
]


@pytest.mark.parametrize(("weights", "preset", "message"), BAD)
def test_weights_that_do_not_do(begun: Begun, tmp_path: Path, weights: str, preset: str, message: str) -> None:
    first, own = begun
    with pytest.raises((UserError, CheckpointError), match=message):
        fine_tuned(first.path.parent / weights, preset, 7, open_archive(own), tmp_path)
    assert not list(tmp_path.rglob(START))


def test_a_run_without_its_start_says_so(begun: Begun, tmp_path: Path) -> None:
    archive = open_archive(begun[1])
    run = fine_tuned(begun[0].path, "", 7, archive, tmp_path)
    (run.path / START).write_bytes(b"other")
    with pytest.raises(UserError, match=f"{START}: is not the file of .* that this run starts from; give --from again"):
        train(run, archive)


def test_a_preset_says_how_it_is_trained(begun: Begun, tmp_path: Path) -> None:
    preset = tmp_path / "short.yaml"
    preset.write_text("training: {epochs: 2, schedule: {name: cosine}}\ndata: {scale: 0.1}\nmodel: {size: nano}\n")
    run = fine_tuned(begun[0].path, str(preset), 7, open_archive(begun[1]), tmp_path)
    assert run.preset.startswith("short-from-") and run.settings.training.epochs == 2
    assert run.settings.data.scale == begun[0].settings.data.scale and run.settings.model == begun[0].settings.model
    preset.write_text("trainng: {epochs: 2}")
    with pytest.raises(UserError, match=r"short\.yaml: trainng: no such key; did you mean training"):
        fine_tuned(begun[0].path, str(preset), 7, open_archive(begun[1]), tmp_path)


def test_on_the_command_line(
    begun: Begun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)  # MLflow takes seconds
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.live", lambda _: nullcontext())

    def command(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["hmerbench", "train", *map(str, arguments)])
        return main()

    options = "--from", begun[0].path, "--crohme", begun[1], "--results", tmp_path
    assert command(*options) == 0
    said = capsys.readouterr().out
    assert f"new words, which these weights get rows for: {NEW}" in said and "held out, 5 images of test" in said
    assert "may be forgotten" in said
    assert command(begun[0].path, *options) == 1
    assert "name one run" in capsys.readouterr().err
