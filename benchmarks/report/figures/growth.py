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
SIDES = {"plain": ("#D55E00", "s", "--"), "fast": ("#0072B2", "o", "-")}


def growth(table: pd.DataFrame) -> Figure:
    """Seconds of a search along every axis, plain and fast (columns axis, value, plain, fast), on logarithmic scales;
    the slope over the last doubling says how cost grows: 1 is linear."""
    figure = Figure(figsize=(WIDTH, 3.3))
    panels = figure.subplots(2, 2, sharey=True).flat
    for panel, (axis, (label, unit)) in zip(panels, AXES.items(), strict=True):
        part = table.query("axis == @axis")
        for side, (colour, marker, line) in SIDES.items():
            slope = f"{side}, slope {_slope(part, side):.1f}"
            panel.loglog(
                part["value"], part[side], line, marker=marker, color=colour, label=slope, gid=f"{axis}, {side}"
            )
        panel.set_xticks(part["value"], [f"{value / unit:.0f}" for value in part["value"]])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel(label)
        panel.margins(y=0.25)
        panel.legend(loc="upper left", handlelength=1.8)
    for panel in figure.axes[::2]:
        panel.set_ylabel("seconds")
    return figure


def _slope(part: pd.DataFrame, side: str) -> float:
    first, last = part.iloc[-2], part.iloc[-1]
    return math.log(last[side] / first[side]) / math.log(last["value"] / first["value"])
