"""Ink whose symbols are slanted bars, which readers do not tell from handwriting: InkML files, and expressions."""

import zipfile
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.data.ink import INKLESS, Canvas, Ink, Symbol
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.evaluation.stores import ZipStore

Box = tuple[float, float, float, float]  # left, top, right, bottom
ELEMENTS = {r"\frac": "mfrac", r"\sqrt": "msqrt"}


def inkml(caption: str, forget: str | None = None) -> str:
    """Slanted bars side by side under flat MathML, in the caption's order; `forget` omits a token from the MathML."""
    tokens = [token for token in caption.split() if token not in INKLESS]
    traces = groups = math = ""
    for number, token in enumerate(tokens):
        traces += f'<trace id="{number}">{500 * number} 5000, {500 * number + 100} 5280</trace>'
        label = {r"\frac": "-", "<": r"\lt"}.get(token, token).replace("<", "&lt;")
        views = f'<traceView traceDataRef="{number}"/><annotationXML href="s{number}"/>'
        groups = f'<traceGroup><annotation type="truth">{label}</annotation>{views}</traceGroup>' + groups
        if token != forget:
            math += f'<{ELEMENTS.get(token, "mi")} xml:id="s{number}"/>'
    math = f'<math xmlns="http://www.w3.org/1998/Math/MathML">{math}</math>'
    return f'<ink xmlns="http://www.w3.org/2003/InkML">{math}{traces}<traceGroup>{groups}</traceGroup></ink>'


def packed(path: Path, files: dict[str, str]) -> ZipStore:
    with zipfile.ZipFile(path, "w") as archive:
        for id_, text in files.items():
            archive.writestr(f"train/inkml/{id_}.inkml", text)
    return ZipStore(path, root="")


def written(id_: str, caption: str, *boxes: Box) -> Sample:
    """An expression whose symbols are the diagonals of the boxes; without boxes, squares side by side."""
    tokens = tuple(caption.split())
    places = [place for place, token in enumerate(tokens) if token not in INKLESS]
    boxes = boxes or tuple((100 * i, 0, 100 * i + 80, 80) for i in range(len(places)))
    corners = np.array(boxes, float).reshape(-1, 2, 2)
    symbols = {place: Symbol(tokens[place], (stroke,)) for place, stroke in zip(places, corners, strict=True)}
    canvas = Canvas.of(symbols.values(), 0.5)
    return Sample(id_, tokens, canvas.draw(symbols.values()), Ink(symbols, canvas))
