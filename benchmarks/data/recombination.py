"""Recombined CROHME: more training expressions, drawn from the segmented pen strokes of the training set.

A new expression is one of the training set with about half of its symbols in another hand: each such symbol is
exchanged for one of the same class from anywhere in the set, fitted to its place. In half of the new expressions a
symbol of a family of alike ones (digits, small letters ...) also becomes another of that family wherever it stands,
so that the label is a new one. Every draw is keyed by (seed, copy, expression); test splits stay byte for byte.
"""

import json
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from xml.etree.ElementTree import ParseError

import cv2
import numpy as np
from defusedxml.ElementTree import fromstring
from rich.console import Console
from rich.progress import track

from benchmarks.data.crohme import MAX_IMAGE_BYTES, RECOMBINED, Archive
from benchmarks.data.store import open_store
from benchmarks.errors import UserError
from evaluation import symlg

GENERATOR = 1  # raise it whenever an expression or an image would come out otherwise
INK = "{http://www.w3.org/2003/InkML}"
MAX_INK_BYTES = 4 << 20  # of one InkML file; the largest of CROHME has 0.3 MB
FARTHEST = 1e9  # a pen's coordinate
MARGIN = 12  # px, of every image of CROHME
ANOTHER_HAND, ANOTHER_LABEL = 0.5, 0.5  # chances, of a symbol and of an expression
CANDIDATES = 12  # drawn for a symbol; the one whose proportions fit its place best is taken

# Symbols of about the same size and place on the line. Left out is what is too narrow to make room for another (1, i),
# what the structure hangs on (\sqrt, -), and what must come in pairs.
FAMILIES = tuple(
    tuple(family.split())
    for family in (
        "0 2 3 4 5 6 7 8 9",
        "a c e n o r s u v x z \\alpha",
        "b h k d \\theta \\lambda",
        "g p q y \\mu \\phi \\beta \\gamma",
        "A B C E F G H L N P R S T V X Y \\Delta",
        "+ \\times \\div \\pm",
    )
)
AS_TOKEN = {"\\lt": "<", "\\gt": ">"}  # where a segmentation writes a symbol otherwise than the captions

CONSOLE = Console(stderr=True)
Stroke = np.ndarray  # float [n, 2]: x to the right, y down, in the pen's own units


@dataclass(frozen=True)
class Symbol:
    label: str
    strokes: tuple[Stroke, ...]

    @cached_property
    def box(self) -> np.ndarray:
        """[[left, top], [right, bottom]]"""
        points = np.concatenate(self.strokes)
        return np.stack([points.min(0), points.max(0)])


@dataclass(frozen=True)
class Expression:
    """A training expression as pen strokes, in pixels of its image (ink from 0, 0)."""

    id: str
    tokens: tuple[str, ...]
    symbols: tuple[Symbol, ...]


def read_symbols(text: bytes) -> list[Symbol]:
    """The segmented symbols of an InkML file. Raises ValueError for what is no InkML with a whole segmentation."""
    try:
        root = fromstring(text)  # refuses entities, which could be made to grow without end
    except ParseError as error:
        raise ValueError(f"not XML ({error})") from None
    strokes = {trace.get("id"): _points(trace.text or "") for trace in root.iter(INK + "trace")}
    symbols, used = [], list[str | None]()
    for group in root.iterfind(f"{INK}traceGroup/{INK}traceGroup"):
        label = group.findtext(INK + "annotation") or ""
        names = [view.get("traceDataRef") for view in group.iterfind(INK + "traceView")]
        if not names or not all(len(strokes.get(name, ())) for name in names):
            raise ValueError(f"symbol {label!r} has no strokes")
        symbols.append(Symbol(AS_TOKEN.get(label, label), tuple(strokes[name] for name in names)))
        used += names
    if sorted(map(str, used)) != sorted(map(str, strokes)):
        raise ValueError("its symbols are not all of its strokes, each once")
    return symbols


def _points(text: str) -> Stroke:
    found = np.array([point.split()[:2] for point in text.split(",") if point.strip()], np.float64).reshape(-1, 2)
    if not np.abs(found).max(initial=0) <= FARTHEST:  # not: nor a number
        raise ValueError("a stroke leaves the plane")
    return found


def read_expressions(inkml: Path, archive: Archive) -> list[Expression]:
    """The training expressions whose strokes fit their images and labels. Raises UserError for no such zip."""
    found = []
    try:
        with zipfile.ZipFile(inkml) as ink:
            names = {Path(name).stem: name for name in ink.namelist() if name.endswith(".inkml")}
            captions = archive.captions("train").items()
            for id_, tokens in track(captions, "  reading strokes", console=CONSOLE, transient=True):
                if id_ not in names:
                    continue
                with ink.open(names[id_]) as file:
                    text = file.read(MAX_INK_BYTES)  # never more, whatever the header claims
                try:
                    symbols = _as_drawn(read_symbols(text), archive.image("train", id_))
                except ValueError:
                    continue
                found.append(Expression(id_, tuple(tokens), tuple(symbols)))
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"{inkml}: cannot be read as a zip of InkML files ({error}); fetch it again") from None
    if not found:
        raise UserError(f"{inkml}: no ID.inkml in it fits a training image of {archive.path}; give its pen strokes")
    return found


def _as_drawn(symbols: Sequence[Symbol], image: np.ndarray) -> list[Symbol]:
    """The same in pixels of the archive's image. ValueError where the proportions of ink and image differ."""
    points = np.concatenate([stroke for symbol in symbols for stroke in symbol.strokes])
    low, extent = points.min(0), np.ptp(points, axis=0)
    wanted = np.array(image.shape[::-1]) - 2 * MARGIN - 2  # the pen is 3 pixels wide
    axis = int(extent.argmax())
    scale = wanted[axis] / extent[axis] if extent[axis] else 1.0
    if wanted[axis] < 1 or np.abs(extent * scale - wanted).max() > 4:
        raise ValueError("the image was not drawn from these strokes")
    return [Symbol(s.label, tuple((stroke - low) * scale for stroke in s.strokes)) for s in symbols]


# ------------------------------------------------------------------------------------------- recombining


def recombine(expression: Expression, pool: Mapping[str, Sequence[Symbol]], rng: np.random.Generator) -> Expression:
    """A new expression after an old one; `pool`: what each label was written like."""
    labels = Counter(symbol.label for symbol in expression.symbols)
    renamed = _another_label(expression, labels, pool, rng) if rng.random() < ANOTHER_LABEL else {}
    symbols = []
    for symbol in expression.symbols:
        label = renamed.get(symbol.label, symbol.label)
        if label != symbol.label or (label in pool and label != r"\sqrt" and rng.random() < ANOTHER_HAND):
            symbol = _fitted(label, pool[label], symbol.box, rng)
        symbols.append(symbol)
    tokens = tuple(renamed.get(token, token) for token in expression.tokens)
    return Expression(expression.id, tokens, tuple(symbols))


def _another_label(
    expression: Expression, labels: Counter[str], pool: Mapping[str, Sequence[Symbol]], rng: np.random.Generator
) -> dict[str, str]:
    """One label of the expression and another of its family to take its place, if there is one."""
    tokens = Counter(expression.tokens)
    choices = [
        (old, family)
        for family in FAMILIES
        for old in family
        if 0 < labels[old] == tokens[old]  # else the segmentation reads the expression otherwise than its label
    ]
    if not choices:
        return {}
    old, family = choices[rng.integers(len(choices))]
    counts = np.array([len(pool.get(label, ())) * (label != old) for label in family])  # rare ones stay rare
    return {old: family[rng.choice(len(family), p=counts / counts.sum())]} if counts.any() else {}


def _fitted(label: str, donors: Sequence[Symbol], place: np.ndarray, rng: np.random.Generator) -> Symbol:
    """One of the donors, scaled and moved to `place`; its proportions change by a third at most."""
    drawn = [donors[k] for k in rng.integers(len(donors), size=CANDIDATES)]
    room = np.maximum(np.diff(place, axis=0)[0], 3)  # a dot, a bar: no narrower than the pen
    sizes = [np.maximum(np.diff(symbol.box, axis=0)[0], 1e-9) for symbol in drawn]
    stretches = [room / np.maximum(size, size.max() * 3 / room.max()) for size in sizes]
    uneven = [abs(np.log(stretch[0] / stretch[1])) for stretch in stretches]
    best = int(np.argmin(uneven))
    stretch = np.clip(stretches[best], None, stretches[best].min() * 4 / 3)
    middle, centre = drawn[best].box.mean(0), place.mean(0)
    return Symbol(label, tuple((stroke - middle) * stretch + centre for stroke in drawn[best].strokes))


def draw(expression: Expression) -> np.ndarray:
    """The image, as CROHME's are drawn: (H, W) uint8, white ink on black, strokes 3 pixels wide, a margin of 12."""
    points = np.concatenate([stroke for symbol in expression.symbols for stroke in symbol.strokes])
    low = points.min(0)
    width, height = np.rint(np.ptp(points, axis=0)).astype(int) + 2 * MARGIN + 2
    image = np.zeros((height, width), np.uint8)
    for symbol in expression.symbols:
        for stroke in symbol.strokes:
            cv2.polylines(image, [np.round(stroke - low + MARGIN + 1).astype(np.int32)], False, 255, 1)
    return cv2.dilate(image, np.ones((3, 3), np.uint8))


# ----------------------------------------------------------------------------------------------- archive


def recombined(inkml: Path, crohme: Path, out: Path, copies: int, seed: int) -> Path:
    """Makes the archive `out`: CROHME and `copies` new expressions after each of train that can be recombined.

    The same bytes for the same inputs. Raises UserError for another archive than CROHME, or an `out` that exists.
    """
    store = open_store(crohme)
    archive = Archive(store)
    if archive.name != "crohme":
        raise UserError(f"{crohme}: is {archive.edition}; only CROHME as published can be recombined")
    if out.exists():
        raise UserError(f"{out}: is there already; move it, or choose another name")
    expressions = read_expressions(inkml, archive)
    new = list(_copies(expressions, copies, seed, set(archive.captions("train"))))
    captions = "".join(f"{e.id}\t{' '.join(e.tokens)}\n" for e in new)
    mark = {"generator": GENERATOR, "seed": seed, "copies": copies}
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w") as target:
            _write(target, RECOMBINED, json.dumps(mark))
            for name in sorted(store.sizes):
                content = store.read(name, MAX_IMAGE_BYTES)
                _write(target, name, content + captions.encode() if name == "train/caption.txt" else content)
            for expression in track(new, "  drawing", console=CONSOLE, transient=True):
                graph = symlg.from_latex(expression.tokens)
                _write(target, f"train/img/{expression.id}.bmp", cv2.imencode(".bmp", draw(expression))[1].tobytes())
                _write(target, f"train/symLg/{expression.id}.lg", symlg.write(graph, expression.id))
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def _copies(expressions: Sequence[Expression], copies: int, seed: int, known: set[str]) -> Iterator[Expression]:
    """The new expressions. An id is the old one with three digits more, which leaves it with its writer's sheet where
    training data are held out."""
    pool: dict[str, list[Symbol]] = {}
    for expression in expressions:
        for symbol in expression.symbols:
            pool.setdefault(symbol.label, []).append(symbol)
    for copy, (index, old) in product(range(copies), enumerate(expressions)):
        new = recombine(old, pool, np.random.default_rng((seed, copy, index)))
        id_ = f"{old.id}{copy:03d}"
        if id_ in known:
            raise UserError(f"the id {id_} of a new expression is taken; rename that of the archive")
        yield replace(new, id=id_)


def _write(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    info = zipfile.ZipInfo(f"data/{name}")  # dated 1980, so that the same content gives the same bytes
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(info, content)
