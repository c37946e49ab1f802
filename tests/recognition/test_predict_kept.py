"""A search that is stopped goes on where it was, to the same predictions."""

import json
import shutil
from pathlib import Path

import pytest

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.recognition import predict as reading
from hmerbench.benchmarks.recognition.predict import PREFIX, Kept, predict
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.inference.hypothesis import Hypothesis
from tests.helpers.tiny import tiny_config, untrained_run

STOPPED_AFTER = 2  # batches


@pytest.fixture
def run(archive: Path, tmp_path: Path) -> RunFolder:
    return untrained_run(tmp_path / "run", tiny_config(archive, {"search": {"batch_size": 2, "bf16": False}}))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The batches that were searched; after `STOPPED_AFTER`, the program is stopped if the list begins with a None."""
    real, batches = reading._search, []

    def search(read, batch, *arguments):
        if len(batches) == STOPPED_AFTER + 1 and batches[0] is None:
            raise KeyboardInterrupt
        batches.append(tuple(batch.ids))
        return real(read, batch, *arguments)

    monkeypatch.setattr(reading, "_search", search)
    return batches


def written(run: RunFolder, archive: Archive) -> list[bytes]:
    predict(run, archive, ["2014"])
    return [(run.path / f"predictions/2014.{kind}").read_bytes() for kind in ("tsv", "jsonl")]


def kept(run: RunFolder) -> list[Path]:
    return list(run.path.glob(f"{PREFIX}*"))


@pytest.mark.parametrize("damage", ["none", "cut", "damaged"])
def test_stopped_and_resumed_is_equal(run: RunFolder, archive: Path, searched: list, damage: str) -> None:
    data = open_archive(archive)
    expected, batches = written(run, data), [*searched]
    assert len(batches) > STOPPED_AFTER and not kept(run)
    searched[:] = [None]
    with pytest.raises(KeyboardInterrupt):
        predict(run, data, ["2014"])
    (file,) = kept(run)
    lines = file.read_text().splitlines(keepends=True)
    assert [tuple(json.loads(line)["ids"]) for line in lines] == batches[:STOPPED_AFTER]
    left = STOPPED_AFTER if damage == "none" else 1
    if damage != "none":
        file.write_text(lines[0] + (lines[1][:-9] if damage == "cut" else lines[1].replace("score", "sc")))
    searched.clear()
    assert written(run, data) == expected
    assert searched == batches[left:] and not kept(run)


def test_sets_that_were_read_before_it_stopped_are_not_read_again(
    run: RunFolder, archive: Path, tmp_path: Path, searched: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(archive, tmp_path / "two")
    shutil.copytree(archive / "data/2014", tmp_path / "two/data/2016")
    data, sets = open_archive(tmp_path / "two"), ["2014", "2016"]

    def stopped(_: RunFolder, split: str, *rest: object) -> None:
        if split == "2016":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(reading, "write_predictions", stopped)
        patch.setattr(RunFolder, "record_source", stopped)
        predict(run, data, sets)
    assert searched and len(kept(run)) == 2
    searched.clear()
    predict(run, data, sets)
    assert not searched and not kept(run) and run.sets("predictions/*.tsv") == sets


def test_a_process_of_a_gpu_reads_an_archive_without_a_training_set(
    run: RunFolder, archive: Path, tmp_path: Path
) -> None:
    shutil.copytree(archive, tmp_path / "test", ignore=shutil.ignore_patterns("train"))
    assert reading._read_part(run.path, tmp_path / "test", ["2014"], {}, 0, 2)


@pytest.mark.parametrize("parts", [1, 3])
def test_what_other_parts_have_read_is_not_read_again(
    run: RunFolder, archive: Path, searched: list, parts: int
) -> None:
    """How many there are depends on how many other runs are left."""
    for part in (0, 2):
        reading._read_part(run.path, archive, ["2014"], {}, part, 4)  # and the other two were killed
    assert len(searched) == len(kept(run)) == 2
    found: reading.Predictions = {}
    for part in range(parts):
        found |= reading._read_part(run.path, archive, ["2014"], {}, part, parts)
    assert len(searched) == len({*searched}) == 3 and len(found) == 5


def test_what_other_weights_have_read_is_read_again(run: RunFolder, archive: Path, searched: list) -> None:
    data = open_archive(archive)
    searched[:] = [None]
    with pytest.raises(KeyboardInterrupt):
        predict(run, data, ["2014"])
    count = len(searched) - 1
    untrained_run(run.path, run.settings)
    searched.clear()
    written(run, data)
    assert len(searched) > count and not kept(run)


def test_numbers_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    found = [[Hypothesis((5, 7), -0.1 - 0.2, 1 / 3, 2e-308, "r2l", 3, 0.1)], []]
    Kept(tmp_path, {}).add(["a", "b"], found)
    assert Kept(tmp_path, {}).batches == {("a", "b"): found}
    assert Kept(tmp_path, {}).batches["a", "b"][0][0].spread == 0.1
    assert not Kept(tmp_path, {"weights": "others"}).batches
