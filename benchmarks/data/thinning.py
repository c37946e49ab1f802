"""Thinning: the one-pixel skeleton of an ink mask, which approximates the path of the pen.

T. Y. Zhang and C. Y. Suen, A fast parallel algorithm for thinning digital patterns (1984), as two lookup tables.
"""

import cv2
import numpy as np

_NEIGHBORS = np.array([[128, 1, 2], [64, 0, 4], [32, 16, 8]], np.float32)


def _tables() -> list[np.ndarray]:
    p = (np.arange(256)[:, None] >> np.arange(8)) & 1  # N, NE, E, SE, S, SW, W, NW
    n, e, s, w = p[:, 0], p[:, 2], p[:, 4], p[:, 6]
    rises = ((p == 0) & (np.roll(p, -1, axis=1) == 1)).sum(1)
    border = (p.sum(1) >= 2) & (p.sum(1) <= 6) & (rises == 1)
    removable = [border & (n * e * s == 0) & (e * s * w == 0), border & (n * e * w == 0) & (n * s * w == 0)]
    return [(~r).astype(np.uint8) for r in removable]


_KEEP = _tables()


def thin(image: np.ndarray) -> np.ndarray:
    """The skeleton of a 0/1 image, uint8 (H, W), as a 0/1 image."""
    while True:
        before = image
        for keep in _KEEP:
            code = cv2.filter2D(image, -1, _NEIGHBORS, borderType=cv2.BORDER_CONSTANT)
            image = image & cv2.LUT(code, keep)
        if np.array_equal(before, image):
            return image
