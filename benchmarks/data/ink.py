"""Pen strokes: the handwritten symbols of an expression, read from InkML and rendered as an image."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from xml.etree.ElementTree import Element, ParseError

import cv2
import numpy as np

INK = "{http://www.w3.org/2003/InkML}"
ID = "{http://www.w3.org/XML/1998/namespace}id"
MAX_INK_BYTES = 4 << 20  # of one InkML file; CROHME's largest is 0.3 MB
MAX_COORDINATE = 1e9

MARGIN = 12  # px around the ink of every image of CROHME
MAX_SIDES = (230, 1000)  # px, height and width of rendered ink

INKLESS = frozenset({"{", "}", "^", "_", r"\limits"})  # tokens without strokes of their own
LABEL_TOKENS = {r"\lt": "<", r"\gt": ">"}  # labels of a segmentation that differ from the caption's token
ELEMENT_TOKENS = {"mfrac": r"\frac", "msqrt": r"\sqrt", "mroot": r"\sqrt"}  # MathML elements drawn as a symbol

Stroke = np.ndarray  # float [n, 2]: x to the right, y down, in the pen's own units


@dataclass(frozen=True)
class Symbol:
    """A handwritten symbol and its token in the caption."""

    token: str
    strokes: tuple[Stroke, ...]

    @cached_property
    def low(self) -> np.ndarray:
        """Upper left corner (x, y) of the bounding box."""
        return np.min([stroke.min(0) for stroke in self.strokes], axis=0)

    @cached_property
    def extent(self) -> np.ndarray:
        """Width and height of the bounding box."""
        return np.max([stroke.max(0) for stroke in self.strokes], axis=0) - self.low


Symbols = dict[int, Symbol]  # symbols of an expression by the position of their token in the caption


@dataclass(frozen=True)
class Canvas:
    """Placement of ink on an image."""

    low: np.ndarray  # upper left corner (x, y) of the ink, in pen units
    scale: float  # px per pen unit
    height: int
    width: int

    @classmethod
    def of(cls, symbols: Iterable[Symbol], scale: float) -> "Canvas":
        """Canvas for a new image of the symbols at `scale`, or smaller if they would exceed MAX_SIDES."""
        low, (wide, high) = extent(symbols)
        scale = min(scale, MAX_SIDES[0] / high, MAX_SIDES[1] / wide)
        return cls(low, scale, *(round(side * scale) + 2 * MARGIN + 2 for side in (high, wide)))

    @classmethod
    def under(cls, symbols: Iterable[Symbol], height: int, width: int) -> "Canvas":
        """Canvas of an existing image of this size that shows the symbols."""
        low, (wide, high) = extent(symbols)
        border = 2 * MARGIN + 2
        return cls(low, (width - border) / wide if wide > high else (height - border) / high, height, width)

    def draw(self, symbols: Iterable[Symbol]) -> np.ndarray:
        """Render the symbols as CROHME does: (height, width) uint8, white strokes 3 px wide on black."""
        return self.draw_strokes(stroke for symbol in symbols for stroke in symbol.strokes)

    def draw_strokes(self, strokes: Iterable[Stroke]) -> np.ndarray:
        image = np.zeros((self.height, self.width), np.uint8)
        for stroke in strokes:
            points = np.rint((stroke - self.low) * self.scale + MARGIN + 1).astype(np.int32)
            cv2.polylines(image, [points], False, 255, 1)
        return cv2.dilate(image, np.ones((3, 3), np.uint8))


def extent(symbols: Iterable[Symbol]) -> tuple[np.ndarray, np.ndarray]:
    """Bounding box of all symbols: upper left corner (x, y); width and height, neither of them 0."""
    points = np.concatenate([stroke for symbol in symbols for stroke in symbol.strokes])
    return points.min(0), np.maximum(np.ptp(points, axis=0), 1e-9)


def largest_scale(wide: float, high: float, border: float, max_area: float) -> float:
    """The scale at which ink with a border, in px of both sides, has `max_area` pixels: the root of a quadratic
    equation."""
    a, b, c = wide * high, border * (wide + high), max_area - border**2
    if not a:  # a bar, or a point
        return c / b if b else 1.0
    return float((np.sqrt(b**2 + 4 * a * c) - b) / (2 * a))


@dataclass(frozen=True)
class Ink:
    """The handwritten symbols of an expression and their placement on its image."""

    symbols: Symbols
    canvas: Canvas


def symbols_of(text: bytes, tokens: Sequence[str]) -> Symbols | None:
    """The symbols of an InkML file; None if the file is damaged or its segmentation does not match `tokens`."""
    try:
        symbols = read_symbols(text)
    except ValueError:
        return None
    places = [place for place, token in enumerate(tokens) if token not in INKLESS]
    if [symbol.token for symbol in symbols] != [tokens[place] for place in places]:
        return None
    return dict(zip(places, symbols, strict=True))


def read_symbols(text: bytes) -> list[Symbol]:
    """The symbols of an InkML file in the order of its MathML, which is that of LaTeX.

    Raises ValueError for anything but InkML, and if MathML and segmentation disagree.
    """
    root = parsed(text)
    strokes = {trace.get("id"): points_of(trace.text or "") for trace in root.iter(INK + "trace")}
    groups, symbols = dict[str | None, Element](), list[Symbol]()
    for group in root.iterfind(f"{INK}traceGroup/{INK}traceGroup"):
        reference = group.find(INK + "annotationXML")  # names the symbol's element in the MathML
        groups[None if reference is None else reference.get("href")] = group
    for element in _mathematics(root):
        if (group := groups.pop(element.get(ID) or element.get("id") or "", None)) is not None:
            label = group.findtext(INK + "annotation") or ""
            token = ELEMENT_TOKENS.get(element.tag.rpartition("}")[2]) or LABEL_TOKENS.get(label, label)
            names = [view.get("traceDataRef") for view in group.iterfind(INK + "traceView")]
            if not names or not all(len(strokes.get(name, ())) for name in names):
                raise ValueError(f"symbol {label!r} has no strokes")
            symbols.append(Symbol(token, tuple(strokes[name] for name in names)))
    if groups or not symbols:
        raise ValueError("a symbol of the segmentation is not in the MathML")
    return symbols


def traces(text: bytes) -> list[Stroke]:
    """All strokes of an InkML file in the order in which they were drawn. Raises ValueError as `read_symbols`."""
    strokes = (points_of(trace.text or "") for trace in parsed(text).iter(INK + "trace"))
    return [stroke for stroke in strokes if len(stroke)]


def parsed(text: bytes) -> Element:
    """The root of an XML file. Raises ValueError for anything else."""
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        return fromstring(text)
    except DefusedXmlException:
        raise ValueError("declares XML entities, which could expand without bound") from None
    except (ParseError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f"not XML ({error})") from None


def _mathematics(root: Element) -> Iterator[Element]:
    """The elements of <math>, each once however <math> is nested, in the order of the document."""
    todo = [(root, False)]
    while todo:
        element, inside = todo.pop()
        if inside := inside or element.tag.rpartition("}")[2] == "math":
            yield element
        todo += [(child, inside) for child in reversed(element)]


def points_of(text: str) -> Stroke:
    """The points of a trace. Raises ValueError for one without y, or with coordinates that are no numbers in range."""
    pairs = [point.split()[:2] for point in text.split(",") if point.strip()]
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError("a point of a stroke has no y")
    try:
        points = np.array(pairs, np.float64).reshape(-1, 2)
    except ValueError:
        raise ValueError("a stroke has coordinates that are no numbers") from None
    if not np.abs(points).max(initial=0) <= MAX_COORDINATE:  # `not <=` refuses NaN as well
        raise ValueError("a stroke has coordinates out of range")
    return points
