"""The figures drawn by `make figures` from run folders, at column width.

Color is always redundant with a marker or line style, so that the figures can be read in grayscale. Intervals are of
95 %, as in the tables: over writers, and seeds where they differ; of reported rates and of `_groups` over images
(Wilson's).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report.paper import YEAR, model_name, position, reference
from hmerbench.benchmarks.report.presets import preset_labels, rung
from hmerbench.benchmarks.report.scored_runs import sampled_rate
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.metrics import BUCKETS, WITHIN, Expression, printed_interval, proportion_interval

WIDTH = 3.4  # inches
Look = tuple[str, str, Any]  # color, marker, line style
LOOKS: dict[str, Look] = {  # of the paper's rows
    "bttr": ("#000000", "P", (0, (1, 1))),
    "bttr-baseline": ("#E69F00", "s", (0, (4, 1.5))),
    "comer-self": ("#56B4E9", "^", (0, (3, 1, 1, 1))),
    "comer-cross": ("#009E73", "D", (0, (2, 1))),
    "comer-fusion": ("#0072B2", "o", "-"),
}
OTHER_LOOKS: tuple[Look, ...] = (  # of other recipes
    ("#CC79A7", "v", (0, (6, 1, 1, 1))),
    ("#D55E00", "X", (0, (5, 1))),
    ("#7F7F7F", "<", (0, (1, 2))),
    ("#8C564B", ">", (0, (3, 1))),
    ("#882255", "h", (0, (1, 3))),
    ("#44AA99", "d", (0, (7, 2))),
    ("#332288", "p", (0, (2, 2, 1, 2))),
    ("#999933", "8", (0, (4, 1, 1, 1, 1, 1))),
)
RATES = {  # the metrics of the forest plot
    WITHIN[0]: ("ExpRate", "#0072B2", "o"),
    WITHIN[1]: ("≤ 1 error", "#009E73", "s"),
    WITHIN[2]: ("≤ 2 errors", "#D55E00", "D"),
}
GRAY = "#555555"

Rate = tuple[float, float, float]  # in percent: the rate, and both ends of its interval


def rate(seeds: Sequence[RunFolder], right: Callable[[Expression], bool], bucket: str = "") -> Rate:
    """The rate of a row on the set, or on its expressions of a bucket of lengths."""
    found = sampled_rate(seeds, YEAR, right, lambda row: not bucket or row.bucket == bucket)
    return found.value, found.low, found.high


def reported(percent: float, n: int) -> Rate:
    """The rate that a paper prints, with the interval of the count behind it."""
    return percent, *printed_interval(percent, n)


def seeds_of_rows(runs: Sequence[RunFolder]) -> dict[tuple[str, str], list[RunFolder]]:
    """(recipe, preset label) -> its seeds scored on all of `YEAR`, in the order of the paper and of the ladder."""
    labels, rows = preset_labels(runs), dict[tuple[str, str], list[RunFolder]]()
    for run in sorted(runs, key=lambda run: (position(run.recipe), rung(run.preset), run.seed)):
        score = run.scores.get(YEAR)
        if score and score.n == crohme().n(YEAR):
            rows.setdefault((run.recipe, labels[run]), []).append(run)
    return rows


def looks_of(recipes: Iterable[str]) -> dict[str, Look]:
    """recipe -> its look: the paper's rows look alike in every figure, others are told apart within one."""
    names = sorted({*recipes}, key=position)
    return LOOKS | dict(zip((name for name in names if name not in LOOKS), cycle(OTHER_LOOKS)))


def handle(label: str, color: str, marker: str, line: Any = "none", *, filled: bool = True) -> Line2D:
    fill = color if filled else "white"
    return Line2D([], [], color=color, marker=marker, markerfacecolor=fill, linestyle=line, label=label)


def label_rows(axis: Axes, names: Sequence[str], **text: Any) -> None:
    """Replace the y axis by named rows, from top to bottom."""
    axis.set_yticks(range(len(names)), names, **text)
    axis.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", length=0)


def by_length(runs: Sequence[RunFolder]) -> Figure:
    """Fig. 3, ExpRate by length: a panel with the reported rates, then one per preset that repeats them
    behind its own. Presets with a single row, which compares nothing, are left out if another has more."""
    paper, sizes = reference()["fig3"], reference()["fig3"]["n"]
    recipes = {model_name(recipe): recipe for recipe in reference()["recipes"]}
    by_paper = {recipes[model]: list(map(reported, percents, sizes)) for model, percents in paper["rates"].items()}
    panels: dict[str, dict[str, list[Rate]]] = {}
    rows = sorted(seeds_of_rows(runs).items(), key=lambda row: rung(row[0][1].partition(" ")[0]))
    in_part = {preset: " (in part external)" for (_, preset), seeds in rows if any(run.external for run in seeds)}
    for (recipe, preset), seeds in rows:
        if all(run.scores[YEAR].by_length for run in seeds):
            rates = [rate(seeds, lambda row: row.errors == 0, bucket) for bucket in BUCKETS]
            panels.setdefault(f"preset {preset}{in_part.get(preset, '')}", {})[recipe] = rates
    panels = {name: panel for name, panel in panels.items() if len(panel) > 1} or panels
    panels = {"reported": by_paper} | panels
    highest = max(high for panel in panels.values() for rates in panel.values() for _, _, high in rates)
    top = 88 if highest < 88 else 102  # the paper's rates are far from 100
    figure = Figure(figsize=(WIDTH, 0.9 + 1.4 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    drawn_recipes = sorted({recipe for panel in panels.values() for recipe in panel}, key=position)
    looks, beside = looks_of(drawn_recipes), set[str]()  # line styles of what is repeated beside one's own
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        for recipe, rates in panel.items():
            x = np.arange(len(rates)) + (drawn_recipes.index(recipe) - (len(drawn_recipes) - 1) / 2) * 0.15
            color, marker, line = looks[recipe]
            if panel is not by_paper and recipe in by_paper:
                beside.add(dotted := ":" if len(panel) < 3 else "none")
                faint = {"color": color, "marker": marker, "markerfacecolor": "white", "linewidth": 0.7}
                centers = [center for center, _, _ in by_paper[recipe]]
                axis.plot(x, centers, linestyle=dotted, gid=f"{recipe}, beside", **faint)
            centers, lows, highs = np.transpose(rates)
            ends = np.abs([centers - lows, centers - highs])
            drawn = axis.errorbar(x, centers, ends, fmt=marker, color=color, elinewidth=0.6, capsize=1.2)
            drawn[0].set(linestyle=line, gid=f"{recipe}, {name}", linewidth=0.9, clip_on=False)
        axis.set(title=name, ylabel="ExpRate (%)", ylim=(0, top), yticks=range(0, top, 20))
        axis.grid(visible=False, axis="x")
    axes[-1].set_xticks(range(len(sizes)), [f"{name}\n{n}" for name, n in zip(paper["buckets"], sizes, strict=True)])
    axes[-1].set_xlabel("tokens of the true caption, and how many expressions have them")
    handles = [handle(model_name(recipe), *looks[recipe]) for recipe in drawn_recipes]
    if beside:
        handles.append(handle("the same, reported", GRAY, "o", ":" if ":" in beside else "none", filled=False))
    figure.legend(handles=handles, loc="outside upper center", ncols=3 if len(handles) > 4 else 2)
    return figure


def forest(runs: Sequence[RunFolder]) -> Figure:
    """Table 1 as a forest plot: ExpRate, <= 1 and <= 2 errors. Open markers are reported, filled ones
    runs scored here; strokes are single seeds."""
    seeds_of, n = seeds_of_rows(runs), crohme().n(YEAR)
    paper = {row["model"]: row["exprate"] for row in reference()["table1"]}
    table2 = {row[0]: row[:3] for row in reference()["table2"][YEAR].values()}  # ExpRate -> all rates
    lines: list[tuple[str, str, list[Rate], list[RunFolder]]] = []
    for model in [*paper, *(name for recipe, _ in seeds_of if (name := model_name(recipe)) not in paper)]:
        if model in paper:
            percents = table2.get(paper[model], [paper[model]])
            lines.append((model, "reported", [reported(percent, n) for percent in percents], []))
        for (recipe, preset), seeds in seeds_of.items():
            if model_name(recipe) == model:
                rates = [rate(seeds, lambda row, metric=metric: bool(metric.holds(row))) for metric in RATES]
                lines.append((model, preset, rates, seeds))
    figure = Figure(figsize=(WIDTH, 0.75 + 0.3 * len(lines)))
    axis, labels = figure.subplots(), []
    for y, (model, source, rates, seeds) in enumerate(lines):
        first = y == 0 or lines[y - 1][0] != model
        label = f"{source}, {counted(len(seeds), 'seed')}" if seeds else model
        labels.append(f"{model}: {label}" if first and seeds else label)  # a row that the paper does not have
        if y and first:
            axis.axhline(y - 0.5, color="#CCCCCC", linewidth=0.4, zorder=0)
        for index, (metric, (center, low, high)) in enumerate(zip(RATES, rates, strict=False)):
            _, color, marker = RATES[metric]
            at = y + (index - 1) * 0.22
            axis.plot([low, high], [at, at], color=color, linewidth=0.8, zorder=2)
            looks = {"color": color, "markerfacecolor": color if seeds else "white", "zorder": 3}
            axis.plot(center, at, marker, gid=f"{model}, {source}, {metric.count}", **looks)
            if len(seeds) > 1:
                by_seed = [100 * getattr(run.scores[YEAR], metric.count) / n for run in seeds]
                axis.plot(by_seed, [at] * len(seeds), "|k", ms=5, zorder=4)
    label_rows(axis, labels)
    axis.set_xlabel(f"CROHME {YEAR} (%), n = {n}")
    metrics = [handle(*entry) for entry in RATES.values()]
    seed = handle("a seed", "black", "|")
    sources = [handle("reported", GRAY, "o", filled=False), handle("runs scored here", GRAY, "o"), seed]
    handles = list(chain.from_iterable(zip(metrics, sources, strict=True)))  # legends are filled column by column
    several = any(len(seeds) > 1 for seeds in seeds_of.values())
    figure.legend(handles=handles if several else handles[:-1], loc="outside upper center", ncols=3)
    return figure


PANELS = {"loss": "loss", "lr": "learning rate", "images_per_s": "images / s", "val_token_exprate": "token match (%)"}


def training(runs: Sequence[RunFolder], preset: str) -> Figure:
    """Loss, learning rate, images per second and, if measured, token match on held-out data by epoch, for the runs
    labeled `preset`."""
    runs = sorted(runs, key=lambda run: (position(run.recipe), run.seed))
    looks = looks_of(run.recipe for run in runs)
    panels = [key for key in PANELS if any(key in line for run in runs for line in run.history)]
    figure = Figure(figsize=(WIDTH, 0.6 + 0.95 * len(panels)))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, key in zip(axes, panels, strict=True):
        for run in runs:
            points = [(line["epoch"], line[key]) for line in run.history if key in line]
            color, marker, line = looks[run.recipe]
            style = {"color": color, "marker": marker if len(points) <= 60 else "", "linestyle": line}
            axis.plot(*zip(*points, strict=True), markersize=2, gid=f"{run.recipe}, seed {run.seed}, {key}", **style)
        axis.set(ylabel=PANELS[key], ylim=(0, None))
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(list(axes))
    handles = [handle(model_name(recipe), *looks[recipe]) for recipe in dict.fromkeys(run.recipe for run in runs)]
    figure.legend(handles=handles, title=f"preset {preset}", loc="outside upper center", ncols=2)
    return figure


PLACES = {  # of a label around its point: offset in points -> alignment
    (6, 0): ("left", "center"),
    (-6, 0): ("right", "center"),
    (0, 5): ("center", "bottom"),
    (0, -5): ("center", "top"),
    (0, 12): ("center", "bottom"),
}


def minutes(runs: Sequence[RunFolder]) -> Figure:
    """ExpRate against core-minutes of training: a marker per row and preset, a stroke per
    seed. Each preset is labeled at its best row, in the first place that hides nothing."""
    figure = Figure(figsize=(WIDTH, 2.8))
    axis, handles, best = figure.subplots(), {}, dict[str, tuple[float, float]]()
    rows = seeds_of_rows([run for run in runs if run.core_minutes])
    looks = looks_of(recipe for recipe, _ in rows)
    for (recipe, preset), seeds in rows.items():
        cost = [run.core_minutes for run in seeds]
        rates = [100 * run.scores[YEAR].exact / run.scores[YEAR].n for run in seeds]
        color, marker, _ = looks[recipe]
        handles[recipe] = handle(model_name(recipe), color, marker)
        x, y = float(np.mean(cost)), float(np.mean(rates))
        axis.plot(x, y, marker, color=color, gid=f"{recipe}, {preset}")
        axis.plot(cost, rates, "_", color=color, gid=f"{recipe}, {preset}, seeds")
        if preset not in best or y > best[preset][1]:
            best[preset] = x, y
    axis.margins(y=0.1)
    axis.set(xlabel="core-minutes of training", ylabel=f"ExpRate on CROHME {YEAR} (%)")
    axis.set_xlim(0, 1.1 * max((x for x, _ in best.values()), default=1))
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=3)
    figure.draw_without_rendering()  # now it is known where everything is
    points = [point for line in axis.lines for point in np.asarray(line.get_xydata())]  # none without a known cost
    taken = axis.transData.transform(points) if points else np.empty((0, 2))
    boxes = list[Bbox]()
    for preset, point in best.items():
        for offset, (ha, va) in PLACES.items():
            label = axis.annotate(preset, point, offset, textcoords="offset points", ha=ha, va=va)
            box = label.get_window_extent().padded(1)
            inside = axis.bbox.contains(*box.min) and axis.bbox.contains(*box.max)
            if inside and not box.count_contains(taken) and not box.count_overlaps(boxes):
                break
            label.remove()
        else:
            label = axis.annotate(preset, point, (6, 0), textcoords="offset points", va="center")
        boxes.append(label.get_window_extent())
    return figure


SET_LOOKS = ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "v"), ("#7F7F7F", "<"), ("#8C564B", ">")
RELATIONS = ("Right", "Sup", "Sub", "Above", "Below", "Inside")
NO_RELATION = "_"  # LgEval's label for a missing relation
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
    handles = [handle(f"{year} (n = {run.errors[year]['n']})", *look) for year, look in _looks_of_sets(run).items()]
    title = f"{model_name(run.recipe)}, preset {run.preset}, seed {run.seed}"
    figure.legend(handles=handles, title=title, loc="outside upper center", ncols=3, handletextpad=0.1)
    return figure


def confusions(run: RunFolder) -> list[tuple[str, int]]:
    """("truth → prediction", count over all sets) where the prediction has the paths of the truth, most frequent
    first."""
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
    missed = [share[name, NO_RELATION] for name in RELATIONS]
    invented = [share[NO_RELATION, name] for name in RELATIONS]
    y = np.arange(len(RELATIONS))
    looks: dict[str, Any] = {"height": 0.34, "edgecolor": "#8A3D00", "linewidth": 0.4}
    axis.barh(y - 0.18, missed, label="missed", gid="missed", color="#D55E00", hatch="", **looks)
    axis.barh(y + 0.18, invented, label="invented", gid="invented", color="#F5C9A8", hatch="//////", **looks)
    label_rows(axis, RELATIONS)
    axis.set(xlabel="expressions (%)", title="Relations missed, invented")
    axis.legend(loc="lower right", handlelength=1.2)


def _looks_of_sets(run: RunFolder) -> dict[str, tuple[str, str]]:
    places = {split: place for place, split in enumerate(dict.fromkeys((*crohme().tests, *run.errors)))}
    return {split: SET_LOOKS[places[split] % len(SET_LOOKS)] for split in run.errors}


def _groups(axis: Axes, run: RunFolder, table: str, key: str) -> None:
    """Draw ExpRate, with its interval over images, for each group of an error table (named by `key`) and each set."""
    names = list(dict.fromkeys(row[key] for errors in run.errors.values() for row in errors[table]))
    for index, (year, errors) in enumerate(run.errors.items()):
        color, marker = _looks_of_sets(run)[year]
        for row in errors[table]:
            if row["n"]:
                y = names.index(row[key]) + (index - (len(run.errors) - 1) / 2) * 0.24
                center, (low, high) = row["exact"] / row["n"], proportion_interval(row["exact"], row["n"])
                axis.plot([100 * low, 100 * high], [y, y], color=color, linewidth=0.7)
                gid = f"{table}, {year}, {row[key]}"
                axis.plot(100 * center, y, marker, color=color, markersize=3, clip_on=False, gid=gid)
    label_rows(axis, names)
    axis.set(xlabel="ExpRate (%)", xlim=(0, None), title=f"ExpRate by {table}")
