"""Thinning: the skeleton of an ink mask, which approximates the path of the pen.

Each method is a few lookup tables by the eight neighbors of a pixel, applied in turn until nothing changes.
A. Rosenfeld, A characterization of parallel thinning algorithms (1975), takes away one side of the ink at a time, so
that every component and every hole stays. T. Y. Zhang and C. Y. Suen, A fast parallel algorithm for thinning digital
patterns (1984), deletes diagonal strokes of even width and squares of 2 x 2 pixels; the embedded set is drawn with it,
since other images would be another set.
"""

from collections.abc import Sequence

import cv2
import numpy as np

_BITS = np.array([[128, 1, 2], [64, 0, 4], [32, 16, 8]], np.float32)  # of a pixel's neighbors
_RING = ((np.arange(256) >> np.arange(8)[:, None]) & 1).astype(bool)  # N, NE, E, SE, S, SW, W, NW
_N, _E, _S, _W = _RING[::2]
_NEXT, _COUNT = np.roll(_RING, -1, axis=0), _RING.sum(0)


def _rosenfeld() -> list[np.ndarray]:
    branches = (~_RING & (_NEXT | np.roll(_RING, -2, axis=0)))[::2].sum(0)  # connected parts of the neighborhood
    inner = (branches == 1) & (_COUNT >= 3)  # neither a bridge nor the end of a line
    return [inner & ~side for side in (_N, _S, _E, _W)]


def _zhang_suen() -> list[np.ndarray]:
    border = (_COUNT >= 2) & (_COUNT <= 6) & ((~_RING & _NEXT).sum(0) == 1)
    return [border & ~(_N & _E & _S | _E & _S & _W), border & ~(_N & _E & _W | _N & _S & _W)]


ROSENFELD, ZHANG_SUEN = _rosenfeld(), _zhang_suen()


def thin(image: np.ndarray, removable: Sequence[np.ndarray] = ROSENFELD) -> np.ndarray:
    """The skeleton of a 0/1 image, uint8 (H, W), as a 0/1 image; `removable` are tables of a method."""
    tables = [(~table).astype(np.uint8) for table in removable]
    while True:
        before = image
        for stays in tables:
            neighbors = cv2.filter2D(image, -1, _BITS, borderType=cv2.BORDER_CONSTANT)
            image = image & cv2.LUT(neighbors, stays)
        if np.array_equal(before, image):
            return image
