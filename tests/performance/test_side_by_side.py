"""The table of rows trained side by side on a GPU follows from their histories."""

import re

import pytest

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from tests.helpers.paths import ROOT

H200 = ROOT / "results/speed/h200"
TEXT = (H200 / "README.md").read_text()


@pytest.mark.parametrize("row", ["bttr", "bttr-baseline", "comer-self", "comer-cross", "comer-fusion"])
def test_a_row_is_what_its_history_says(row):
    history = RunFolder(H200 / row / "large-seed7").history
    seconds = sum(line["seconds"] for line in history)
    images = sum(line["seconds"] * line["images_per_s"] for line in history)
    expected = f"| {row} | {history[-1]['step']:,} | {seconds / 60:.1f} | {images / seconds:.0f} |"
    assert expected in TEXT and len(history) == 16


def test_every_row_takes_as_many_steps():
    """Also that without scale augmentation, whose batches are fuller."""
    assert len({*re.findall(r"\| ([0-9,]+) \| [0-9.]+ \|", TEXT)}) == 1


def test_the_rates_are_those_of_the_scores():
    scores = RunFolder(H200 / "bttr-baseline/large-seed7").scores
    assert "{:.2f}, {:.2f} and {:.2f} %".format(*(score.exprate for score in scores.values())) in TEXT


def test_how_busy_the_gpu_was_is_what_was_sampled():
    samples = read_table(H200 / "nvidia-smi.csv")
    busy = [int(row["gpu_percent"].split()[0]) for row in samples]
    power = [float(row["power"].split()[0]) for row in samples]
    idle = next(k for k, percent in enumerate(busy) if percent > 50)
    assert 50 <= 5 * idle <= 70 and 5 * len(samples) in range(145, 160)  # "one of" two and a half minutes
    assert set(busy[-10:]) == {100} and f"{max(power):.0f} W of 700" in TEXT
