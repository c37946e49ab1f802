"""What the authors' limits let through, what is held out and what a limited number takes: values known by hand."""

import numpy as np
import pytest

from hmerbench.benchmarks.data.ink import Canvas, Symbol
from hmerbench.benchmarks.data.samples import Sample, evenly, hold_out
from hmerbench.benchmarks.data.sizes import within_limits


@pytest.mark.parametrize(
    ("height", "width", "scale", "factor"),
    [
        (16, 16, 1.0, 1.0),
        (256, 1024, 1.0, 1.0),
        (257, 100, 1.0, 256 / 257),
        (100, 1025, 1.0, 1024 / 1025),
        (512, 4096, 1.0, 1 / 4),
        (15, 100, 1.0, 16 / 15),
        (100, 8, 1.0, 2.0),
        (128, 512, 0.5, 1.0),  # of images shrunk when they were loaded
        (129, 100, 0.5, 128 / 129),
        (100, 513, 0.5, 512 / 513),
        (7, 100, 0.5, 8 / 7),
    ],
)
def test_sides_are_brought_within_the_authors_range(height: int, width: int, scale: float, factor: float) -> None:
    assert within_limits(height, width, scale) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("wide", "high", "scale"), [(100, 100, 1.0), (2000, 100, 0.5), (100, 460, 0.5), (2000, 920, 0.25)]
)
def test_rendered_ink_is_no_larger_than_crohmes(wide: int, high: int, scale: float) -> None:
    """MAX_SIDES are 230 and 1000 px, without the margins of 12 px and the pen's 3 px."""
    canvas = Canvas.of([Symbol("x", (np.array([[0, 0], [wide, high]]),))], 1.0)
    assert (canvas.scale, canvas.height, canvas.width) == (scale, high * scale + 26, wide * scale + 26)


def test_a_limited_number_is_spaced_evenly() -> None:
    assert evenly(range(10), 4) == [0, 2, 5, 7] and evenly(range(3), 3) == evenly(range(3), None) == [0, 1, 2]


def sheets(writers: int, size: int) -> list[Sample]:
    image = np.zeros((1, 1), np.uint8)
    return [Sample(f"w{writer}_{k}", (f"{writer}", f"{k}"), image) for writer in range(writers) for k in range(size)]


@pytest.mark.parametrize(("writers", "whole"), [(10, True), (9, False)])
def test_ten_writers_or_more_are_held_out_by_the_sheet(writers: int, whole: bool) -> None:
    """Of ten, a share of a tenth is one sheet, as large as may be; of nine, single expressions are taken."""
    for seed in range(5):
        training, held = hold_out(sheets(writers, 4), 1 / writers, seed)
        assert len(training) + len(held) == 4 * writers and len(held) == 4
        assert (len({sample.id.partition("_")[0] for sample in held}) == 1) == whole
