"""How a search's time grows, as a drawing of `make figures`."""

import math

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from benchmarks.report.figures.results import WIDTH

AXES = {  # axis of growth.csv -> label, what its values are divided by
    "image_area": ("image area (1000 px)", 1000),
    "sequence_length": ("steps", 1),
    "beam_width": ("beam width", 1),
    "batch_size": ("images at once", 1),
}
SIDES = {"plain": ("#D55E00", "s--"), "fast": ("#0072B2", "o-")}


def growth(table: pd.DataFrame) -> Figure:
    """Seconds of a search along every axis, plain and fast (columns axis, value, plain, fast), on logarithmic scales;
    the slope over the last doubling says how cost grows: 1 is linear. Raises KeyError, IndexError for other tables."""
    figure = Figure(figsize=(WIDTH, 3.3))
    panels, parts = figure.subplots(2, 2, sharey=True), dict(list(table.groupby("axis")))
    for panel, (axis, (label, unit)) in zip(panels.flat, AXES.items(), strict=True):
        part = parts[axis]
        doubled = [math.log(part[name].iloc[-1] / part[name].iloc[-2]) for name in ("value", *SIDES)]
        slopes = dict(zip(SIDES, (grown / doubled[0] for grown in doubled[1:]), strict=True))
        for side, (color, marks) in SIDES.items():
            named = f"{side}, slope {slopes[side]:.1f}"
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
