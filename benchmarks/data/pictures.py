"""Gray images of pictures of any kind: the size of the ink on them, its skeleton, and what lies around the paper."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
        return stretched(np.asarray(picture))
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


def stretched(values: np.ndarray) -> np.ndarray:
    """The range that an array's values use, stretched to 0 to 255: uint8 of the same shape."""
    low = min(np.nan_to_num(rows).min() for (rows,) in _floats(values))
    high = max(np.nan_to_num(rows).max() for (rows,) in _floats(values))
    factor = 255 / max(high - low, 1)
    return _of_floats(lambda rows: (np.nan_to_num(rows) - low) * factor, values)


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


def shrunk(gray: np.ndarray, side: int) -> np.ndarray:
    """The picture, with no side above `side` px."""
    factor = side / max(gray.shape)
    return cv2.resize(gray, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA) if factor < 1 else gray


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


# ------------------------------------------------------------------------------------------------------------ thinning


# Thinning approximates the path of the pen. Each method is a few lookup tables by the eight neighbors of a pixel,
# applied in turn until nothing changes. A. Rosenfeld, A characterization of parallel thinning algorithms (1975), takes
# away one side of the ink at a time, so that every component and every hole stays. T. Y. Zhang and C. Y. Suen, A fast
# parallel algorithm for thinning digital patterns (1984), deletes diagonal strokes of even width and squares of 2 x 2
# pixels; the embedded set is drawn with it, since other images would be another set.
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


# -------------------------------------------------------------------------------------------------------- surroundings


# The desk that paper lies on, a toolbar, a frame drawn around the expression: both sheet and frame are found as a
# connected region whose filled outline is a rectangle, perhaps tilted, at one of a few thresholds. A sheet is mostly
# filled and has something else around it, a frame is thin and has ink within it.
SIDE = 640  # px; larger pictures are searched at this size
LEVELS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)  # thresholds, between the darkest and the brightest of the picture
RECTANGULAR = 0.88  # least share of its smallest enclosing rectangle that an outline fills
SHEET = 0.1, 0.985  # least and largest share of the picture that is a sheet on a desk
FRAMED = 0.3  # least share of the picture within a frame
WHOLE = 0.97  # of at least one side of the picture lies off the sheet
THICK = 2.5  # strokes: what is along one or two sides is thicker, or it is ink
EDGE = 30.0  # least step of brightness at the edge of a sheet: a shadow's is softer
TEXTURE = 0.05  # ink around a sheet per pixel, at most, of that on it: a shadow has more, as it lies on writing


@dataclass(frozen=True)
class _Outline:
    """A region with a rectangular outline."""

    kind: str
    inside: np.ndarray  # (h, w) uint8, 1 within the outline but for its rim
    contrast: float


def without_surroundings(gray: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The picture (H, W) uint8 within its sheet and frame, and what was cut off: "desk", "frame".

    What lies outside a tilted sheet but within its bounding box becomes paper. A picture without either is returned as
    it is.
    """
    cut: list[str] = []
    while len(cut) < 3 and min(gray.shape) >= 24:  # a frame on a sheet on a desk
        small = shrunk(gray, SIDE)
        outlines = [
            found for level in _levels(small) for bright in (True, False) if (found := _at(small, level, bright))
        ]
        if not outlines:
            break
        best = max(outlines, key=lambda outline: outline.contrast)
        gray = _within(gray, cv2.resize(best.inside, gray.shape[::-1], interpolation=cv2.INTER_NEAREST))
        cut.append(best.kind)
    return gray, tuple(dict.fromkeys(cut))


def _levels(small: np.ndarray) -> list[float]:
    low, high = np.percentile(small, (0.5, 99.5))
    return [low + share * (high - low) for share in LEVELS] if high - low >= EDGE else []


def _at(small: np.ndarray, level: float, bright: bool) -> _Outline | None:
    """The sheet or the frame that a threshold tells from the rest, if it does."""
    mask = ((small > level) == bright).astype(np.uint8)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4 if bright else 8)
    boxes = stats[1:, cv2.CC_STAT_WIDTH].astype(np.int64) * stats[1:, cv2.CC_STAT_HEIGHT]
    if not len(boxes) or boxes.max() < SHEET[0] * small.size:
        return None
    region = (labels == 1 + boxes.argmax()).astype(np.uint8)
    contours, _ = cv2.findContours(region, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    contour = max(contours, key=cv2.contourArea)
    filled = cv2.drawContours(np.zeros_like(region), [contour], -1, 1, cv2.FILLED)
    area, (wide, high) = int(filled.sum()), cv2.minAreaRect(contour)[1]
    if area < RECTANGULAR * (wide + 1) * (high + 1):
        return None
    share, solid = area / small.size, region.sum() / area
    if solid > 0.5 and SHEET[0] <= share <= SHEET[1]:
        return _sheet(small, filled)
    if solid < 0.35 and share >= FRAMED:
        return _frame(small, region, filled)
    return None


def _sheet(small: np.ndarray, filled: np.ndarray) -> _Outline | None:
    """The sheet with this outline; None if what is around it may be ink, or a shadow that lies on writing."""
    sides = filled[0], filled[-1], filled[:, 0], filled[:, -1]
    off = sum(side.mean() < 1 - WHOLE for side in sides)
    inside, outside = _eroded(filled, 3), _eroded(1 - filled, 10)
    fine = _fine(small)
    written = fine[inside > 0].mean() if inside.any() else 0.0
    if not off or not written or (outside.any() and fine[outside > 0].mean() > TEXTURE * written):
        return None
    if off < 3:  # a stroke along the edge of a picture cut close is no desk
        depth = 2 * cv2.distanceTransform(1 - filled, cv2.DIST_L2, 5).max()
        if depth < THICK * stroke_width((fine & (inside > 0)).astype(np.uint8)):
            return None
    ink = small[fine & (inside > 0)]
    step = _step(small, filled) * (1 if np.median(ink) < np.median(small[inside > 0]) else -1)
    return _Outline("desk", inside, step) if step >= EDGE else None  # what is on the other side of paper is never ink


def _fine(small: np.ndarray) -> np.ndarray:
    """Where strokes are, or anything as fine: neither paper, nor a desk, nor the edge of a shadow."""
    return np.abs(small.astype(np.int16) - cv2.medianBlur(small, 21)) > EDGE


def _step(small: np.ndarray, filled: np.ndarray) -> float:
    """How much darker it is around an outline than within: the step that nine tenths of the outline exceed."""
    within = (_eroded(filled, 2) - _eroded(filled, 5)).astype(np.float32)
    around = (cv2.dilate(filled, _square(4)) - cv2.dilate(filled, _square(1))) > 0
    near = cv2.blur(within, (17, 17))
    around &= near > 0.01
    if not around.any():
        return 0.0
    paper = cv2.blur(within * small, (17, 17))[around] / near[around]
    return float(np.percentile(paper - small[around], 10 if paper.mean() > small[around].mean() else 90))


def _frame(small: np.ndarray, region: np.ndarray, filled: np.ndarray) -> _Outline | None:
    holes = cv2.findContours(filled & (region ^ 1), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]
    if not holes:
        return None
    most = max(map(cv2.contourArea, holes))  # the others may be specks of a desk, or what a line across it parts
    hull = cv2.convexHull(np.concatenate([hole for hole in holes if cv2.contourArea(hole) >= most / 10]))
    inside = _eroded(cv2.fillConvexPoly(np.zeros_like(filled), hull, 1), 2)
    x, y, wide, high = cv2.boundingRect(inside)
    part = slice(y, y + high), slice(x, x + wide)
    if not wide or not (_fine(small[part]) & (cv2.dilate(region, _square(2))[part] == 0)).any():
        return None  # nothing within it: a symbol, such as D
    held = small[inside > 0]
    contrast = abs(float(np.median(held)) - float(np.median(small[region > 0])))
    return _Outline("frame", inside, contrast)


def _square(radius: int) -> np.ndarray:
    return np.ones((2 * radius + 1, 2 * radius + 1), np.uint8)


def _eroded(mask: np.ndarray, radius: int) -> np.ndarray:
    """The mask without a rim; the edge of the picture makes none."""
    return cv2.erode(mask, _square(radius))


def _within(gray: np.ndarray, inside: np.ndarray) -> np.ndarray:
    x, y, width, height = cv2.boundingRect(inside)
    part, kept = gray[y : y + height, x : x + width], inside[y : y + height, x : x + width] > 0
    if kept.all():
        return part.copy()
    side = max(part.shape) // 8 | 1
    weight = cv2.blur(kept.astype(np.float32), (side, side))
    paper = cv2.blur(np.where(kept, part, 0).astype(np.float32), (side, side)) / np.maximum(weight, 1e-3)
    paper[weight < 1e-2] = np.median(part[kept])
    return np.where(kept, part, paper.round()).astype(np.uint8)
