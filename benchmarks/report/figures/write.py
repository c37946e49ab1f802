"""`make figures`: publication figures of the results, reported and reproduced numbers side by side.

Each is written to results/figures/ as PDF, SVG and PNG, byte for byte the same for the same results. A figure without
data is not drawn; a line says which command makes the data.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure
from PIL import Image

from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.report.documents import undamaged
from hmerbench.benchmarks.report.figures import from_tables
from hmerbench.benchmarks.report.figures import results as plots
from hmerbench.benchmarks.report.presets import preset_labels
from hmerbench.benchmarks.runs.folder import RunFolder

STYLE = "hmerbench.benchmarks.report.figures.style"
DATES: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def figures(results: Path) -> Iterator[Path | str]:
    """Draw and write all figures; yield the path of every file, and a line for every figure without data."""
    with style():
        for name, drawn in draw(results):
            if isinstance(drawn, str):
                yield f"{name}: not drawn, {drawn}"
                continue
            for kind in DATES:
                path = results / "figures" / f"{name}.{kind}"
                write_atomically(path, rendered(drawn, kind))
                yield path


def style(overrides: Mapping[Any, Any] | None = None) -> AbstractContextManager[None]:
    """Context of the suite's style with `overrides`, in which figures are drawn and rendered."""
    return matplotlib.style.context([STYLE, dict(overrides or {})], after_reset=True)


def rendered(figure: Figure, kind: str) -> bytes:
    """Render a figure as the content of a file, without a creation date.

    A PNG has 256 colors, which makes it a third as large, unless it shows images, whose shades matter.
    """
    content = io.BytesIO()
    if figure.get_layout_engine() is not None:  # lay out once, so that no format depends on those rendered before
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    figure.savefig(content, format=kind, metadata=DATES[kind])
    if kind == "png":
        picture, content = Image.open(content).convert("RGB"), io.BytesIO()
        if not any(axes.images for axes in figure.axes):
            picture = picture.quantize(256, dither=Image.Dither.NONE)
        picture.save(content, "PNG", optimize=True)
    return content.getvalue()


def draw(results: Path) -> Iterator[tuple[str, Figure | str]]:
    """Yield the name of every figure with the figure, or with the reason why there is none.

    Runs that read images with the weights of another are left to the tables.
    """
    runs = [run for run in read_runs(results / "reproduced") if "trained_in" not in run.environment]
    yield "fig3-by-length", plots.by_length(runs)
    yield "table1-forest", plots.forest(runs)
    if not runs:
        yield "training, errors", f"there is no run under {results / 'reproduced'}; hmerbench pack adds one"
    labels = {run: label.replace(" ", "-") for run, label in preset_labels(runs).items()}
    for preset in sorted({*labels.values()}):
        trained = [run for run in runs if labels[run] == preset and run.history]
        yield f"training-{preset}", plots.training(trained, preset) if trained else "no history.jsonl"
    if any(run.core_minutes for run in runs):
        yield "exprate-minutes", plots.minutes(runs)
    for (recipe, preset), run in {(run.recipe, labels[run]): run for run in reversed(runs)}.items():  # the first seed
        if run.errors:
            yield f"errors-{recipe}-{preset}-seed{run.seed}", plots.taxonomy(run)
    yield "speed-growth", _of(from_tables.growth, "make bench measures it", results / "speed/growth.csv")
    yield "exprate-nesting", _of(from_tables.by_depth, "`hmerbench nested` makes it", results / "nested.csv")
    for name, plot in (("reliability", from_tables.reliability), ("risk-coverage", from_tables.risk_coverage)):
        yield name, _of(plot, "`hmerbench calibrate` writes it", results / "confidence.csv")
    yield "scoreboard", _of(from_tables.scoreboard, "make scoreboard", results / "scoreboard.csv")
    curves = results / "language_curves.csv", results / "language.csv"
    yield "language-curves", _of(from_tables.language_curves, "make tables writes it", *curves)


def _of(draw: Callable[..., Figure], fix: str, *tables: Path) -> Figure | str:
    """The figure of some tables, or why there is none. Raises UserError for damaged ones."""
    if absent := [table for table in tables if not table.exists()]:
        return f"there is no {absent[0]}; {fix}"
    try:
        with undamaged(*tables, fix=f"make it again ({fix})"):
            return draw(*tables)
    except from_tables.NoData as lack:
        return str(lack)


def read_runs(root: Path) -> list[RunFolder]:
    """Read the runs under `root` with all that figures need. Raises UserError for a damaged file."""
    runs = RunFolder.under(root)
    for run in runs:
        _ = run.settings, run.scores, run.errors, run.history, run.environment
    return runs
