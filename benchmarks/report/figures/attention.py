"""Attention and refinement term, step by step (benchmarks/recognition/attention.py), as a figure.

The paper's Fig. 4 shows the refinement term R only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import INKLESS
from hmerbench.benchmarks.data.synthetic import drawing
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.recognition.attention import TracedAttention
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report.figures.write import DATES, rendered, style

COLORMAPS = {  # safe for color blindness, monotonic in gray print, light enough for ink to stay readable
    name: ListedColormap(matplotlib.colormaps[colors](np.linspace(0, 0.7, 256)))
    for name, colors in (("attention", "Oranges"), ("R", "Blues"))
}
LETTERS = "abcdefgh"
FRAMED: dict[Any, Any] = {  # over the suite's style: framed images instead of axes
    "axes.grid": False,
    "axes.spines.top": True,
    "axes.spines.right": True,
    "axes.titlepad": 2,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.major.size": 2,
    "xtick.major.pad": 1,
}
WIDTH, COLUMNS, DPI = 7.0, 5, 200  # inches, tiles per row, dots per inch
TEXT: dict[str, Any] = {"parse_math": False, "family": "monospace"}
# Fig. 4 without CROHME: expressions and seeds of their drawings. Symbols recur, which is where coverage matters.
TYPESET = (("\\frac { - b + \\sqrt { b ^ { 2 } - 4 a c } } { 2 a }", 1), ("x ^ { 2 } + x ^ { 2 } + x ^ { 2 }", 1))
HANDWRITTEN = ("502_em_19", "18_em_13")  # in CROHME


def inked(attention: TracedAttention) -> list[int]:
    """The steps that predict a token with ink, and the last one (<eos>)."""
    return [step for step, token in enumerate(attention.tokens) if token not in INKLESS]


def figure(shown: Sequence[TracedAttention]) -> Figure:
    """Draw each expression's image, then for every symbol the attention and, below it, the refinement term R.

    Darker is larger; all tiles of an expression share their scales.
    """
    rows = [-(-(1 + len(inked(a))) // COLUMNS) for a in shown]
    heights = [n * (0.2 + _strip(a, WIDTH / COLUMNS - 0.1)) for n, a in zip(rows, shown, strict=True)]
    with style(FRAMED):
        fig = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained")
        parts = fig.subfigures(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
        for letter, part, attention, n in zip(LETTERS[: len(shown)], parts, shown, rows, strict=True):
            _expression(part, attention, n, letter)
    return fig


def _expression(part: Any, attention: TracedAttention, rows: int, letter: str) -> None:
    kinds = len(attention.maps)
    grid = part.subplots(rows * kinds, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    _ink(grid[0, 0], attention)
    grid[0, 0].set_title(f"({letter}) input", loc="left")
    for tile, step in enumerate(inked(attention), 1):
        row, column = divmod(tile, COLUMNS)
        _step(grid[kinds * row : kinds * (row + 1), column], attention, step)
        grid[kinds * row, column].set_title(f"{step + 1}  {attention.tokens[step]}", loc="left", **TEXT)
    if kinds > 1:
        _scales(grid[1, 0], attention)
    for row in range(1, rows):
        for axes, name in zip(grid[kinds * row :, 0], attention.maps, strict=False):
            axes.set_ylabel(name, labelpad=2)


def beside(image: Path, attention: TracedAttention) -> Path:
    """Write the figure to IMAGE.attention.png and return that path. Raises UserError if it cannot be written."""
    target = Path(f"{image}.attention.png")
    try:
        with style(FRAMED):
            write_atomically(target, rendered(figure([attention]), "png"))
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}; copy the image to a folder that can be written") from None
    return target


def _strip(attention: TracedAttention, width: float) -> float:
    """Height in inches of one step's stacked tiles, each `width` wide."""
    h, w = attention.image.shape
    return len(attention.maps) * (width * h / w + 0.06)


def _step(tiles: Sequence[Axes], attention: TracedAttention, step: int) -> None:
    for axes, (name, values) in zip(tiles, attention.maps.items(), strict=True):
        h, w = values.shape[1:]
        extent = (0, w * attention.cell[1], h * attention.cell[0], 0)
        axes.imshow(values[step], COLORMAPS[name], vmin=0, vmax=values.max(), extent=extent, interpolation="nearest")
        _ink(axes, attention)


def _ink(axes: Axes, attention: TracedAttention) -> None:
    """Draw the expression in black, framed, over what is already on the axes."""
    h, w = attention.image.shape
    ink = np.zeros((h, w, 4), np.uint8)
    ink[..., 3] = attention.image
    axes.imshow(ink, extent=(0, w, h, 0), interpolation="antialiased")
    axes.set(xlim=(0, w), ylim=(h, 0), xticks=[], yticks=[])
    axes.set_axis_on()


def _scales(axes: Axes, attention: TracedAttention) -> None:
    """Draw a color bar for each kind of map, from 0 to the expression's largest value."""
    for index, (name, values) in enumerate(attention.maps.items()):
        bar = axes.inset_axes((0.38, 0.66 - 0.55 * index, 0.5, 0.16))
        bar.imshow(np.linspace(0, 1, 256)[None], COLORMAPS[name], aspect="auto", extent=(0, 1, 0, 1))
        bar.set(yticks=[], xticks=[0, 1], xticklabels=["0", f"{values.max():.2g}"])
        bar.text(-0.08, 0.5, name, ha="right", va="center", transform=bar.transAxes)


def figure4(
    results: Path, crohme: Path | None = None, ids: Sequence[str] = (), weights: Path | None = None
) -> list[Path]:
    """Write Fig. 4 for the network's own predictions; return the paths.

    Without `crohme`, draws typeset, distorted expressions; with it, the images `ids`, which may not be redistributed.
    They go to results/figures/ if they are typeset and read by the best committed network, else to
    results/local/figures/. Raises UserError for an unknown id, and for more than eight.
    """
    recognizer = Recognizer.load(weights)
    folder = results / ("local/figures" if crohme or weights else "figures")
    if crohme is None:
        images = [drawing(latex.split(), np.random.default_rng(seed)) for latex, seed in TYPESET]
    else:
        archive = open_archive(crohme, trains=False)
        split_of = {id_: split for split in archive.splits for id_ in archive.captions(split)}
        wanted = ids or [id_ for id_ in HANDWRITTEN if id_ in split_of] or list(split_of)[-2:]
        if unknown := [id_ for id_ in wanted if id_ not in split_of]:
            raise UserError(f"{archive.path}: no expression '{unknown[0]}'; give ids of its caption.txt files")
        if len(wanted) > len(LETTERS):
            raise UserError(f"{len(wanted)} expressions are too many for one figure; give at most {len(LETTERS)} ids")
        images = [archive.image(split_of[id_], id_) for id_ in wanted]
    shown = [recognizer.attention(recognizer(255 - image)) for image in images]
    fig = figure(shown)
    paths = [folder / f"fig4-attention.{kind}" for kind in DATES]
    with style(FRAMED):
        for kind, path in zip(DATES, paths, strict=True):
            write_atomically(path, rendered(fig, kind))
    return paths
