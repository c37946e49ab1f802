"""What a run gets wrong, as a drawing of `make figures`: from the tables of errors that the score stage leaves."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report.figures.results import WIDTH, handle, rate, rows_of
from benchmarks.report.paper import model_name
from benchmarks.runs.folder import RunFolder

SETS = {"2014": ("#0072B2", "o"), "2016": ("#D55E00", "s"), "2019": ("#009E73", "D")}
OTHER_SET = "#CC79A7", "v"
RELATIONS = ("Right", "Sup", "Sub", "Above", "Below", "Inside")
ABSENT = "_"  # LgEval's label of what is not there
CONFUSIONS = 12  # of symbols that are shown


def taxonomy(run: RunFolder) -> Figure:
    """Confused symbols (where the structure is right), relations missed and invented, ExpRate by structure and by
    length, for every set."""
    figure, n = Figure(figsize=(WIDTH, 4.3)), sum(table["n"] for table in run.errors.values())
    (left, right), below = figure.subplots(2, 2, height_ratios=(1.25, 1))
    rows = confusions(run)[:CONFUSIONS]
    left.barh(range(len(rows)), [count for _, count in rows], height=0.62, color="#0072B2", gid="confusions")
    rows_of(left, [name for name, _ in rows], family="DejaVu Sans Mono", fontsize=6, parse_math=False)
    left.set(xlabel=f"count in {n:,} expressions", title="Symbols: truth → read")
    _relations(right, run, n)
    of_structures = [
        [(row["structure"], row["n"], row["exact"]) for row in t["structure"]] for t in run.errors.values()
    ]
    of_lengths = [[(row["bucket"], row["n"], row["exact"]) for row in t["length"]] for t in run.errors.values()]
    _groups(below[0], run, "structure", of_structures)
    _groups(below[1], run, "length", of_lengths)
    handles = [handle(f"{year} (n = {run.errors[year]['n']})", *SETS.get(year, OTHER_SET)) for year in run.errors]
    title = f"{model_name(run.recipe)}, preset {run.preset}, seed {run.seed}"
    figure.legend(
        handles=handles, title=title, loc="outside upper center", ncols=3, handletextpad=0.1, title_fontsize=8
    )
    return figure


def confusions(run: RunFolder) -> list[tuple[str, int]]:
    """("truth → prediction", how often over all sets), most frequent first; where nothing but labels is wrong."""
    count = Counter[tuple[str, str]]()
    for table in run.errors.values():
        for row in table["symbols"]:
            count[row["truth"], row["prediction"]] += row["aligned"]
    order = sorted(count, key=lambda pair: (-count[pair], pair))
    return [(f"{truth} → {found}", count[truth, found]) for truth, found in order if count[truth, found]]


def _relations(axis: Axes, run: RunFolder, n: int) -> None:
    """Percent of the n expressions in which a relation is missed, in which one is invented."""
    share = defaultdict[tuple[str, str], float](float)
    for table in run.errors.values():
        for row in table["relations"]:
            share[row["truth"], row["prediction"]] += 100 / n * row["expressions"]
    missed, invented = ([share[name, ABSENT] for name in RELATIONS], [share[ABSENT, name] for name in RELATIONS])
    places = np.arange(len(RELATIONS))
    looks: dict[str, Any] = {"height": 0.34, "edgecolor": "#8A3D00", "linewidth": 0.4}
    axis.barh(places - 0.18, missed, label="missed", gid="missed", color="#D55E00", hatch="", **looks)
    axis.barh(places + 0.18, invented, label="invented", gid="invented", color="#F5C9A8", hatch="//////", **looks)
    rows_of(axis, RELATIONS)
    axis.set(xlabel="expressions (%)", title="Relations missed, invented")
    axis.legend(loc="lower right", handlelength=1.2)


def _groups(axis: Axes, run: RunFolder, table: str, sets: Sequence[Sequence[tuple[str, int, int]]]) -> None:
    """ExpRate with intervals of each group of a table (its name, n, how many are right), a marker for every set."""
    names = list(dict.fromkeys(name for groups in sets for name, _, _ in groups))
    for place, (year, groups) in enumerate(zip(run.errors, sets, strict=True)):
        color, marker = SETS.get(year, OTHER_SET)
        for name, n, exact in groups:
            if n:
                at = names.index(name) + (place - (len(sets) - 1) / 2) * 0.24
                center, low, high = rate(exact, n)
                axis.plot([low, high], [at, at], color=color, linewidth=0.7)
                gid = f"{table}, {year}, {name}"
                axis.plot(center, at, marker, color=color, markersize=3, clip_on=False, gid=gid)
    rows_of(axis, names)
    axis.set(xlabel="ExpRate (%)", xlim=(0, None), title=f"ExpRate by {table}")
