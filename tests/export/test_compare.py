"""What exported networks cost: counted by pairs, and said in a document."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.export import compare
from hmerbench.benchmarks.export.compare import bench_export, sample_of
from hmerbench.benchmarks.strict_files import read_table
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.tiny import tiny_archive


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return open_archive(tiny_archive(tmp_path))


def test_the_sample_is_fixed(archive: Archive) -> None:
    samples, truth = sample_of(archive, 3)
    assert [sample.id for sample in samples] == [sample.id for sample in sample_of(archive, 3)[0]] == [*truth.symlg]
    assert len(samples) == 3 and all(sample.id.startswith("2014-") for sample in samples)
    assert all(truth.captions and truth.captions[sample.id] == [*sample.tokens] for sample in samples)
    assert len(sample_of(archive, 10_000)[0]) == sum(len(archive.captions(split)) for split in archive.tests)


def test_weights_are_compared_by_pairs(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in reads everything right, but the second image wrong with int8, and finds nothing in it with float16."""
    samples, _ = sample_of(archive, 4)
    latex = {sample.image.tobytes(): " ".join(sample.tokens) for sample in samples}
    second = samples[1].image.tobytes()

    def write(model: None, config: None, folder: Path, weights: str) -> None:
        folder.mkdir()
        (folder / "step.onnx").write_bytes(b"x" * {"float32": 4000, "float16": 2000, "int8": 1000}[weights])

    def reader(folder: Path) -> Any:
        def read(ink: np.ndarray) -> list[SimpleNamespace]:
            if ink.tobytes() == second and folder.name == "float16":
                return []
            wrong = ink.tobytes() == second and folder.name == "int8"
            return [SimpleNamespace(latex="x" if wrong else latex[ink.tobytes()])]

        return read

    def each(inks: list[np.ndarray]) -> list[SimpleNamespace]:
        return [SimpleNamespace(latex=latex[ink.tobytes()]) for ink in inks]

    loaded = SimpleNamespace(model=None, config=None, in_float32=lambda: SimpleNamespace(each=each))
    monkeypatch.setattr(compare.Recognizer, "load", lambda path: loaded)
    monkeypatch.setattr(compare, "write_onnx", write)
    monkeypatch.setattr(compare, "Reader", reader)
    given, paired = list[list[str]](), compare.compare_paired
    monkeypatch.setattr(compare, "compare_paired", lambda a, b, ids=(): given.append([*ids]) or paired(a, b, ids))
    rows = bench_export(archive, [MEDIUM], tmp_path, 4)
    ids = [sample.id.partition("-")[2] for sample in samples]  # without the set, as those that tell writers
    assert given == [ids] * 4
    assert [row["way"] for row in rows] == ["PyTorch", "ONNX, float32", "ONNX, float16", "ONNX, int8"]
    assert [(row["right"], row["lost"], row["won"], row["points"]) for row in rows] == [
        (4, 0, 0, 0.0), (4, 0, 0, 0.0), (3, 1, 0, -25.0), (3, 1, 0, -25.0),
    ]  # fmt: skip
    assert [row["same_reading"] for row in rows] == [4, 4, 3, 3]
    assert [row["megabytes"] for row in rows[1:]] == [0.0, 0.0, 0.0] and rows[3]["low"] < -25 < rows[3]["high"]
    again = bench_export(archive, [MEDIUM], tmp_path, 4)  # in place of the earlier rows
    assert len(again) == len(read_table(tmp_path / "exported.csv")) == 4
    assert "| -25.0 (" in (tmp_path / "exported.md").read_text()


def test_the_committed_page_tells_its_rows() -> None:
    same = compare.compare_paired([0] * 90 + [1] * 110, [0] * 90 + [1] * 110, [f"w{k // 3}_{k}" for k in range(200)])
    assert {float(row["high"]) for row in read_table(ROOT / "results/exported.csv")} == {round(same.interval[1], 2)}
    assert compare.page(read_table(ROOT / "results/exported.csv")) == (ROOT / "results/exported.md").read_text()
