"""Gray images of pictures of any kind, and the size of the ink on them."""

from collections.abc import Callable, Iterator

import cv2
import numpy as np
from PIL import Image

ROWS = 256  # of a picture that are floats at once
PEN = 3  # px, stroke width in CROHME
TYPICAL = 37.3  # px: median of `symbol_height` over CROHME's training images
TYPICAL_LOW, TYPICAL_HIGH = 28.0, 50.0  # px: the range of nine in ten


def gray_of(picture: Image.Image) -> np.ndarray:
    """The brightness of a picture, (H, W) uint8: transparency is filled in, 16 bits are stretched to the range used."""
    if picture.mode.startswith(("I", "F")):  # 16 bits and more
        values = np.asarray(picture)
        low = min(np.nan_to_num(rows).min() for (rows,) in _floats(values))
        high = max(np.nan_to_num(rows).max() for (rows,) in _floats(values))
        factor = 255 / max(high - low, 1)
        return _of_floats(lambda rows: (np.nan_to_num(rows) - low) * factor, values)
    if not picture.has_transparency_data:
        return np.array(picture.convert("L"))  # a copy, which torch may write to
    gray, alpha = (np.asarray(band) for band in picture.convert("LA").split())
    opaque = alpha > 127
    if opaque.mean() > 0.5:  # a picture with holes: fill them with its paper
        paper = float(np.median(gray[opaque]))
    else:  # ink on a transparent background: choose black or white, whichever contrasts
        brighter = sum(((gray - 127) * alpha).sum() for gray, alpha in _floats(gray, alpha))
        paper = 0.0 if brighter > 0 else 255.0
    return _of_floats(lambda gray, alpha: paper + (gray - paper) * alpha / 255, gray, alpha, dtype=np.float32)


def _floats(*planes: np.ndarray, dtype: type = np.float64) -> Iterator[list[np.ndarray]]:
    """The same rows of each plane, some at a time: as floats, a large picture takes gigabytes."""
    for top in range(0, len(planes[0]), ROWS):
        yield [plane[top : top + ROWS].astype(dtype) for plane in planes]


def _of_floats(brightness: Callable[..., np.ndarray], *planes: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """The rounded brightness, (H, W) uint8, of planes as floats."""
    gray, top = np.empty(planes[0].shape, np.uint8), 0
    for rows in _floats(*planes, dtype=dtype):
        gray[top : top + ROWS] = brightness(*rows).round()
        top += ROWS
    return gray


def symbol_height(ink: np.ndarray, stroke: float) -> float | None:
    """Mean height in pixels of the connected components, weighted by height so that bars and dots hardly count.

    None if there are only bars and dots, so that nothing but the stroke width tells the scale.
    """
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    width, height = stats[1:, cv2.CC_STAT_WIDTH].astype(float), stats[1:, cv2.CC_STAT_HEIGHT].astype(float)
    if np.all((height < width / 2) | (np.maximum(height, width) < 2.5 * stroke)):
        return None
    return (height**2).sum() / height.sum()


def stroke_width(ink: np.ndarray) -> float:
    """Mean stroke width in pixels, from the mean distance d of ink pixels to the paper: w = 4 d - 2 - 1/w."""
    padded = np.pad(ink, 1)
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, 5)[padded > 0].mean()
    return max(1.0, 4 * distance - 2.33)
