"""Made-up handwriting for the fixed job: an archive with pen strokes that needs neither CROHME nor a font.

Expressions come from the grammar of the embedded set, and every fourth is a part of another writer's. Every symbol is a
random curve, which networks and readers do not tell from handwriting.
"""

from html import escape
from pathlib import Path

import cv2
import numpy as np

from hmerbench.benchmarks.data.archive import Archive, ink_beside, open_archive
from hmerbench.benchmarks.data.ink import ELEMENT_TOKENS, INKLESS, Canvas, Symbol
from hmerbench.benchmarks.data.sub_expressions import parts
from hmerbench.benchmarks.data.synthetic import expression
from hmerbench.benchmarks.files import write_atomically, zipped

SYMBOL_WIDTH, HEIGHTS, POINTS = 300, (300, 700), 6  # in units of the pen
SCALE = 0.08  # px per unit: symbols of 24 to 56 px
SHEET = 2  # expressions per writer, so that few are held out
ELEMENTS = {token: element for element, token in ELEMENT_TOKENS.items() if element != "mroot"}


def handwriting(folder: Path, count: int) -> Archive:
    """Make an archive of `count` training expressions, with their pen strokes beside it, in `folder`."""
    labels, captions, images, strokes = list[list[str]](), "", dict[str, bytes](), dict[str, str]()
    for number in range(count):
        draw, id_ = np.random.default_rng((1, number)), f"writer{number // SHEET}_{number % SHEET}"
        spans = parts(labels[-SHEET]) if number % 4 == 3 else []
        tokens = labels[-SHEET][slice(*spans[-1])] if spans else expression(draw)
        labels.append(tokens)
        symbols = [_symbol(token, place, draw) for place, token in enumerate(t for t in tokens if t not in INKLESS)]
        captions += f"{id_}\t{' '.join(tokens)}\n"
        image = Canvas.of(symbols, SCALE).draw(symbols)
        images[f"data/train/img/{id_}.bmp"] = cv2.imencode(".bmp", image)[1].tobytes()
        strokes[f"train/{id_}.inkml"] = _inkml(symbols)
    path = folder / "data.zip"
    write_atomically(path, zipped({"data/train/caption.txt": captions, **images}))
    write_atomically(ink_beside(path), zipped(strokes))
    return open_archive(path)


def _symbol(token: str, place: int, draw: np.random.Generator) -> Symbol:
    """A symbol of one random stroke, in its place on the line."""
    height = draw.integers(*HEIGHTS)
    stroke = np.stack([draw.integers(0, SYMBOL_WIDTH, POINTS), draw.integers(0, height, POINTS)], axis=1)
    stroke[:, 0] += place * SYMBOL_WIDTH * 4 // 3
    return Symbol(token, (stroke,))


def _inkml(symbols: list[Symbol]) -> str:
    """InkML with flat MathML, in the order of the caption."""
    traces = groups = math = ""
    for number, symbol in enumerate(symbols):
        points = ", ".join(f"{x} {y}" for x, y in symbol.strokes[0].tolist())
        traces += f'<trace id="{number}">{points}</trace>'
        label = f'<annotation type="truth">{escape(symbol.token)}</annotation>'
        views = f'<traceView traceDataRef="{number}"/><annotationXML href="s{number}"/>'
        groups += f"<traceGroup>{label}{views}</traceGroup>"
        math += f'<{ELEMENTS.get(symbol.token, "mi")} xml:id="s{number}"/>'
    math = f'<math xmlns="http://www.w3.org/1998/Math/MathML">{math}</math>'
    return f'<ink xmlns="http://www.w3.org/2003/InkML">{math}{traces}<traceGroup>{groups}</traceGroup></ink>'
