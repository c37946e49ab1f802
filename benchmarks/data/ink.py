"""Pen strokes: the symbols of an expression as they were written, from InkML, and how they are drawn as an image."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree.ElementTree import Element, ParseError

import cv2
import numpy as np

INK = "{http://www.w3.org/2003/InkML}"
ID = "{http://www.w3.org/XML/1998/namespace}id"
MAX_INK_BYTES = 4 << 20  # of one InkML file; the largest of CROHME has 0.3 MB
FARTHEST = 1e9  # a pen's coordinate

MARGIN = 12  # px around the ink of every image of CROHME
SIDES = (230, 1000)  # px, height and width that ink is drawn in at most

INKLESS = frozenset({"{", "}", "^", "_", r"\limits"})  # tokens that no stroke is written for
AS_TOKEN = {r"\lt": "<", r"\gt": ">"}  # where a segmentation writes a symbol otherwise than the captions
BY_ELEMENT = {"mfrac": r"\frac", "msqrt": r"\sqrt", "mroot": r"\sqrt"}  # symbols whose token stands for the structure

Stroke = np.ndarray  # float [n, 2]: x to the right, y down, in the pen's own units


@dataclass(frozen=True)
class Symbol:
    """A written symbol and its token in the caption."""

    token: str
    strokes: tuple[Stroke, ...]

    @cached_property
    def low(self) -> np.ndarray:
        """x and y of its upper left corner."""
        return np.min([stroke.min(0) for stroke in self.strokes], axis=0)

    @cached_property
    def extent(self) -> np.ndarray:
        """Width and height."""
        return np.max([stroke.max(0) for stroke in self.strokes], axis=0) - self.low


Symbols = dict[int, Symbol]  # of an expression, by their place in the caption


@dataclass(frozen=True)
class Canvas:
    """Where ink lies on an image."""

    low: np.ndarray  # what is drawn in the upper left corner, in the pen's units
    scale: float  # px, of one of them
    height: int
    width: int

    @classmethod
    def of(cls, symbols: Iterable[Symbol], scale: float) -> "Canvas":
        """That of an image which shows the symbols `scale` times as large; smaller where they would not fit SIDES."""
        low, (wide, high) = extent(symbols)
        scale = min(scale, SIDES[0] / high, SIDES[1] / wide)
        return cls(low, scale, *(round(side * scale) + 2 * MARGIN + 2 for side in (high, wide)))

    @classmethod
    def under(cls, symbols: Iterable[Symbol], height: int, width: int) -> "Canvas":
        """That of an image of these sides which shows the symbols already."""
        low, (wide, high) = extent(symbols)
        border = 2 * MARGIN + 2
        return cls(low, (width - border) / wide if wide > high else (height - border) / high, height, width)

    def draw(self, symbols: Iterable[Symbol]) -> np.ndarray:
        """The symbols as CROHME's are drawn: (height, width) uint8, white ink 3 px wide on black."""
        image = np.zeros((self.height, self.width), np.uint8)
        for stroke in (stroke for symbol in symbols for stroke in symbol.strokes):
            points = np.rint((stroke - self.low) * self.scale + MARGIN + 1).astype(np.int32)
            cv2.polylines(image, [points], False, 255, 1)
        return cv2.dilate(image, np.ones((3, 3), np.uint8))


def extent(symbols: Iterable[Symbol]) -> tuple[np.ndarray, np.ndarray]:
    """Of all symbols: x and y of the upper left corner, width and height (not 0)."""
    points = np.concatenate([stroke for symbol in symbols for stroke in symbol.strokes])
    return points.min(0), np.maximum(np.ptp(points, axis=0), 1e-9)


@dataclass(frozen=True)
class Ink:
    """The ink of an expression, and where it lies on its image."""

    symbols: Symbols
    canvas: Canvas


def symbols_of(text: bytes, tokens: Sequence[str]) -> Symbols | None:
    """The symbols of an expression from its InkML file; None where that is segmented otherwise than `tokens` reads."""
    try:
        symbols = read_symbols(text)
    except ValueError:
        return None
    places = [place for place, token in enumerate(tokens) if token not in INKLESS]
    matching = [symbol.token for symbol in symbols] == [tokens[place] for place in places]
    return dict(zip(places, symbols, strict=True)) if matching else None


def read_symbols(text: bytes) -> list[Symbol]:
    """The symbols of an InkML file in the order of its MathML, which is that of LaTeX.

    Raises ValueError for what is no InkML, or where MathML and segmentation are not of one another.
    """
    from defusedxml.ElementTree import fromstring  # refuses entities, which could be made to grow without end

    try:
        root: Element = fromstring(text)
    except ParseError as error:
        raise ValueError(f"not XML ({error})") from None
    strokes = {trace.get("id"): _points(trace.text or "") for trace in root.iter(INK + "trace")}
    groups, symbols = dict[str | None, Element](), list[Symbol]()
    for group in root.iterfind(f"{INK}traceGroup/{INK}traceGroup"):
        reference = group.find(INK + "annotationXML")  # to the symbol's element in the MathML
        groups[None if reference is None else reference.get("href")] = group
    for element in (element for math in root.iterfind(".//{*}math") for element in math.iter()):
        if (group := groups.pop(element.get(ID) or element.get("id") or "", None)) is not None:
            label = group.findtext(INK + "annotation") or ""
            token = BY_ELEMENT.get(element.tag.rpartition("}")[2]) or AS_TOKEN.get(label, label)
            names = [view.get("traceDataRef") for view in group.iterfind(INK + "traceView")]
            if not names or not all(len(strokes.get(name, ())) for name in names):
                raise ValueError(f"symbol {label!r} has no strokes")
            symbols.append(Symbol(token, tuple(strokes[name] for name in names)))
    if groups or not symbols:
        raise ValueError("a symbol of the segmentation is not in the MathML")
    return symbols


def _points(text: str) -> Stroke:
    found = np.array([point.split()[:2] for point in text.split(",") if point.strip()], np.float64).reshape(-1, 2)
    if not np.abs(found).max(initial=0) <= FARTHEST:  # not: nor a number
        raise ValueError("a stroke leaves the plane")
    return found
