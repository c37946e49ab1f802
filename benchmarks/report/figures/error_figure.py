"""A figure of a run's errors, drawn by `make figures` from the error tables (errors/*.json) of the score stage."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmerbench.benchmarks.report.figures.results import WIDTH, handle, label_rows
from hmerbench.benchmarks.report.paper import model_name
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.metrics import proportion_interval

LOOKS = ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "v"), ("#7F7F7F", "<"), ("#8C564B", ">")
RELATIONS = ("Right", "Sup", "Sub", "Above", "Below", "Inside")
ABSENT = "_"  # LgEval's label for a missing symbol or relation
CONFUSIONS = 12  # symbol confusions to show


def taxonomy(run: RunFolder) -> Figure:
    """Draw symbol confusions (where the structure is right), missed and invented relations, and each set's ExpRate by
    structure and by length."""
    figure, n = Figure(figsize=(WIDTH, 4.3)), sum(table["n"] for table in run.errors.values())
    (left, right), below = figure.subplots(2, 2, height_ratios=(1.25, 1))
    rows = confusions(run)[:CONFUSIONS]
    left.barh(range(len(rows)), [count for _, count in rows], height=0.62, color="#0072B2", gid="confusions")
    label_rows(left, [name for name, _ in rows], family="DejaVu Sans Mono", fontsize=6, parse_math=False)
    left.set(xlabel=f"count in {n:,} expressions", title="Symbols: truth → read")
    _relations(right, run, n)
    _groups(below[0], run, "structure", "structure")
    _groups(below[1], run, "length", "bucket")
    handles = [handle(f"{year} (n = {run.errors[year]['n']})", *look) for year, look in _looks(run).items()]
    title = f"{model_name(run.recipe)}, preset {run.preset}, seed {run.seed}"
    figure.legend(
        handles=handles, title=title, loc="outside upper center", ncols=3, handletextpad=0.1, title_fontsize=8
    )
    return figure


def confusions(run: RunFolder) -> list[tuple[str, int]]:
    """("truth → prediction", count over all sets) where only the label is wrong, most frequent first."""
    count = Counter[tuple[str, str]]()
    for table in run.errors.values():
        for row in table["symbols"]:
            count[row["truth"], row["prediction"]] += row["aligned"]
    order = sorted(count, key=lambda pair: (-count[pair], pair))
    return [(f"{truth} → {read}", count[truth, read]) for truth, read in order if count[truth, read]]


def _relations(axis: Axes, run: RunFolder, n: int) -> None:
    """Draw the percentages of the n expressions in which a relation is missed or invented."""
    share = defaultdict[tuple[str, str], float](float)
    for table in run.errors.values():
        for row in table["relations"]:
            share[row["truth"], row["prediction"]] += 100 / n * row["expressions"]
    missed = [share[name, ABSENT] for name in RELATIONS]
    invented = [share[ABSENT, name] for name in RELATIONS]
    y = np.arange(len(RELATIONS))
    looks: dict[str, Any] = {"height": 0.34, "edgecolor": "#8A3D00", "linewidth": 0.4}
    axis.barh(y - 0.18, missed, label="missed", gid="missed", color="#D55E00", hatch="", **looks)
    axis.barh(y + 0.18, invented, label="invented", gid="invented", color="#F5C9A8", hatch="//////", **looks)
    label_rows(axis, RELATIONS)
    axis.set(xlabel="expressions (%)", title="Relations missed, invented")
    axis.legend(loc="lower right", handlelength=1.2)


def _looks(run: RunFolder) -> dict[str, tuple[str, str]]:
    """Color and marker of each set."""
    places = {split: place for place, split in enumerate(dict.fromkeys((*crohme().tests, *run.errors)))}
    return {split: LOOKS[places[split] % len(LOOKS)] for split in run.errors}


def _groups(axis: Axes, run: RunFolder, table: str, key: str) -> None:
    """Draw ExpRate, with its interval over images, for each group of an error table (named by `key`) and each set."""
    names = list(dict.fromkeys(row[key] for errors in run.errors.values() for row in errors[table]))
    for index, (year, errors) in enumerate(run.errors.items()):
        color, marker = _looks(run)[year]
        for row in errors[table]:
            if row["n"]:
                y = names.index(row[key]) + (index - (len(run.errors) - 1) / 2) * 0.24
                center, (low, high) = row["exact"] / row["n"], proportion_interval(row["exact"], row["n"])
                axis.plot([100 * low, 100 * high], [y, y], color=color, linewidth=0.7)
                gid = f"{table}, {year}, {row[key]}"
                axis.plot(100 * center, y, marker, color=color, markersize=3, clip_on=False, gid=gid)
    label_rows(axis, names)
    axis.set(xlabel="ExpRate (%)", xlim=(0, None), title=f"ExpRate by {table}")
