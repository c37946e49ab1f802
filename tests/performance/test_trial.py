"""A trial of a recipe on held-out training expressions, end to end on a tiny network."""

import json
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import trial as trials
from hmerbench.benchmarks.performance.trial import CLASSES, PLAIN, judge, trial
from hmerbench.benchmarks.training.training_data import training_data
from hmerbench.models.network import build
from tests.helpers.tiny import tiny_archive, tiny_config


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    folder = tiny_archive(tmp_path_factory.mktemp("tiny"), train=40)
    tiny_config(folder, {"training": {"schedule": {"name": "cosine"}}})  # writes tiny.yaml
    return open_archive(folder)


def test_a_trial_trains_once_and_reads_in_every_way(archive: Archive, tmp_path: Path, monkeypatch) -> None:
    preset, recorded = str(archive.path / "tiny.yaml"), tmp_path / "speed/recipe.csv"
    monkeypatch.setattr(Archive, "name", "crohme")
    monkeypatch.setattr(trials, "HELD_OUT", 0.3)

    def rows() -> list[dict]:
        return trial(archive, tmp_path, "comer-fusion", preset, 7, 1, ["training.bf16=false"], ["", "search.alpha=0.5"])

    first, narrow = rows()
    assert (first["reading"], narrow["reading"]) == ("as it is", "search.alpha=0.5")
    assert first["n"] == sum(int(first[name].partition("/")[2]) for name in CLASSES) > 0
    assert first["loss"] == narrow["loss"] > 0  # of the weights, not of a reading
    assert 0 <= first["word_accuracy"] <= 100
    (weights,) = tmp_path.glob("local/trials/*/*/best.safetensors")
    trained = weights.stat().st_mtime_ns
    assert [row["exact"] for row in rows()] == [first["exact"], narrow["exact"]]
    assert weights.stat().st_mtime_ns == trained
    assert len(pd.read_csv(recorded)) == 2  # in place of the same two rows
    (lists,) = tmp_path.glob("local/trials/*/*/predictions/heldout.jsonl")  # by the run's own search, not the last
    own = [json.loads(line)["nbest"][0]["score"] for line in lists.read_text().splitlines()]
    (read,) = lists.parent.glob("read-*.jsonl")
    assert own != [json.loads(line)["nbest"][0]["score"] for line in read.open()]
    trial(archive, tmp_path, "comer-fusion", preset, 7, 1, ["training.bf16=false"], ["search.alpha=0.2"])
    assert len([*lists.parent.glob("read-*.jsonl")]) == 2  # two readings at once do not share a file
    trial(archive, tmp_path, "bttr-baseline", preset, 7, 1, ["training.bf16=false"])
    assert pd.read_csv(recorded)["recipe"].tolist() == ["comer-fusion"] * 3 + ["bttr-baseline"]


def test_captions_too_long_to_train_on_are_no_part_of_the_loss(archive: Archive, tmp_path: Path, monkeypatch) -> None:
    longest = sorted(len(sample.tokens) for sample in archive.samples("train"))[20]
    monkeypatch.setattr(trials, "HELD_OUT", 0.5)
    monkeypatch.setattr(trials, "train", Mock())
    monkeypatch.setattr(trials, "load_weights", lambda _, settings: build(settings))
    monkeypatch.setattr(trials, "evaluation_batches", batches := Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        preset, changes = str(archive.path / "tiny.yaml"), [f"data.max_tokens={longest}"]
        trial(archive, tmp_path, "comer-fusion", preset, 7, 1, changes)
    assert max(len(sample.tokens) for sample in batches.call_args.args[0]) <= longest


def test_a_trial_heeds_the_limit_of_its_data(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "train", train := Mock(side_effect=KeyboardInterrupt))
    for changes in (["data.limit=5"], []):
        with pytest.raises(KeyboardInterrupt):
            trial(archive, tmp_path, "comer-fusion", str(archive.path / "tiny.yaml"), 7, 1, changes)
    limited, whole = (len(call.kwargs["samples"]) for call in train.call_args_list)
    assert limited == 5 < whole


@pytest.mark.parametrize(
    ("changes", "readings", "words"),
    [
        (["training.optimizer.rate=1"], [], "training.optimizer.rate: no such key"),
        (["training.bf16"], [], "given as KEY=VALUE"),
        (["search.scales=[1.0"], [], r"'search\.scales=\[1\.0': its value is not YAML"),
        (["training.optimizer.lr=-1e-3"], [], "training.optimizer.lr: .* greater than 0"),
        ([], ["training.bf16=true"], "changes more than the search"),
        (["training.epochs=40"], [], "--set training.epochs: a trial sets it itself; leave it out"),
        (["training={epochs: 40}"], [], "--set training.epochs: a trial sets it itself"),
        (["select=2014"], [], "--set select: a trial sets it itself"),
        (["training=null"], [], "--set training: a trial sets it itself"),
        (["seed=8"], [], "--set: seed: this is not a setting"),
    ],
)
def test_settings_that_cannot_be_tried(
    archive: Archive, tmp_path: Path, changes: list[str], readings: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        trial(archive, tmp_path, "comer-fusion", str(archive.path / "tiny.yaml"), 7, 1, changes, readings)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_no_part_equals_a_formula_that_is_held_out(monkeypatch: pytest.MonkeyPatch, archive: Archive) -> None:
    from hmerbench.benchmarks.training import training_data as module

    samples = archive.samples("train")
    kept = [sample for sample in samples if sample.tokens != samples[0].tokens]
    config = tiny_config(archive.path, {"training": {"schedule": {"name": "cosine"}}, "select": "last"})
    config = config.changed({"data.sub_expressions": 1, "data.ink": "known"})
    monkeypatch.setattr(Archive, "inkml_digest", "known")
    monkeypatch.setattr(Archive, "inkml", None)
    monkeypatch.setattr(module, "with_ink", lambda samples, _: samples)
    monkeypatch.setattr(module, "sub_expressions", lambda *_: [samples[0]])
    training_set, _ = training_data(config, archive, kept, torch.device("cpu"), build(config.model))
    assert samples[0].tokens not in {sample.tokens for sample in training_set.samples}


def test_classes_of_length() -> None:
    found = {n: [name for name, lengths in CLASSES.items() if n in lengths] for n in (1, 5, 6, 10, 11, 20, 21, 200)}
    expected = dict(zip(found, ["1-5", "1-5", "6-10", "6-10", "11-20", "11-20", "21+", "21+"], strict=True))
    assert found == {n: [name] for n, name in expected.items()}


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, -0.01, 0.02, 0.0], "harmless"),
        ([0.6, -0.5, 0.7, -0.4], "not shown"),  # a small mean with a wide interval
        ([0.11, 0.13, 0.12, 0.14], "harmless"),  # a real difference, but smaller than the spread of the seeds
        ([0.9, 1.0, 0.95, 0.9], "different"),
        ([-0.9, -1.0, -0.95, -0.9], "different"),
    ],
)
def test_a_change_is_judged_by_pairs_of_seeds(differences: list[float], verdict: str) -> None:
    same = {"recipe": "bttr", "reading": PLAIN, "preset": "small", "epochs": 8}
    lines = []
    for seed, (value, difference) in enumerate(zip([1.0, 1.2, 1.4, 0.9], differences, strict=True)):
        for name, number in (("a=1", value + difference), (PLAIN, value)):
            lines.append(same | {"trial": name, "seed": seed, "loss": number, "word_accuracy": number})
    others = [line | {"recipe": "other", "loss": 99.0} for line in lines]
    lonely = lines[0] | {"seed": 9, "loss": 99.0}  # without its like, it counts for nothing
    table = pd.DataFrame([*others, lonely, *lines[::-1]])
    rows = judge(table, lines[0])
    assert [(row["verdict"], row["n"]) for row in rows] == [(verdict, 4)] * 2
    assert rows[0]["seed_sd"] == pytest.approx(pd.Series([1.0, 1.2, 1.4, 0.9]).std())
    assert rows[0]["difference"] == pytest.approx(sum(differences) / 4)
    assert judge(table, lines[1]) == [] and judge(pd.DataFrame(lines[:2]), lines[0]) == []
