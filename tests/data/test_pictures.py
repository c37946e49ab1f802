"""Thinning: no stroke is lost, whatever its width and direction."""

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data.pictures import thin

HALF = 40  # px, of a stroke's length


def stroke(width: int, degrees: float, shift: float = 0.0) -> np.ndarray:
    """A straight stroke of this width around the center of the image, moved by a part of a pixel."""
    along, across = coordinates(degrees, shift)
    return ((np.abs(along) <= HALF) & (np.abs(across) <= width / 2)).astype(np.uint8)


def coordinates(degrees: float, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[-50:51, -50:51] - shift
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return x * cosine + y * sine, y * cosine - x * sine


def pieces(image: np.ndarray, connectivity: int = 8) -> int:
    return cv2.connectedComponents(image, connectivity=connectivity)[0] - 1


@pytest.mark.parametrize("width", range(1, 17))
def test_a_stroke_of_any_direction_becomes_one_line_of_its_length(width: int) -> None:
    for degrees in range(0, 180, 5):
        for shift in (0.0, 0.5):
            ink, (along, across) = stroke(width, degrees, shift), coordinates(degrees, shift)
            if not ink.any():  # a line between two rows of pixels
                continue
            line = thin(ink)
            where = f"{width} px, {degrees} degrees, moved by {shift}"
            assert np.ptp(along[line > 0]) >= 2 * HALF - width - 2, where
            assert np.abs(across[line > 0]).max() <= width / 2 and pieces(line) == pieces(ink), where
            assert line.sum() <= 2 * HALF + width + 4, where  # one pixel wide, maybe forked at its ends
            assert np.array_equal(thin(line), line), where


def test_crossing_strokes_keep_their_four_arms() -> None:
    near_end = np.hypot(*np.mgrid[-50:51, -50:51]) > HALF - 20
    for width in range(2, 9):
        for degrees in range(0, 90, 5):
            cross = thin(stroke(width, degrees) | stroke(width, degrees + 90))
            assert pieces(cross) == 1 and pieces(cross * near_end.astype(np.uint8)) == 4, (width, degrees)


def test_components_and_holes_stay() -> None:
    draw = np.random.default_rng(0)
    for share in draw.uniform(0.1, 0.8, 500):
        ink = np.pad((draw.random((12, 12)) < share).astype(np.uint8), 1)
        line = thin(ink)
        assert pieces(line) == pieces(ink) and pieces(1 - line, 4) == pieces(1 - ink, 4)


def test_dots_of_any_size_stay() -> None:
    for side in range(1, 9):
        assert thin(np.pad(np.ones((side, side), np.uint8), 2)).any(), side
