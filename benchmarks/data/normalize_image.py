"""From a photograph or a scan to ink as CROHME renders it.

CROHME's images are rendered from pen strokes: binary, strokes three pixels wide, symbols of one size. So ink is
separated from paper, scaled to the size of CROHME's symbols and redrawn along its skeleton.
"""

import errno
import warnings
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS
from hmerbench.benchmarks.data.ink import MARGIN
from hmerbench.benchmarks.data.pictures import (
    PEN,
    TYPICAL,
    TYPICAL_HIGH,
    TYPICAL_LOW,
    gray_of,
    stroke_width,
    symbol_height,
)
from hmerbench.benchmarks.data.thinning import thin
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.weights import one_line

FORMATS = ("PNG", "BMP", "JPEG")
MAX_PIXELS = 100_000_000  # a larger file is refused unread: no photograph, but maybe a decompression bomb
MAX_PROPORTION = 100  # of the longer to the shorter side: no expression is that long and thin
WORKING_SIDE = 2000  # px; larger images are shrunk first
NO_INK = "{}: no ink on it that stands out from the paper; give a sharper or closer picture"


def read_gray(path: Path) -> np.ndarray:
    """Read a PNG, BMP or JPEG file as (H, W) uint8: upright, transparency filled in, no side above 2,000 px."""
    try:
        if path.exists() and not path.is_file():
            raise IsADirectoryError(errno.EISDIR, "not a file")  # reading a pipe may never end
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            picture.draft("L", (WORKING_SIDE, WORKING_SIDE))  # a large JPEG is decoded at a fraction of its size
            gray = gray_of(ImageOps.exif_transpose(picture))
    except (Image.DecompressionBombError, MemoryError):
        raise UserError(f"{path}: more than {MAX_PIXELS // 10**6} million pixels; scale it down") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: not a PNG, BMP or JPEG image; convert it") from None
    except Exception as error:  # a damaged file makes the decoders raise nearly anything
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"{path}: {error.strerror}; give the path of an image that may be read") from None
        raise UserError(f"{path}: damaged image ({one_line(error)}); save it again") from None
    _check_proportion(gray, str(path))
    shrink = WORKING_SIDE / max(gray.shape)
    return cv2.resize(gray, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA) if shrink < 1 else gray


def _check_proportion(gray: np.ndarray, name: str) -> None:
    height, width = gray.shape
    if not gray.size:
        raise UserError(NO_INK.format(name))
    if max(width, height) > MAX_PROPORTION * min(width, height):
        raise UserError(f"{name}: {width} x {height} pixels, too long and thin for an expression; cut one out again")


def as_crohme(gray: np.ndarray, name: str, max_area: int = AUTHORS_MAX_PIXELS) -> np.ndarray:
    """Render the ink of a gray image (H, W) uint8 as CROHME does: uint8, 255 on 0, 12 px margin, 3 px strokes.

    Ink that already has this size and stroke width is not changed. Raises UserError for an array of
    another kind, and if there is no ink, or none that can be an expression.
    """
    if gray.ndim != 2 or gray.dtype != np.uint8:
        raise UserError(f"{name}: must be a gray image (H, W) of uint8, not {gray.dtype} of shape {gray.shape}")
    _check_proportion(gray, name)
    ink = _crop(_without_specks(_ink(gray, name)))
    stroke = stroke_width(ink)
    typical = symbol_height(ink, stroke)
    if typical is None or typical <= stroke:  # hardly anything but bars, dots and stripes
        factor = PEN / stroke
    elif TYPICAL_LOW <= typical <= TYPICAL_HIGH:  # not scaled
        factor = 1.0
    else:
        factor = (TYPICAL - PEN) / (typical - stroke)
    a, rim = ink.size, 2 * (MARGIN + PEN)  # at most max_area pixels with the rim: the root of a quadratic equation
    b = rim * sum(ink.shape)
    factor = min(factor, (np.sqrt(b**2 + 4 * a * (max_area - rim**2)) - b) / (2 * a))
    if factor != 1 or not PEN - 0.5 < stroke < PEN + 1:
        ink = _redraw(ink, factor, stroke)
    if not ink.any():  # nothing but specks that vanish at this scale
        raise UserError(NO_INK.format(name))
    return np.pad(ink * np.uint8(255), (MARGIN, MARGIN - 1))  # CROHME has one row less below and to the right


def _ink(gray: np.ndarray, name: str) -> np.ndarray:
    """0/1 ink mask by Otsu's threshold on the contrast with the paper, which may be unevenly lit."""
    paper = _paper(gray)
    difference = gray.astype(np.float32) - paper
    dark = (difference**3).sum() < 0  # ink differs from the paper more than noise does
    room = np.maximum(paper if dark else 255 - paper, 32)
    contrast = np.clip((-difference if dark else difference) / room, 0, 1)
    _, mask = cv2.threshold((contrast * 255).astype(np.uint8), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    inside, noise = mask.astype(bool), 1.48 * np.median(np.abs(difference))
    gap = contrast[inside].mean() - contrast[~inside].mean() if 0 < inside.mean() < 0.5 else 0.0
    if gap < max(0.08, 5 * noise / 255):
        raise UserError(NO_INK.format(name))
    return mask


def _paper(gray: np.ndarray) -> np.ndarray:
    """Brightness of the paper at every pixel, float32: the median over a wide neighborhood."""
    shrink = min(1.0, 400 / max(gray.shape))
    small = cv2.resize(gray, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA) if shrink < 1 else gray
    width = max(63, max(small.shape) // 4) | 1
    paper = cv2.medianBlur(small, width).astype(np.float32)
    return cv2.resize(paper, gray.shape[::-1], interpolation=cv2.INTER_LINEAR)


def _without_specks(ink: np.ndarray) -> np.ndarray:
    """Remove dirt: components much smaller than a dot of the pen that wrote the rest."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    areas = stats[:, cv2.CC_STAT_AREA]
    keep = areas >= min(max(3, stroke_width(ink) ** 2 / 4), areas[1:].max())
    keep[0] = False
    return keep.astype(np.uint8)[np.asarray(labels, np.intp)]


def _crop(ink: np.ndarray) -> np.ndarray:
    x, y, width, height = cv2.boundingRect(ink)
    return ink[y : y + height, x : x + width]


def _redraw(ink: np.ndarray, factor: float, stroke: float) -> np.ndarray:
    """Scale ink by `factor` and redraw its skeleton with CROHME's pen."""
    first = max(factor, min(1.0, 4 * PEN / stroke))  # shrinks thick strokes: thinning takes a step per pixel of width
    method = cv2.INTER_AREA if first < 1 else cv2.INTER_LINEAR
    scaled = cv2.resize(np.pad(ink * np.uint8(255), PEN), None, fx=first, fy=first, interpolation=method)
    points = np.argwhere(thin((scaled > 127).astype(np.uint8))) * (factor / first)
    if not len(points):
        return np.zeros((1, 1), np.uint8)
    points = np.round(points - points.min(0)).astype(int) + 1
    canvas = np.zeros(points.max(0) + 2, np.uint8)
    canvas[tuple(points.T)] = 1
    return cv2.dilate(canvas, np.ones((PEN, PEN), np.uint8))
