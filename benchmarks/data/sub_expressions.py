r"""Sub-expressions: more, and shorter, training expressions, cut out of the pen strokes of the training set.

A well-formed part of one line of an expression (`x ^ { 2 } + 1` of `\frac { x ^ { 2 } + 1 } { y }`) becomes a training
expression of its own. Its strokes are drawn again in the size in which CROHME's images show an expression, as if the
part had been all that was written (Le, Indurkhya and Nakagawa, Pattern Recognition Letters 128, 2019: "decomposition").
What is cut depends on the expression alone, not on the seed of a training nor on the other expressions.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from xml.etree.ElementTree import Element, ParseError

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.data.samples import Sample
from benchmarks.data.store import FolderStore, ZipStore
from benchmarks.errors import UserError

INK = "{http://www.w3.org/2003/InkML}"
ID = "{http://www.w3.org/XML/1998/namespace}id"
MAX_INK_BYTES = 4 << 20  # of one InkML file; the largest of CROHME has 0.3 MB
FARTHEST = 1e9  # a pen's coordinate
GENERATOR = 1  # key of its draws; whoever changes what is cut or drawn raises config.SCHEMA, too: another run

SYMBOL_HEIGHT = 28  # px, the mean of an image of CROHME (median over train; it varies by a fifth)
ENLARGED = 2.5  # times the size in the whole expression at most
SIDES = (230, 1000)  # px, height and width at most
MARGIN = 12  # px around the ink of every image of CROHME

STRUCTURE = frozenset({"{", "}", "^", "_", r"\limits"})  # tokens that no stroke is written for
CLOSING = {"(": ")", "[": "]", r"\{": r"\}"}
# No part begins or ends with one of these, as no expression does; a minus may begin one.
BETWEEN = frozenset("+-=</>,.!|") | {r"\times", r"\div", r"\pm", r"\leq", r"\geq", r"\neq", r"\rightarrow"}
BETWEEN |= {r"\in", r"\cdot", r"\exists", r"\forall"}
AS_TOKEN = {r"\lt": "<", r"\gt": ">"}  # where a segmentation writes a symbol otherwise than the captions
BY_ELEMENT = {"mfrac": r"\frac", "msqrt": r"\sqrt", "mroot": r"\sqrt"}  # symbols whose token stands for the structure

Stroke = np.ndarray  # float [n, 2]: x to the right, y down, in the pen's own units
Span = tuple[int, int]  # of tokens: from, to before
console = Console(stderr=True)


@dataclass(frozen=True)
class Symbol:
    """A written symbol and its token in the caption."""

    token: str
    strokes: tuple[Stroke, ...]

    @property
    def height(self) -> float:
        """From its highest to its lowest point, in the pen's units."""
        return float(np.ptp(np.concatenate(self.strokes)[:, 1]))


def sub_expressions(ink: ZipStore | FolderStore, samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` parts of each of the `samples`, which are sought by id among the InkML files of `ink`.

    Samples without ink, or whose ink is segmented otherwise than their caption reads, give none.
    Raises UserError where none gives any.
    """
    names = {PurePosixPath(name).stem: name for name in ink.sizes if name.endswith(".inkml")}
    found = []
    for sample in track(samples, "  cutting sub-expressions", console=console, transient=True):
        if sample.id not in names or not (spans := parts(sample.tokens)):
            continue
        try:
            symbols = read_symbols(ink.read(names[sample.id], MAX_INK_BYTES))
        except ValueError:
            continue
        places = [place for place, token in enumerate(sample.tokens) if token not in STRUCTURE]
        if [symbol.token for symbol in symbols] == [sample.tokens[place] for place in places]:
            found += _cut(sample, dict(zip(places, symbols, strict=True)), spans, count)
    if not found:
        raise UserError(f"{ink.path}: holds no segmented pen strokes (ID.inkml) of these training expressions")
    return found


def _cut(sample: Sample, symbols: dict[int, Symbol], spans: Sequence[Span], count: int) -> list[Sample]:
    """`count` of the spans, longer ones more often, drawn as images."""
    draw = np.random.default_rng((GENERATOR, zlib.crc32(sample.id.encode())))
    lengths = np.array([stop - start for start, stop in spans])
    chosen = draw.choice(len(spans), min(count, len(spans)), replace=False, p=lengths / lengths.sum())
    largest = ENLARGED * SYMBOL_HEIGHT / _mean_height(list(symbols.values()))
    cut = []
    for start, stop in (spans[index] for index in chosen):
        part = [symbol for place, symbol in symbols.items() if start <= place < stop]
        scale = min(largest, SYMBOL_HEIGHT / _mean_height(part))
        cut.append(Sample(f"{sample.id}-{start}-{stop}", sample.tokens[start:stop], draw_image(part, scale)))
    return cut


def _mean_height(symbols: Sequence[Symbol]) -> float:
    return max(1e-9, float(np.mean([symbol.height for symbol in symbols])))


def draw_image(symbols: Sequence[Symbol], scale: float) -> np.ndarray:
    """The symbols `scale` times as large, (H, W) uint8, as CROHME's are drawn: white ink 3 px wide on black.

    Smaller where they would not fit SIDES.
    """
    strokes = [stroke for symbol in symbols for stroke in symbol.strokes]
    points = np.concatenate(strokes)
    low, (wide, high) = points.min(0), np.maximum(np.ptp(points, axis=0), 1e-9)
    scale = min(scale, SIDES[0] / high, SIDES[1] / wide)
    width, height = (round(side * scale) + 2 * MARGIN + 2 for side in (wide, high))
    image = np.zeros((height, width), np.uint8)
    for stroke in strokes:
        cv2.polylines(image, [np.rint((stroke - low) * scale + MARGIN + 1).astype(np.int32)], False, 255, 1)
    return cv2.dilate(image, np.ones((3, 3), np.uint8))


# ------------------------------------------------------------------------------------------------ captions


def parts(tokens: Sequence[str]) -> list[Span]:
    """The spans of a caption that are expressions by themselves: of two symbols at least, and less than all."""
    found = set()
    for line in lines(tokens):
        for first in range(len(line)):
            open_brackets: list[str] = []
            for last in range(first, len(line)):
                start, stop = line[first][0], line[last][1]
                token = tokens[line[last][0]]
                if token in CLOSING:
                    open_brackets.append(CLOSING[token])
                elif token in CLOSING.values() and (not open_brackets or open_brackets.pop() != token):
                    break
                minus = tokens[start] == "-" and last > first
                lone = token in BETWEEN or (tokens[start] in BETWEEN and not minus)
                symbols = sum(token not in STRUCTURE for token in tokens[start:stop])
                if not open_brackets and not lone and symbols > 1 and (start, stop) != (0, len(tokens)):
                    found.add((start, stop))
    return sorted(found)


def lines(tokens: Sequence[str]) -> list[list[Span]]:
    """The lines of a caption (itself, numerators, scripts …), each as the spans of its symbols with all they carry.

    None of a caption that is not well-formed.
    """
    found: list[list[Span]] = []

    def line(place: int, end: str | None) -> int:
        """Reads to the token `end`, or to the end of the caption; returns the place after it."""
        spans: list[Span] = []
        found.append(spans)
        while place < len(tokens) and tokens[place] != end:
            start, place = place, after_symbol(place)
            while place < len(tokens) and tokens[place] in ("^", "_", r"\limits"):
                place = place + 1 if tokens[place] == r"\limits" else after_group(place + 1)
            spans.append((start, place))
        if end is not None and place == len(tokens):
            raise ValueError(f"no {end} closes it")
        return place + 1

    def after_symbol(place: int) -> int:
        if tokens[place] in ("{", "}", "^", "_"):
            raise ValueError("a group or a script of nothing")
        if tokens[place] == r"\frac":
            return after_group(after_group(place + 1))
        if tokens[place] == r"\sqrt":
            index = tokens[place + 1] == "["
            return after_group(line(place + 2, "]") if index else place + 1)
        return place + 1

    def after_group(place: int) -> int:
        return line(place + 1, "}") if tokens[place] == "{" else place + 1

    try:
        line(0, None)
    except (ValueError, IndexError, RecursionError):
        return []
    return found


# --------------------------------------------------------------------------------------------------- InkML


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
    groups = {_reference(group): group for group in root.iterfind(f"{INK}traceGroup/{INK}traceGroup")}
    symbols = []
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


def _reference(group: Element) -> str | None:
    """The id of the symbol's element in the MathML."""
    reference = group.find(INK + "annotationXML")
    return None if reference is None else reference.get("href")


def _points(text: str) -> Stroke:
    found = np.array([point.split()[:2] for point in text.split(",") if point.strip()], np.float64).reshape(-1, 2)
    if not np.abs(found).max(initial=0) <= FARTHEST:  # not: nor a number
        raise ValueError("a stroke leaves the plane")
    return found
