"""InkML of any edition of CROHME and of MathWriting, drawn as CROHME's bitmaps were.

Of each expression the mean height of its strokes, those lower than a fifth of the mean left out (bars, dots), is 28 px
on the published bitmaps, whatever the pen's unit (median over 199 of CROHME's 28.0 px, middle half within 0.8 %).
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

import numpy as np

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS
from hmerbench.benchmarks.data.importing.source import Expression, Source, split_of
from hmerbench.benchmarks.data.importing.tables import THIRD, pairs
from hmerbench.benchmarks.data.ink import INK, MARGIN, MAX_INK_BYTES, Canvas, Stroke, largest_scale, parsed, points_of
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation.scoring.inputs import composed
from hmerbench.models.files import one_line

STROKE_HEIGHT = 28.0  # px
LOW = 0.2  # of the mean height: lower strokes do not count
TRUTHS = ("normalizedLabel", "truth", "label")  # annotations of LaTeX; the first that is there counts
BORDER = 2 * MARGIN + 2


def read(source: Source) -> Iterator[Expression]:
    """The expressions of all files; lists (ID, LaTeX) have that of those that do not tell it."""
    inks = source.tables(".inkml")
    listed: dict[str, dict[PurePosixPath, str]] = {composed(PurePosixPath(name).stem): {} for name in inks}
    for table in source.tables(".txt", ".tsv"):
        for name, latex in pairs(source.filled_lines(table)):
            if (stem := composed(name.removesuffix(".inkml").rpartition("/")[2])) in listed:
                listed[stem].setdefault(PurePosixPath(table).parent, latex)
    for name in inks:
        path = PurePosixPath(name)
        try:
            strokes, notes = ink_of(source.read(name, MAX_INK_BYTES))
            latex = _truth(notes) or _nearest(listed[composed(path.stem)], path)
            if not latex:
                raise ValueError("no annotation of its LaTeX (truth, normalizedLabel or label)")
            image = drawn(strokes)
        except (ValueError, UserError) as error:
            source.leave_out(name, one_line(error))
            continue
        told = next(iter(notes.get("splitTagOriginal", ())), "").lower()
        split = {"synthetic": "train", "symbols": "train"}.get(told, told)
        writer = next(iter(notes.get("writer", ())), "")
        yield Expression(path.stem, image, latex, split or split_of(path.parent.as_posix() + "/x"), writer)


def ink_of(content: bytes) -> tuple[list[Stroke], dict[str, list[str]]]:
    """The strokes of a file that have points, and its annotations by type. Raises ValueError for anything but InkML."""
    root = parsed(content)
    if root.tag.rpartition("}")[2] != "ink":
        raise ValueError("not InkML")
    namespace = INK if root.tag.startswith(INK) else ""
    strokes = [points_of(trace.text or "") for trace in root.iter(namespace + "trace")]
    notes: dict[str, list[str]] = {}
    for note in root.iterfind(namespace + "annotation"):
        notes.setdefault(note.get("type", ""), []).append((note.text or "").strip())
    strokes = [stroke.repeat(2, axis=0) if len(stroke) == 1 else stroke for stroke in strokes]  # a dot is a line, too
    return [stroke for stroke in strokes if len(stroke)], notes


def _truth(notes: dict[str, list[str]]) -> str:
    for kind in TRUTHS:
        if told := {text for text in notes.get(kind, ()) if text}:
            if len(told) > 1:
                raise ValueError(f"{len(told)} different annotations of its LaTeX ({kind})")
            return told.pop()
    return ""


def _nearest(listed: dict[PurePosixPath, str], path: PurePosixPath) -> str:
    """What the list in the nearest folder says, or all lists below it alike; "" if none does."""
    for folder in path.parents:
        if below := {latex for place, latex in listed.items() if place.is_relative_to(folder)}:
            if folder not in listed and len(below) > 1:
                raise ValueError(f"{len(below)} different captions in lists of other folders")
            if "\t" in (told := listed[folder] if folder in listed else below.pop()):
                raise ValueError(THIRD)
            return told
    return ""


def drawn(strokes: list[Stroke], max_area: int = AUTHORS_MAX_PIXELS) -> np.ndarray:
    """Strokes as an image of CROHME: (H, W) uint8, white on black, 3 px wide, of at most `max_area` pixels.

    Raises ValueError if there is no stroke.
    """
    if not strokes:
        raise ValueError("no strokes")
    points = np.concatenate(strokes)
    low, (wide, high) = points.min(0), np.ptp(points, axis=0)
    heights = np.array([np.ptp(stroke[:, 1]) for stroke in strokes])
    size = heights[heights >= LOW * heights.mean()].mean() or max(wide, high)
    scale = STROKE_HEIGHT / size if size else 1.0
    scale = min(scale, largest_scale(wide, high, BORDER, 0.99 * max_area))  # less, as sides are rounded
    return Canvas(low, scale, *(int(np.rint(side * scale)) + BORDER for side in (high, wide))).draw_strokes(strokes)
