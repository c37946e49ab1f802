"""The figures drawn by `make figures` from tables under results/ that other commands wrote.

Every function takes the paths of its tables and raises UserError, KeyError, IndexError or ValueError for damaged ones,
and NoData for those that hold nothing of what it shows.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.documents import read_frame
from hmerbench.benchmarks.report.figures.results import GRAY, WIDTH, handle, label_rows, looks_of
from hmerbench.benchmarks.report.paper import ORDER
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.scoreboard.card import YEARS, read_cards
from hmerbench.evaluation.symlg import PAPER

GROWTH = {  # axis in growth.csv -> label, unit of its values
    "image_area": ("image area (1000 px)", 1000),
    "sequence_length": ("steps", 1),
    "beam_width": ("beam width", 1),
    "batch_size": ("images at once", 1),
}
SIDES = {"plain": ("#D55E00", "s--"), "fast": ("#0072B2", "o-")}


class NoData(Exception):
    """What a table lacks, so that there is nothing to draw."""


def growth(path: Path) -> Figure:
    """Search time in seconds along every axis, plain and fast, on logarithmic scales; slope 1 is linear growth.

    The table, results/speed/growth.csv, has the columns axis, value, plain and fast; the slope is taken over the last
    two values.
    """
    table = read_frame(path)
    figure = Figure(figsize=(WIDTH, 3.3))
    panels, parts = figure.subplots(2, 2, sharey=True), dict(list(table.groupby("axis")))
    for panel, (axis, (label, unit)) in zip(panels.flat, GROWTH.items(), strict=True):
        part = parts[axis]
        for side, (color, marks) in SIDES.items():
            (x1, x2), (y1, y2) = part["value"].iloc[-2:], part[side].iloc[-2:]
            label_of_side = f"{side}, slope {math.log(y2 / y1) / math.log(x2 / x1):.1f}"
            panel.loglog(part["value"], part[side], marks, color=color, label=label_of_side, gid=f"{axis}, {side}")
        panel.set_xticks(part["value"], [f"{value / unit:.0f}" for value in part["value"]])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel(label)
        panel.margins(y=0.25)
        panel.legend(loc="upper left", handlelength=1.8)
    for panel in panels[:, 0]:
        panel.set_ylabel("seconds")
    return figure


SHOWN = ("large", "medium")  # presets, a panel each
_DEPTH = re.compile(r"depth (\d)( and more)? \((.*)\)")


def by_depth(table: Path) -> Figure:
    """ExpRate on CROHME's test images by depth of nesting, from results/nested.csv: a panel for each preset, a line for
    each row of the ablation."""
    rows = read_table(table)
    if not (depths := [name for name in rows[0] if name.startswith("depth ")]):
        raise ValueError("no column is of a depth")
    if not (rows := [row for row in rows if row["recipe"] in ORDER and row["preset"] in SHOWN]):
        raise NoData(f"{table} has no rows of {' and '.join(SHOWN)}")
    labels = [f"{m[1]}{'+' * bool(m[2])}\n({m[3]})" for m in map(_DEPTH.fullmatch, depths) if m]
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes, looks = figure.subplots(1, len(SHOWN), sharey=True), looks_of(ORDER)
    for axis, preset in zip(axes, SHOWN, strict=True):
        for row in sorted((row for row in rows if row["preset"] == preset), key=lambda row: ORDER.index(row["recipe"])):
            color, marker, line = looks[row["recipe"]]
            rates = [float(row[name].partition(" ")[0]) for name in depths]
            axis.plot(range(len(depths)), rates, color=color, marker=marker, linestyle=line, label=row["recipe"])
        axis.set_title(f"preset {preset}")
        axis.set_xticks(range(len(depths)), labels)
        axis.set_xlabel("depth of nesting (images)")
    axes[0].set_ylabel("ExpRate (%)")
    max(axes[::-1], key=lambda axis: len(axis.lines)).legend()
    return figure


TICKS = (60, 80, 100, 150, 200, 300, 400, 600)


def language_curves(curves: Path, table: Path) -> Figure:
    """Validation perplexity after every epoch, a line for each run of a model of the paper; test perplexity after the
    last one, over all seeds; and the reported one, as a line across. `curves` and `table` are results/language*.csv."""
    lines = read_frame(curves)
    models = [model for model in read_frame(table).to_dict("records") if model["recipe"] in {*lines["recipe"]}]
    if not models:
        raise NoData(f"{curves} has no runs of the paper's models; hmerbench pack adds one")
    looks = looks_of(model["recipe"] for model in models)
    figure = Figure(figsize=(WIDTH, 2.8))
    axis, handles = figure.subplots(), []
    for model in models:
        recipe = model["recipe"]
        color, marker, _ = looks[recipe]  # its line style may be dotted, as what is reported
        runs = lines[lines["recipe"] == recipe]
        for seed, run in runs.groupby("seed"):
            gid = f"{recipe}, seed {seed}"
            (line,) = axis.plot(run["epoch"], run["validation"], color=color, marker=marker, gid=gid)
            line.set(fillstyle="none", markevery=(2, 4))  # tell the lines apart without color, none near the test's
        last = runs["epoch"].max()
        axis.plot([last], [model["reproduced"]], color=color, marker=marker, linestyle="none", gid=f"{recipe}, test")
        axis.axhline(model["reported"], color=color, linewidth=0.8, linestyle=":", gid=f"{recipe}, reported")
        handles.append(handle(model["model"], color, marker, "-"))
    handles += [handle("line: validation", GRAY, "", "-"), handle("filled marker: test, at the end", GRAY, "o")]
    handles.append(handle("dotted: test, reported", GRAY, "", ":"))
    axis.set(xlabel="epoch", ylabel="perplexity (PTB)", yscale="log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(FixedLocator(TICKS))
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_locator(NullLocator())
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


# By kind of training data: color, marker, words.
KINDS = {
    "crohme": ("#0072B2", "o", "trained on CROHME"),
    "more": ("#E69F00", "s", "on more than CROHME"),
    "test labels": ("#D55E00", "X", "on these sets' labels"),
}


def scoreboard(table: Path) -> Figure:
    """ExpRate under the paper's rules by system, a panel for each test set; systems of one kind of training data stand
    together, the best first, those with fewer sets last. `table` is results/scoreboard.csv."""
    chosen = {"reading": PAPER.reading.name, "edition": PAPER.edition.name}
    rows = [row for row in read_table(table) if row["year"] in YEARS and chosen.items() <= row.items()]
    cards = {system.key: system.card for system in read_cards()}
    if unknown := next((row["system"] for row in rows if row["system"] not in cards), None):
        raise UserError(f"{table}: there is no card {unknown}; run make scoreboard")
    rates: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row["system"], []).append(100 * int(row["exact"]) / int(row["n"]))
    order = list(KINDS)
    rank = {key: (order.index(cards[key].training), -len(found), -fmean(found)) for key, found in rates.items()}
    ranked = sorted(rates, key=rank.__getitem__)
    sets = sorted({row["year"] for row in rows})
    figure = Figure(figsize=(7.0, 0.55 + 0.24 * len(ranked)), layout="constrained")
    axes = figure.subplots(1, len(sets), sharex=True, sharey=True, squeeze=False)[0]
    for row in rows:
        axis, place = axes[sets.index(row["year"])], ranked.index(row["system"])
        color, marker, _ = KINDS[cards[row["system"]].training]
        axis.plot([float(row["low"]), float(row["high"])], [place, place], color=color, linewidth=1.2)
        rate = 100 * int(row["exact"]) / int(row["n"])
        axis.plot(rate, place, marker, color=color)
        if row["reported"]:
            axis.plot(float(row["reported"]), place, "d", color=GRAY, markerfacecolor="none")
    for axis, name in zip(axes, sets, strict=True):
        label_rows(axis, [cards[key].name for key in ranked])
        axis.set_xlabel(f"ExpRate, CROHME {name} (%)")
    shown = dict.fromkeys(cards[key].training for key in ranked)
    handles = [handle(words, color, marker) for color, marker, words in (KINDS[kind] for kind in shown)]
    handles.append(handle("as reported, by whatever metric", GRAY, "d", filled=False))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


BINS = 8  # of equally many readings
FEWEST = 10  # readings of which a share is drawn
WAYS = {"per_token": ("before: mean probability per token", "C1", "s"), "confidence": ("now: calibrated", "C0", "o")}
Draw = Callable[[Axes, str, np.ndarray, np.ndarray], None]  # of a way: every reading's confidence, and if it is right


def reliability(table: Path) -> Figure:
    """The share that is right against the confidence, in bins of equally many readings; a panel for each network."""

    def draw(axis: Axes, way: str, shares: np.ndarray, right: np.ndarray) -> None:
        label, color, marker = WAYS[way]
        parts = np.array_split(np.argsort(shares, kind="stable"), BINS)
        means = [[100 * values[part].mean() for part in parts] for values in (shares, right)]
        axis.plot(*means, color=color, marker=marker, label=label)

    figure, axes = _panels(table, draw, "confidence (%)", "read right (%)")
    for axis in axes:
        axis.plot([0, 100], [0, 100], color="0.6", linestyle=":", linewidth=0.8)
    return figure


def risk_coverage(table: Path) -> Figure:
    """The share that is wrong of the readings with the highest confidence; a panel for each network."""

    def draw(axis: Axes, way: str, shares: np.ndarray, right: np.ndarray) -> None:
        label, color, _ = WAYS[way]
        wrong = 1 - right[np.argsort(-shares, kind="stable")]
        taken = np.arange(FEWEST, len(wrong) + 1)
        axis.plot(100 * taken / len(wrong), 100 * wrong.cumsum()[taken - 1] / taken, color=color, label=label)

    return _panels(table, draw, "coverage: readings taken, surest first (%)", "of these wrong (%)")[0]


def _panels(table: Path, draw: Draw, x: str, y: str) -> tuple[Figure, list[Axes]]:
    """A panel for each network, with both ways on the readings of CROHME's test images."""
    rows = read_frame(table, str)
    rows = rows[rows["set"].str.isdecimal() & (rows["read"] == "1")]
    if not (networks := list(rows.groupby("network"))):
        raise NoData(f"{table} has no rows of test images; `hmerbench calibrate --check RUN` reads some")
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = list(figure.subplots(1, len(networks), sharey=True, squeeze=False)[0])
    for axis, (network, part) in zip(axes, networks, strict=True):
        for way in WAYS:
            draw(axis, way, np.asarray(part[way], float), np.asarray(part["right"], float))
        axis.set_title(str(network).replace("/", "\n") + f" (n={len(part)})")
    axes[0].set_ylabel(y)
    figure.supxlabel(x, size=axes[0].yaxis.label.get_size())  # once for all panels, as the legend
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left")
    return figure, axes
