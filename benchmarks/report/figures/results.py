"""The drawings of `make figures`: each takes what runs left and gives a Figure at column width.

A color never tells anything alone: a marker or a line style says the same, so that all reads in gray. Intervals are
95 % Wilson intervals of a rate over the n expressions of a set, as in the tables.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from benchmarks.report.paper import model_name, reference
from benchmarks.report.presets import names
from benchmarks.runs.folder import RunFolder
from evaluation.scoring.interval import printed_interval, proportion_interval

WIDTH = 3.4  # inches
YEAR = "2014"  # the set of Table 1 and Fig. 3
LOOKS: dict[str, tuple[str, str, Any]] = {  # recipe -> color, marker, line style
    "bttr": ("#000000", "P", (0, (1, 1))),
    "bttr-baseline": ("#E69F00", "s", (0, (4, 1.5))),
    "comer-self": ("#56B4E9", "^", (0, (3, 1, 1, 1))),
    "comer-cross": ("#009E73", "D", (0, (2, 1))),
    "comer-fusion": ("#0072B2", "o", "-"),
}
RATES = {
    "exact": ("ExpRate", "#0072B2", "o"),
    "le1": ("≤ 1 error", "#009E73", "s"),
    "le2": ("≤ 2 errors", "#D55E00", "D"),
}
GRAY = "#555555"

Rate = tuple[float, float, float]  # in percent, with both ends of its interval


def rate(count: float, n: int) -> Rate:
    """Of a count, or of its mean over seeds: the interval then is that of the mean, rounded."""
    low, high = proportion_interval(round(count), n)
    return 100 * count / n, 100 * low, 100 * high


def reported(percent: float, n: int) -> Rate:
    """A printed rate."""
    return percent, *printed_interval(percent, n)


def seeds_of_rows(runs: Sequence[RunFolder]) -> dict[tuple[str, str], list[RunFolder]]:
    """(recipe, preset) -> its seeds that were scored on the whole set of 2014, in the order of the paper."""
    presets, found = names(runs), dict[tuple[str, str], list[RunFolder]]()
    for run in sorted(runs, key=lambda run: (_place(run.recipe), run.seed)):
        score = run.scores.get(YEAR)
        if score and score.n == reference()["test_sets"][YEAR]:
            found.setdefault((run.recipe, presets[run]), []).append(run)
    return found


def _place(recipe: str) -> tuple[int, str]:
    """In the paper's order, others after it."""
    return list(LOOKS).index(recipe) if recipe in LOOKS else len(LOOKS), recipe


def look(recipe: str) -> tuple[str, str, Any]:
    """Color, marker, line style."""
    return LOOKS.get(recipe, ("#CC79A7", "v", (0, (6, 1, 1, 1))))


def handle(label: str, color: str, marker: str, line: Any = "none", *, filled: bool = True) -> Line2D:
    """An entry of a legend."""
    fill = color if filled else "white"
    return Line2D([], [], color=color, marker=marker, markerfacecolor=fill, linestyle=line, label=label)


def rows_of(axis: Axes, names: Sequence[str], **looks: Any) -> None:
    """Names rows from top to bottom instead of a y axis."""
    axis.set_yticks(range(len(names)), names, **looks)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def by_length(runs: Sequence[RunFolder]) -> Figure:
    """Fig. 3, ExpRate on CROHME 2014 by length: reported above, then a panel for each preset, with the reported line in
    it."""
    paper, sizes = reference()["fig3"], reference()["fig3"]["n"]
    recipes = {names["table1"]: recipe for recipe, names in reference()["recipes"].items()}
    above = {recipes[model]: list(map(reported, percents, sizes)) for model, percents in paper["rates"].items()}
    panels: dict[str, dict[str, list[Rate]]] = {"reported": above}
    for (recipe, preset), seeds in seeds_of_rows(runs).items():
        known = [rows for run in seeds if (rows := run.scores[YEAR].by_length)]
        if not known:
            continue
        counts = np.mean([[row.exact for row in rows] for rows in known], axis=0)
        rates = [rate(count, n) for count, n in zip(counts, sizes, strict=True)]
        panels.setdefault(f"reproduced, preset {preset}", {})[recipe] = rates
    figure = Figure(figsize=(WIDTH, 0.9 + 1.4 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    everyone = sorted({recipe for panel in panels.values() for recipe in panel}, key=_place)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        for recipe, rates in panel.items():
            x = np.arange(len(rates)) + (everyone.index(recipe) - (len(everyone) - 1) / 2) * 0.15
            color, marker, line = look(recipe)
            if panel is not above and recipe in above:
                faint = ":" if len(panel) < 3 else "none"
                looks = {"color": color, "marker": marker, "markerfacecolor": "white", "linewidth": 0.7}
                beside = [center for center, _, _ in above[recipe]]
                axis.plot(x, beside, linestyle=faint, gid=f"{recipe}, beside", **looks)
            centers, lows, highs = np.transpose(rates)
            ends = np.abs([centers - lows, centers - highs])
            drawn = axis.errorbar(x, centers, ends, fmt=marker, color=color, elinewidth=0.6, capsize=1.2)
            drawn[0].set(linestyle=line, gid=f"{recipe}, {name}", linewidth=0.9, clip_on=False)
        axis.set(title=name, ylabel="ExpRate (%)", ylim=(0, 88), yticks=range(0, 81, 20))
        axis.grid(visible=False, axis="x")
    axes[-1].set_xticks(range(len(sizes)), [f"{name}\n{n}" for name, n in zip(paper["buckets"], sizes, strict=True)])
    axes[-1].set_xlabel("tokens of the true caption, and how many expressions have them")
    handles = [handle(model_name(recipe), *look(recipe)) for recipe in everyone]
    if len(panels) > 1:
        handles.append(handle("the same, reported", GRAY, "o", ":", filled=False))
    figure.legend(handles=handles, loc="outside upper center", ncols=3 if len(handles) > 4 else 2)
    return figure


def forest(runs: Sequence[RunFolder]) -> Figure:
    """Table 1: ExpRate, <= 1 and <= 2 errors on CROHME 2014; open what is reported, filled what was run, dots its
    seeds."""
    found, n = seeds_of_rows(runs), reference()["test_sets"][YEAR]
    paper = {row["model"]: row["exprate"] for row in reference()["table1"]}
    more = {row[0]: row[:3] for row in reference()["table2"][YEAR].values()}  # of the rows that both tables show
    lines: list[tuple[str, str, list[Rate], list[RunFolder]]] = []
    for model in [*paper, *(name for recipe, _ in found if (name := model_name(recipe)) not in paper)]:
        if model in paper:
            percents = more.get(paper[model], [paper[model]])
            lines.append((model, "reported", [reported(percent, n) for percent in percents], []))
        for (recipe, preset), seeds in found.items():
            if model_name(recipe) == model:
                counts = [np.mean([getattr(run.scores[YEAR], key) for run in seeds]) for key in RATES]
                lines.append((model, preset, [rate(float(count), n) for count in counts], seeds))
    figure = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(lines)))
    axis, named = figure.subplots(), []
    for y, (model, source, rates, seeds) in enumerate(lines):
        named.append(f"{source}, {len(seeds)} seed" + "s" * (len(seeds) > 1) if seeds else model)
        if y and not seeds:
            axis.axhline(y - 0.5, color="#CCCCCC", linewidth=0.4, zorder=0)
        for place, (key, (_, color, marker)) in enumerate(list(RATES.items())[: len(rates)]):
            at, (center, low, high) = y + (place - 1) * 0.22, rates[place]
            fill = color if seeds else "white"
            axis.plot([low, high], [at, at], color=color, linewidth=0.8, zorder=2)
            axis.plot(center, at, marker, color=color, markerfacecolor=fill, zorder=3, gid=f"{model}, {source}, {key}")
            if len(seeds) > 1:
                axis.plot(
                    [100 * getattr(run.scores[YEAR], key) / n for run in seeds], [at] * len(seeds), "|k", ms=5, zorder=4
                )
    rows_of(axis, named)
    axis.set_xlabel(f"CROHME {YEAR} (%), n = {n}")
    what = [handle(*looks) for looks in RATES.values()]
    seed = handle("a seed", "black", "|")
    whose = [handle("reported", GRAY, "o", filled=False), handle("reproduced", GRAY, "o"), seed]
    handles = [one for pair in zip(what, whose, strict=True) for one in pair]  # a legend fills its columns first
    several = any(len(seeds) > 1 for seeds in found.values())
    figure.legend(handles=handles if several else handles[:-1], loc="outside upper center", ncols=3)
    return figure


PANELS = {"loss": "loss", "lr": "learning rate", "images_per_s": "images / s", "val_token_exprate": "token match (%)"}


def training(runs: Sequence[RunFolder]) -> Figure:
    """Loss, learning rate and images a second by epoch, and token match on held-out data where it was measured; of the
    runs of one preset."""
    panels = [key for key in PANELS if any(key in line for run in runs for line in run.history)]
    figure = Figure(figsize=(WIDTH, 0.6 + 0.95 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, key in zip(axes, panels, strict=True):
        for run in runs:
            points = [(line["epoch"], line[key]) for line in run.history if key in line]
            color, marker, line = look(run.recipe)
            looks = {"color": color, "marker": marker if len(points) <= 60 else "", "linestyle": line}
            axis.plot(*zip(*points, strict=True), markersize=2, gid=f"{run.recipe}, seed {run.seed}, {key}", **looks)
        axis.set(ylabel=PANELS[key], ylim=(0, None))
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(list(axes))
    handles = [handle(model_name(recipe), *look(recipe)) for recipe in dict.fromkeys(run.recipe for run in runs)]
    place = {"loc": "outside upper center", "ncols": 2}
    figure.legend(handles=handles, title=f"preset {runs[0].preset}", title_fontsize=8, **place)
    return figure


def minutes(runs: Sequence[RunFolder]) -> Figure:
    """ExpRate on CROHME 2014 against the core-minutes a training took (minutes times CPU threads): a marker for each
    row and preset, a stroke for each of its seeds; a preset is named at its best row."""
    figure = Figure(figsize=(WIDTH, 2.4))
    axis, handles, best = figure.subplots(), {}, dict[str, tuple[float, float, str]]()
    for (recipe, preset), seeds in seeds_of_rows([run for run in runs if run.seconds]).items():
        took = [run.seconds[-1] / 60 * run.environment.get("threads", 1) for run in seeds]
        rates = [100 * run.scores[YEAR].exact / run.scores[YEAR].n for run in seeds]
        color, marker, _ = look(recipe)
        handles[recipe] = handle(model_name(recipe), color, marker)
        place = float(np.mean(took)), float(np.mean(rates)), preset
        axis.plot(*place[:2], marker, color=color, gid=f"{recipe}, {preset}")
        axis.plot(took, rates, "_", color=color, gid=f"{recipe}, {preset}, seeds")
        best[preset] = max(best.get(preset, place), place, key=lambda place: place[1])
    for x, y, preset in best.values():
        covered = any(abs(x - its_x) < 10 and 0 < its_y - y < 8 for its_x, its_y, _ in best.values())  # by one above
        place, ha, va = ((0, -6), "center", "top") if covered else ((6, 7), "right", "bottom")  # clear of its seeds
        axis.annotate(preset, (x, y), place, textcoords="offset points", ha=ha, va=va)
    axis.margins(y=0.15)
    axis.set(xlabel="core-minutes of training", ylabel=f"ExpRate on CROHME {YEAR} (%)")
    axis.set_xlim(0, 1.1 * max((x for x, *_ in best.values()), default=1))
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=3)
    return figure


GROWTH = {  # axis of growth.csv -> label, what its values are divided by
    "image_area": ("image area (1000 px)", 1000),
    "sequence_length": ("steps", 1),
    "beam_width": ("beam width", 1),
    "batch_size": ("images at once", 1),
}
SIDES = {"plain": ("#D55E00", "s--"), "fast": ("#0072B2", "o-")}


def growth(table: pd.DataFrame) -> Figure:
    """Seconds of a search along every axis, plain and fast (columns axis, value, plain, fast), on logarithmic scales;
    the slope over the last doubling says how cost grows: 1 is linear. Raises KeyError, ValueError for other tables."""
    figure = Figure(figsize=(WIDTH, 3.3))
    panels, parts = figure.subplots(2, 2, sharey=True), dict(list(table.groupby("axis")))
    for panel, (axis, (label, unit)) in zip(panels.flat, GROWTH.items(), strict=True):
        part = parts[axis]
        for side, (color, marks) in SIDES.items():
            (x, twice), (y, grown) = part["value"].iloc[-2:], part[side].iloc[-2:]
            named = f"{side}, slope {math.log(grown / y) / math.log(twice / x):.1f}"
            panel.loglog(part["value"], part[side], marks, color=color, label=named, gid=f"{axis}, {side}")
        panel.set_xticks(part["value"], [f"{value / unit:.0f}" for value in part["value"]])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel(label)
        panel.margins(y=0.25)
        panel.legend(loc="upper left", handlelength=1.8)
    for panel in panels[:, 0]:
        panel.set_ylabel("seconds")
    return figure
