"""Pictures unlike CROHME's, to try how far a recognizer knows what it cannot read: expressions in other pens, and
pictures that show no expression."""

from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from hmerbench.benchmarks.data.ink import MARGIN, Stroke

WORDS = (
    *("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs"),
    *("while", "seven", "hens", "count", "their", "eggs"),
)
Draw = np.random.Generator


def in_another_pen(strokes: list[Stroke], width: int, draw: Draw) -> bytes:
    """A JPEG of pen strokes as a phone might take it: another pen, turned, lit unevenly; `width` is that of CROHME's
    image in px."""
    points = np.concatenate(strokes)
    low, extent = points.min(0), np.maximum(np.ptp(points, axis=0), 1e-9)
    larger = draw.uniform(1.5, 4.0)
    scale = larger * max(width - 2 * MARGIN, 1) / extent[0]
    border = draw.uniform(20, 60) * larger
    sides = np.ceil(extent * scale + 2 * border).astype(int)
    ink = np.zeros(sides[::-1], np.uint8)
    pen = max(1, round(draw.uniform(1.2, 3.5) * larger))
    for stroke in strokes:
        at = np.rint(((stroke - low) * scale + border) * 16).astype(np.int32)
        cv2.polylines(ink, [at], False, 255, pen, cv2.LINE_AA, shift=4)
    turn = cv2.getRotationMatrix2D((sides[0] / 2, sides[1] / 2), draw.uniform(-4, 4), 1.0)
    return photograph(cv2.warpAffine(ink, turn, (int(sides[0]), int(sides[1]))), draw)


def photograph(ink: np.ndarray, draw: Draw) -> bytes:
    """A JPEG of ink, (H, W) uint8 from 0 to 255, on paper."""
    height, width = ink.shape
    light = np.linspace(1, draw.uniform(0.75, 1.0), width) * np.linspace(1, draw.uniform(0.8, 1.0), height)[:, None]
    paper, dark = draw.uniform(190, 255), draw.uniform(10, 100)
    share = cv2.GaussianBlur(ink, (0, 0), draw.uniform(0.4, 1.3)) / 255
    gray = (paper + (dark - paper) * share) * light + draw.normal(0, draw.uniform(0.5, 5), ink.shape)
    quality = [cv2.IMWRITE_JPEG_QUALITY, int(draw.integers(50, 95))]
    return cv2.imencode(".jpg", gray.clip(0, 255).astype(np.uint8), quality)[1].tobytes()


def nonsense(kind: str, draw: Draw) -> bytes:
    ink = np.zeros(draw.integers((180, 320), (400, 700)), np.uint8)
    KINDS[kind](ink, draw)
    return photograph(ink, draw)


def _blank(ink: np.ndarray, draw: Draw) -> None:
    """Paper."""


def _noise(ink: np.ndarray, draw: Draw) -> None:
    ink[:] = draw.integers(0, 256, ink.shape)


def _face(ink: np.ndarray, draw: Draw) -> None:
    height, width = ink.shape
    x, y = width // 2 + int(draw.integers(-40, 40)), height // 2
    size, pen = height // 3, int(draw.integers(3, 7))
    cv2.ellipse(ink, (x, y), (int(size * draw.uniform(0.8, 1.1)), size), 0, 0, 360, 255, pen, cv2.LINE_AA)
    for side in (-1, 1):
        cv2.circle(ink, (x + side * size // 3, y - size // 4), int(draw.integers(3, 10)), 255, -1, cv2.LINE_AA)
    start = 20 if draw.random() < 0.7 else 200
    cv2.ellipse(ink, (x, y + size // 4), (size // 2, size // 3), 0, start, start + 140, 255, pen, cv2.LINE_AA)


def _house(ink: np.ndarray, draw: Draw) -> None:
    height, width = ink.shape
    pen = int(draw.integers(3, 7))
    left, right = (int(width * draw.uniform(*ends)) for ends in ((0.1, 0.3), (0.6, 0.9)))
    top, floor = int(height * draw.uniform(0.35, 0.5)), int(height * 0.9)
    cv2.rectangle(ink, (left, top), (right, floor), 255, pen)
    roof = [[left, top], [(left + right) // 2, int(height * draw.uniform(0.05, 0.2))], [right, top]]
    cv2.polylines(ink, [np.array(roof)], False, 255, pen, cv2.LINE_AA)
    cv2.rectangle(ink, (left + 30, top + 30), (left + 70, top + 60), 255, pen)


def _scribble(ink: np.ndarray, draw: Draw) -> None:
    height, width = ink.shape
    t = np.linspace(0, 1, 600)[:, None]
    waves = draw.uniform(1, 14, (6, 2)), draw.uniform(0, 2 * np.pi, (6, 2)), draw.uniform(0, 1, (6, 2))
    parts = [size * np.sin(speed * t * 2 * np.pi + phase) for speed, phase, size in zip(*waves, strict=True)]
    curve = np.sum(parts, axis=0)
    curve = (curve - curve.min(0)) / np.ptp(curve, axis=0) * (width - 60, height - 60) + 30
    cv2.polylines(ink, [curve.astype(np.int32)], False, 255, int(draw.integers(3, 7)), cv2.LINE_AA)


def _text(ink: np.ndarray, draw: Draw) -> None:
    names = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono")
    font = Path(get_data_path()) / f"fonts/ttf/{names[draw.integers(3)]}.ttf"
    size, picture = int(draw.integers(18, 40)), Image.new("L", ink.shape[::-1])
    for y in range(20, ink.shape[0] - size, int(size * 1.5)):
        line = " ".join(draw.choice(WORDS, int(draw.integers(3, 7))))
        ImageDraw.Draw(picture).text((20, y), line, 255, ImageFont.truetype(str(font), size))
    ink[:] = np.asarray(picture)


def _ruled(ink: np.ndarray, draw: Draw) -> None:
    step = int(draw.integers(14, 40))
    ink[step::step] = ink[:, step::step] = 255
    ink[:] = cv2.dilate(ink, np.ones((2, 2), np.uint8))


KINDS: Mapping[str, Callable[[np.ndarray, Draw], None]] = {
    "blank paper": _blank,
    "noise": _noise,
    "face": _face,
    "house": _house,
    "scribble": _scribble,
    "printed text": _text,
    "squared paper": _ruled,
}
