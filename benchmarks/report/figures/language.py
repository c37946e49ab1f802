"""The figure of the language models: perplexity over epochs, the test's at the end, and what the paper reports."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from hmerbench.benchmarks.report.figures.results import GRAY, WIDTH, handle, looks_of
from hmerbench.benchmarks.report.frames import read_frame

TICKS = (60, 80, 100, 150, 200, 300, 400, 600)


def language_curves(curves: Path, table: Path) -> Figure:
    """Validation perplexity after every epoch, a line for each run of a model of the paper; test perplexity after the
    last one, over all seeds; and the reported one, as a line across. `curves` and `table` are results/language*.csv."""
    lines = read_frame(curves)
    models = [model for model in read_frame(table).to_dict("records") if model["recipe"] in {*lines["recipe"]}]
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
