"""The drawings of `make figures`: each takes what runs left and gives a Figure at column width.

A colour never tells anything alone: a marker or a line style says the same, so that all reads in grey. Intervals are
95 % Wilson intervals of a rate over the n expressions of a set, as in the tables.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.report.tables import reference
from evaluation.stats import proportion_interval

WIDTH = 3.4  # inches
YEAR = "2014"  # the set of Table 1 and Fig. 3
LOOKS: dict[str, tuple[str, str, Any]] = {  # recipe -> colour, marker, line style
    "bttr": ("#000000", "P", (0, (1, 1))),
    "bttr-baseline": ("#E69F00", "s", (0, (4, 1.5))),
    "comer-self": ("#56B4E9", "^", (0, (3, 1, 1, 1))),
    "comer-cross": ("#009E73", "D", (0, (2, 1))),
    "comer-fusion": ("#0072B2", "o", "-"),
}
OTHER_LOOK = "#CC79A7", "v", (0, (6, 1, 1, 1))
RATES = {
    "exact": ("ExpRate", "#0072B2", "o"),
    "le1": ("≤ 1 error", "#009E73", "s"),
    "le2": ("≤ 2 errors", "#D55E00", "D"),
}
SETS = {"2014": ("#0072B2", "o"), "2016": ("#D55E00", "s"), "2019": ("#009E73", "D")}
GREY = "#555555"
RELATIONS = ("Right", "Sup", "Sub", "Above", "Below", "Inside")
ABSENT = "_"  # LgEval's label of what is not there
CONFUSIONS = 12  # of symbols that are shown


@dataclass(frozen=True)
class Run:
    """What figures need of a run folder: scores and tables of errors by set, and the epochs."""

    recipe: str
    preset: str
    seed: int
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


class Rate(NamedTuple):
    """In percent, with its interval."""

    rate: float
    low: float
    high: float


def model_name(recipe: str) -> str:
    """What Table 1 calls a recipe."""
    return reference()["recipes"].get(recipe, {}).get("table1", recipe)


def rate(count: float, n: int) -> Rate:
    """Of a count, or of its mean over seeds: the interval then is that of the mean, rounded."""
    low, high = proportion_interval(round(count), n)
    return Rate(100 * count / n, 100 * low, 100 * high)


def reported(percent: float, n: int) -> Rate:
    """A printed rate; the count behind it is the rate times n, rounded."""
    return Rate(percent, *rate(percent * n / 100, n)[1:])


def seeds_of_rows(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """(recipe, preset) -> its seeds that were scored on the whole set of 2014, in the order of the paper."""
    n, order = reference()["test_sets"][YEAR], list(LOOKS)
    found: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda r: (order.index(r.recipe) if r.recipe in LOOKS else len(order), r.seed)):
        if run.scores.get(YEAR, {}).get("n") == n:
            found.setdefault((run.recipe, run.preset), []).append(run)
    return found


# Fig. 3


def by_length(runs: Sequence[Run]) -> Figure:
    """ExpRate on CROHME 2014 by length: reported above, then a panel for each preset, with the reported line in it."""
    paper, sizes = reference()["fig3"], reference()["fig3"]["n"]
    recipes = {names["table1"]: recipe for recipe, names in reference()["recipes"].items()}
    above = {
        recipes[model]: [reported(percent, n) for percent, n in zip(percents, sizes, strict=True)]
        for model, percents in paper["rates"].items()
    }
    panels: dict[str, dict[str, list[Rate]]] = {"reported": above}
    for (recipe, preset), seeds in seeds_of_rows(runs).items():
        counts = np.mean([[row["exact"] for row in run.scores[YEAR]["by_length"]] for run in seeds], axis=0)
        panel = panels.setdefault(f"reproduced, preset {preset}", {})
        panel[recipe] = [rate(count, n) for count, n in zip(counts, sizes, strict=True)]
    figure = Figure(figsize=(WIDTH, 0.9 + 1.4 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    shown = {recipe for panel in panels.values() for recipe in panel}
    everyone = [*(recipe for recipe in LOOKS if recipe in shown), *sorted(shown - set(LOOKS))]
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        for recipe, rates in panel.items():
            x = np.arange(len(rates)) + (everyone.index(recipe) - (len(everyone) - 1) / 2) * 0.15
            if panel is not above and recipe in above:
                beside = _open(*_look(recipe)[:2], line=":" if len(panel) < 3 else "none")
                axis.plot(x, [r.rate for r in above[recipe]], gid=f"{recipe}, beside", **beside)
            _points(axis, x, rates, f"{recipe}, {name}", *_look(recipe))
        axis.set_title(name)
        axis.set(ylabel="ExpRate (%)", ylim=(0, 88), yticks=range(0, 81, 20))
        axis.grid(visible=False, axis="x")
    axes[-1].set_xticks(range(len(sizes)), [f"{name}\n{n}" for name, n in zip(paper["buckets"], sizes, strict=True)])
    axes[-1].set_xlabel("tokens of the true caption, and how many expressions have them")
    handles = [_handle(model_name(recipe), *_look(recipe)) for recipe in everyone]
    if len(panels) > 1:
        handles.append(Line2D([], [], label="the same, reported", **_open(GREY, "o")))
    figure.legend(handles=handles, loc="outside upper center", ncols=3 if len(handles) > 4 else 2)
    return figure


def _look(recipe: str) -> tuple[str, str, Any]:
    return LOOKS.get(recipe, OTHER_LOOK)


def _open(colour: str, marker: str, line: str = ":") -> dict[str, Any]:
    return {"color": colour, "marker": marker, "markerfacecolor": "white", "linestyle": line, "linewidth": 0.7}


def _points(axis: Axes, x: Any, rates: Sequence[Rate], name: str, colour: str, marker: str, line: Any = "none") -> None:
    low, high = [[abs(r.rate - r[k]) for r in rates] for k in (1, 2)]
    drawn = axis.errorbar(
        x, [r.rate for r in rates], [low, high], fmt=marker, color=colour, elinewidth=0.6, capsize=1.2
    )
    drawn[0].set(linestyle=line, gid=name, linewidth=0.9, clip_on=False)


def _handle(label: str, colour: str, marker: str, line: Any = "none") -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle=line, label=label)


# Table 1


def forest(runs: Sequence[Run]) -> Figure:
    """Table 1: ExpRate, <= 1 and <= 2 errors on CROHME 2014; open what is reported, filled what was run, dots its
    seeds."""
    found, n = seeds_of_rows(runs), reference()["test_sets"][YEAR]
    paper = {row["model"]: row["exprate"] for row in reference()["table1"]}
    more = {row[0]: row[:3] for row in reference()["table2"][YEAR].values()}  # of the rows that both tables show
    lines: list[tuple[str, str, list[Rate], list[Run]]] = []
    for model in [*paper, *(name for recipe, _ in found if (name := model_name(recipe)) not in paper)]:
        if model in paper:
            percents = more.get(paper[model], [paper[model]])
            lines.append((model, "reported", [reported(percent, n) for percent in percents], []))
        for (recipe, preset), seeds in found.items():
            if model_name(recipe) == model:
                means = [np.mean([run.scores[YEAR][key] for run in seeds]) for key in RATES]
                lines.append((model, preset, [rate(float(mean), n) for mean in means], seeds))
    figure = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(lines)))
    axis = figure.subplots()
    for y, (model, source, rates, seeds) in enumerate(lines):
        for place, (key, (_, colour, marker)) in enumerate(list(RATES.items())[: len(rates)]):
            at, (centre, low, high) = y + (place - 1) * 0.22, rates[place]
            fill = colour if seeds else "white"
            axis.plot([low, high], [at, at], color=colour, linewidth=0.8, zorder=2)
            axis.plot(centre, at, marker, color=colour, markerfacecolor=fill, zorder=3, gid=f"{model}, {source}, {key}")
            if len(seeds) > 1:
                axis.plot([100 * run.scores[YEAR][key] / n for run in seeds], [at] * len(seeds), "|k", ms=5, zorder=4)
    names = [model if source == "reported" else _numbered(source, seeds) for model, source, _, seeds in lines]
    axis.set_yticks(range(len(lines)), names)
    axis.set(ylim=(len(lines) - 0.5, -0.5), xlabel=f"expressions of CROHME {YEAR} (%), n = {n}")
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    for y, (_, source, _, _) in enumerate(lines):
        if source == "reported" and y:
            axis.axhline(y - 0.5, color="#CCCCCC", linewidth=0.4, zorder=0)
    what = [_handle(*looks) for looks in RATES.values()]
    whose = [_handle("reported", GREY, "o"), _handle("reproduced", GREY, "o"), _handle("a seed", "black", "|")]
    whose[0].set_markerfacecolor("white")
    several = any(len(seeds) > 1 for seeds in found.values())
    handles = [handle for pair in zip(what, whose, strict=True) for handle in pair]  # a legend fills its columns first
    figure.legend(handles=handles if several else handles[:-1], loc="outside upper center", ncols=3)
    return figure


def _numbered(preset: str, seeds: Sequence[Run]) -> str:
    return f"reproduced: {preset}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


# Training


def training(runs: Sequence[Run]) -> Figure:
    """Loss, learning rate and images a second by epoch, and token match on held-out data where it was measured; of the
    runs of one preset."""
    panels = {
        "loss": "loss",
        "lr": "learning rate",
        "images_per_s": "images / s",
        "val_token_exprate": "token match (%)",
    }
    panels = {key: label for key, label in panels.items() if any(key in line for run in runs for line in run.history)}
    figure = Figure(figsize=(WIDTH, 0.6 + 0.95 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (key, label) in zip(axes, panels.items(), strict=True):
        for run in runs:
            epochs = [line for line in run.history if key in line]
            colour, marker, style = _look(run.recipe)
            axis.plot(
                [line["epoch"] for line in epochs],
                [line[key] for line in epochs],
                color=colour,
                marker=marker if len(epochs) <= 60 else "",
                markersize=2,
                linestyle=style,
                gid=f"{run.recipe}, seed {run.seed}, {key}",
            )
        axis.set(ylabel=label, ylim=(0, None))
    axes[-1].set_xlabel("epoch")
    figure.align_ylabels(list(axes))
    recipes = dict.fromkeys(run.recipe for run in runs)
    handles = [_handle(model_name(recipe), *_look(recipe)) for recipe in recipes]
    figure.legend(
        handles=handles, title=f"preset {runs[0].preset}", loc="outside upper center", ncols=2, title_fontsize=8
    )
    return figure


# Errors


def taxonomy(run: Run) -> Figure:
    """What a run gets wrong: confused symbols (where the structure is right), relations missed and invented, ExpRate by
    structure and by length, for every set."""
    figure = Figure(figsize=(WIDTH, 4.3))
    axes = figure.subplots(2, 2, height_ratios=(1.25, 1))
    _confusions(axes[0, 0], run)
    _relations(axes[0, 1], run)
    _groups(axes[1, 0], run, "structure", "ExpRate by structure")
    _groups(axes[1, 1], run, "length", "ExpRate by length")
    handles = [_handle(f"{year} (n = {run.errors[year]['n']})", *_set_look(year)) for year in run.errors]
    title = f"{model_name(run.recipe)}, preset {run.preset}, seed {run.seed}"
    figure.legend(
        handles=handles, title=title, loc="outside upper center", ncols=3, handletextpad=0.1, title_fontsize=8
    )
    return figure


def confusions(run: Run) -> list[tuple[str, int]]:
    """("truth → prediction", how often over all sets), most frequent first; where nothing but labels is wrong."""
    count: dict[tuple[str, str], int] = {}
    for table in run.errors.values():
        for row in table["symbols"]:
            key = row["truth"], row["prediction"]
            count[key] = count.get(key, 0) + row["aligned"]
    order = sorted(count, key=lambda key: (-count[key], key))
    return [(f"{truth} → {found}", count[truth, found]) for truth, found in order if count[truth, found]]


def relations(run: Run) -> dict[str, tuple[float, float]]:
    """Relation -> percent of expressions in which one is missed, in which one is invented."""
    n = sum(table["n"] for table in run.errors.values())
    rows = [row for table in run.errors.values() for row in table["relations"]]

    def share(truth: str, prediction: str) -> float:
        return sum(100 / n * r["expressions"] for r in rows if (r["truth"], r["prediction"]) == (truth, prediction))

    return {name: (share(name, ABSENT), share(ABSENT, name)) for name in RELATIONS}


def _confusions(axis: Axes, run: Run) -> None:
    rows, n = confusions(run)[:CONFUSIONS], sum(table["n"] for table in run.errors.values())
    axis.barh(range(len(rows)), [count for _, count in rows], height=0.62, color="#0072B2", gid="confusions")
    axis.set_yticks(
        range(len(rows)), [name for name, _ in rows], family="DejaVu Sans Mono", fontsize=6, parse_math=False
    )
    axis.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"count in {n:,} expressions")
    axis.set_title("Symbols: truth → read")
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _relations(axis: Axes, run: Run) -> None:
    shares = relations(run)
    for side, (label, colour, hatch) in enumerate([("missed", "#D55E00", ""), ("invented", "#F5C9A8", "//////")]):
        axis.barh(
            np.arange(len(shares)) + (side - 0.5) * 0.36,
            [pair[side] for pair in shares.values()],
            height=0.34,
            color=colour,
            hatch=hatch,
            edgecolor="#8A3D00",
            linewidth=0.4,
            label=label,
            gid=label,
        )
    axis.set_yticks(range(len(shares)), list(shares))
    axis.set(ylim=(len(shares) - 0.4, -0.6), xlabel="expressions (%)")
    axis.set_title("Relations missed, invented")
    axis.legend(loc="lower right", handlelength=1.2)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _groups(axis: Axes, run: Run, table: str, title: str) -> None:
    """ExpRate with intervals of each group of a table, a marker for every set."""
    names = [next(iter(row.values())) for row in next(iter(run.errors.values()))[table]]
    for place, (year, tables) in enumerate(run.errors.items()):
        colour, marker = _set_look(year)
        for y, row in enumerate(tables[table]):
            if not row["n"]:
                continue
            at = y + (place - (len(run.errors) - 1) / 2) * 0.24
            centre, low, high = rate(row["exact"], row["n"])
            axis.plot([low, high], [at, at], color=colour, linewidth=0.7)
            axis.plot(centre, at, marker, color=colour, markersize=3, clip_on=False, gid=f"{table}, {year}, {names[y]}")
    axis.set_yticks(range(len(names)), names)
    axis.set(ylim=(len(names) - 0.5, -0.5), xlabel="ExpRate (%)", xlim=(0, None))
    axis.set_title(title)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def _set_look(year: str) -> tuple[str, str]:
    return SETS.get(year, ("#CC79A7", "v"))


# Search


def importance(table: pd.DataFrame, title: str) -> Figure:
    """What mattered in a study: the share of each setting (columns setting, importance)."""
    table = table.sort_values("importance", kind="stable")
    figure = Figure(figsize=(WIDTH, 0.65 + 0.18 * len(table)))
    axis = figure.subplots()
    axis.barh(range(len(table)), list(table["importance"]), height=0.6, color="#0072B2", gid="importance")
    axis.set_yticks(range(len(table)), list(table["setting"]))
    axis.set(xlabel="importance (PED-ANOVA, best quarter of trials)", xlim=(0, None))
    axis.set_title(title)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)
    return figure
