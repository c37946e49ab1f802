"""The embedded set: expressions from a small grammar, typeset, then distorted to resemble handwriting.

Generated locally, it needs no download and contains nothing from CROHME. Its archive has CROHME's layout,
vocabulary and normal form, so the whole pipeline from data to tables runs on it; its scores say nothing about
handwriting. Every expression and image comes from a generator keyed by (seed, split, index) alone.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import cv2
import matplotlib
import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextToPath
from numpy.typing import ArrayLike

from hmerbench.benchmarks.data.archive import EMBEDDED_MARKER, open_archive
from hmerbench.benchmarks.data.ink import MARGIN
from hmerbench.benchmarks.data.pictures import ZHANG_SUEN, thin
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically, zipped
from hmerbench.benchmarks.printing import progress
from hmerbench.evaluation import symlg

GENERATOR = 1  # raise it with every change of an expression or an image

# --------------------------------------------------------------------------------------- expressions

# Symbols from frequent to rare, drawn by Zipf's law with a floor: a small network learns the frequent ones in minutes,
# and a set of the default size contains them all.
SYMBOLS = {
    "<atom>": "1 x 2 a 3 n y 0 4 b 5 z i c \\theta \\alpha d 6 8 t \\pi \\beta f p k 7 9 \\infty A m r e X B "
    "u C q j g v h R s F E w N L S Y l o P V H M T G I \\cdots \\phi \\gamma \\sigma \\mu \\ldots \\Delta "
    "\\lambda \\Pi",
    "<letter>": "x a n y b z i c k f t d p m A u q B",
    "<digit>": "2 1 3 0 4 5 6 8 7 9",
    "<op>": "+ - = \\times \\div \\leq \\pm \\cdot < \\geq \\rightarrow / , \\neq > \\in",
    "<fn>": "\\sin \\cos \\log \\tan",
    "<name>": "f g P h p",
}

# Weight and form of an expression; <x> is another expression, <s> a script, any other slot one of SYMBOLS.
EXPRESSIONS = [
    (10, "<atom>"),
    (9, "<x> <op> <x>"),
    (4, "<atom> <x>"),
    (1, "- <x>"),
    (1, "<fn> <x>"),
    (0.3, "\\sum <x>"),
    (0.3, "<letter> !"),
    (1, "<digit> <digit>"),
    (0.5, "<digit> . <digit>"),
    (1.2, "( <x> )"),
    (0.4, "[ <x> ]"),
    (0.4, "| <x> |"),
    (0.3, "\\{ <x> \\}"),
    (1, "<name> ( <x> )"),
    (3, "\\sqrt { <x> }"),
    (0.4, "\\sqrt [ <digit> ] { <x> }"),
    (10, "<letter> ^ { 2 }"),
    (14, "<letter> ^ { <s> }"),
    (14, "<letter> _ { <s> }"),
    (1.5, "<letter> ^ { \\prime }"),
    (3, "<letter> _ { <s> } ^ { <s> }"),
    (2, "( <x> ) ^ { <s> }"),
    (7, "\\frac { <x> } { <x> }"),
    (0.6, "\\log _ { <digit> } <x>"),
    (1, "\\sum \\limits _ { <letter> = <digit> } ^ { <atom> } <x>"),
    (0.6, "\\sum \\limits _ { <s> } <x>"),
    (0.8, "\\int <x> d <letter>"),
    (1, "\\int \\limits _ { <atom> } ^ { <atom> } <x> d <letter>"),
    (1, "\\lim \\limits _ { <letter> \\rightarrow <atom> } <x>"),
    (0.4, "\\forall <letter> \\in <x>"),
    (0.4, "\\exists <letter> \\in <x>"),
    (0.4, "<atom> , \\ldots , <atom>"),
]
SCRIPTS = [  # short ones only: at script size, longer ones would be illegible
    (9, "<atom>"),
    (1, "<digit> <digit>"),
    (1, "<letter> <letter>"),
    (1, "- <atom>"),
    (1, "<letter> + <digit>"),
    (1, "<letter> - <digit>"),
    (0.5, "<letter> , <letter>"),
    (0.5, "\\frac { <digit> } { <digit> }"),
]
MEDIAN_LENGTH, LENGTH_SPREAD, LONGEST = 4.9, 0.85, 24

T = TypeVar("T")


def expression(rng: np.random.Generator) -> list[str]:
    """Tokens of a random expression in CROHME's normal form; lengths are about log-normal, median 4."""
    return _grow(rng, int(np.clip(rng.lognormal(np.log(MEDIAN_LENGTH), LENGTH_SPREAD), 1, LONGEST)))


def _grow(rng: np.random.Generator, length: int) -> list[str]:
    """An expression of `length` tokens (a script counts as one): a form that fits, its <x> filled recursively."""
    forms = [(weight, form.split()) for weight, form in EXPRESSIONS]
    form = _choose(rng, [(w, f) for w, f in forms if len(f) == length or (len(f) < length and "<x>" in f)])
    shares = rng.dirichlet(np.ones(form.count("<x>"))) if "<x>" in form else np.ones(1)
    extra = rng.multinomial(length - len(form), shares).tolist()
    tokens: list[str] = []
    for part in form:
        if part == "<x>":
            tokens += _grow(rng, 1 + extra.pop())
        elif part == "<s>":
            tokens += [_symbol(rng, slot) for slot in _choose(rng, SCRIPTS).split()]
        else:
            tokens.append(_symbol(rng, part))
    return tokens


def _symbol(rng: np.random.Generator, part: str) -> str:
    """A random symbol for a slot; any other part as it is."""
    if part not in SYMBOLS:
        return part
    return _choose(rng, [(_zipf(rank) + 0.004, symbol) for rank, symbol in enumerate(SYMBOLS[part].split())])


def _zipf(rank: int) -> float:
    return (rank + 1) ** -1.5


def _choose(rng: np.random.Generator, weighted: Sequence[tuple[float, T]]) -> T:
    weights = np.array([weight for weight, _ in weighted])
    return weighted[rng.choice(len(weighted), p=weights / weights.sum())][1]


# --------------------------------------------------------------------------------------------- images

FONTS = ("dejavusans", "dejavuserif", "cm", "stix", "stixsans")
UNIT = TextToPath.FONT_SCALE  # outlines are in units of 1/100 em
_typeset = TextToPath()
_INTEGRAL = re.compile(r"\\int \\limits _ { (\S+) } \^ { (\S+) }")
_outlines: dict = {}  # by font and glyph; Matplotlib adds glyphs as they occur


def drawing(tokens: list[str], rng: np.random.Generator) -> np.ndarray:
    """A distorted drawing of an expression: (H, W) uint8, white ink on black, strokes 2 to 4 pixels wide."""
    font = _choose(rng, [(_zipf(rank), font) for rank, font in enumerate(FONTS)])
    contours = [_jitter(symbol, rng) for symbol in _symbols(tokens, font) if symbol]
    sizes = [len(contour) for symbol in contours for contour in symbol]
    points = np.concatenate([contour for symbol in contours for contour in symbol])
    points = _bend(_lean(points, rng), rng) * (rng.uniform(36, 44) / UNIT) * [1, -1]
    points += MARGIN - points.min(0)
    width, height = np.ceil(points.max(0)).astype(int) + MARGIN
    canvas = np.zeros((height, width), np.uint8)
    pieces = np.split(np.round(points).astype(np.int32), np.cumsum(sizes)[:-1])
    for symbol in contours:  # separately: even-odd filling would cut holes where symbols overlap
        cv2.fillPoly(canvas, [pieces.pop(0) for _ in symbol], 1)
    pen = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3)) if rng.random() < 0.3 else np.ones((3, 3), np.uint8)
    return cv2.dilate(thin(canvas, ZHANG_SUEN), pen) * 255


def _symbols(tokens: list[str], font: str) -> Iterator[list[np.ndarray]]:
    """The typeset symbols, each a list of closed contours (n, 2), y upwards; a bar is a symbol, too."""
    global _outlines
    source = _INTEGRAL.sub(r"\\overset{\2}{\\underset{\1}{\\int}}", " ".join(tokens))
    source = source.replace("\\limits", "").replace("\\frac", "\\dfrac")  # \sum and \lim have limits by themselves
    source = re.sub(r" +(?![A-Za-z])", "", source)  # mathtext sets no script after a blank
    prop = FontProperties(math_fontfamily=font)
    glyphs, _outlines, bars = _typeset.get_glyphs_mathtext(prop, f"${source}$", glyph_map=_outlines)
    for glyph, x, y, scale in glyphs:
        yield [contour * scale + [x, y] for contour in _contours(glyph)]
    for vertices, codes in bars:
        yield _flatten(vertices, codes)


@cache
def _contours(glyph: str) -> list[np.ndarray]:
    return _flatten(*_outlines[glyph])


def _flatten(vertices: ArrayLike, codes: ArrayLike) -> list[np.ndarray]:
    """Curves to polygons with a point at least every 6 units, so that straight lines can bend too."""
    dense = []
    for polygon in map(np.asarray, Outline(vertices, codes).to_polygons()):
        steps = np.maximum(1, np.ceil(np.linalg.norm(np.diff(polygon, axis=0), axis=1) / 6)).astype(int)
        at = np.concatenate([i + np.arange(n) / n for i, n in enumerate(steps)])
        whole = np.arange(len(polygon))
        dense.append(np.stack([np.interp(at, whole, polygon[:, k]) for k in (0, 1)], axis=1))
    return dense


def _jitter(symbol: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Turns, stretches and shifts one symbol a little about its center; a long bar less than a letter."""
    points = np.concatenate(symbol)
    low, high = points.min(0), points.max(0)
    center, loose = (low + high) / 2, 0.04 * min(1, UNIT / (high - low).max())
    matrix = _rotation(rng.normal(0, loose)) * rng.normal(1, loose, (2, 1))
    shift = rng.normal(0, 0.015 * UNIT, 2)
    return [(contour - center) @ matrix + center + shift for contour in symbol]


def _lean(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rotation, slant and aspect of the whole line."""
    aspect = np.exp(rng.normal(0, 0.06))
    slant = np.array([[1, 0], [rng.uniform(-0.1, 0.2), 1]])
    return (points * [aspect, 1 / aspect]) @ slant @ _rotation(rng.normal(0, 0.02))


def _bend(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A smooth elastic displacement: a few sine waves of half an em to two ems."""
    waves = 5
    angle, phase = rng.uniform(0, 2 * np.pi, (2, waves))
    frequency = 2 * np.pi / (rng.uniform(0.6, 2.0, waves) * UNIT)
    direction = np.stack([np.cos(angle), np.sin(angle)]) * frequency
    amplitude = rng.normal(0, 0.012 * UNIT, (waves, 2))
    return points + np.sin(points @ direction + phase) @ amplitude


def _rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


# -------------------------------------------------------------------------------------------- archive


def embedded(path: Path, seed: int = 7, train: int = 2400, test: int = 300) -> Path:
    """Make the embedded set of this seed and these sizes at `path` (a zip) unless it exists, and return `path`.

    Raises UserError if `path` is any other archive: only an embedded set is overwritten.
    """
    mark = {"generator": GENERATOR, "seed": seed, "train": train, "test": test}
    if path.exists():
        existing = open_archive(path).mark
        if existing is None:
            raise UserError(f"{path}: not an embedded set; move it, or choose another path for the set")
        if existing.items() >= mark.items():
            return path
    sizes = {"train": train, "test": test}
    files = {EMBEDDED_MARKER: json.dumps(mark | {"matplotlib": matplotlib.__version__}), **_files(seed, sizes)}
    write_atomically(path, zipped({f"data/{name}": content for name, content in files.items()}))
    return path


def _files(seed: int, sizes: dict[str, int]) -> dict[str, str | bytes]:
    """The archive's files by name. Test expressions of more than three tokens do not occur in train; there are too few
    shorter ones to keep the splits disjoint."""
    known: set[str] = set()
    work = [(split, index) for split, size in sizes.items() for index in range(size)]
    captions, files = dict.fromkeys(sizes, ""), dict[str, str | bytes]()
    for split, index in progress(work, "making the embedded set"):
        rng = np.random.default_rng((seed, list(sizes).index(split), index))
        tokens = expression(rng)
        while split != "train" and len(tokens) > 3 and " ".join(tokens) in known:
            tokens = expression(rng)
        id_, latex = f"{split}_{index:04d}", " ".join(tokens)
        captions[split] += f"{id_}\t{latex}\n"
        if split == "train":
            known.add(latex)
        files[f"{split}/img/{id_}.bmp"] = cv2.imencode(".bmp", drawing(tokens, rng))[1].tobytes()
        files[f"{split}/symLg/{id_}.lg"] = symlg.lg_text(symlg.from_latex(latex), id_)
    return files | {f"{split}/caption.txt": text for split, text in captions.items()}
