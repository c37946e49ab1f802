"""How far confidence can be trusted, from results/confidence.csv: reliability, and risk against coverage."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.figures.results import WIDTH
from hmerbench.benchmarks.strict_files import read_table

BINS = 8  # of equally many readings
FEWEST = 10  # readings of which a share is drawn
WAYS = {"per_token": ("before: mean probability per token", "C1", "s"), "confidence": ("now: calibrated", "C0", "o")}
Readings = tuple[np.ndarray, np.ndarray]  # confidence and whether it is right, of every reading
Draw = Callable[[Axes, str, np.ndarray, np.ndarray], None]


def on_test_images(table: Path) -> dict[str, dict[str, Readings]]:
    """By network and way, the readings of CROHME's test images. Raises UserError for a damaged table."""
    rows = [row for row in read_table(table) if row["set"].isdecimal() and row["read"] == "1"]
    return {
        network: {
            way: tuple(
                np.array([float(row[key]) for row in rows if row["network"] == network]) for key in (way, "right")
            )
            for way in WAYS
        }
        for network in sorted({row["network"] for row in rows})
    }  # pyright: ignore[reportReturnType]


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
        wrong = 1 - right[np.argsort(-shares, kind="stable")]
        taken = np.arange(FEWEST, len(wrong) + 1)
        axis.plot(
            100 * taken / len(wrong), 100 * wrong.cumsum()[taken - 1] / taken, color=WAYS[way][1], label=WAYS[way][0]
        )

    return _panels(table, draw, "coverage: readings taken, surest first (%)", "of these wrong (%)")[0]


def _panels(table: Path, draw: Draw, x: str, y: str) -> tuple[Figure, list[Axes]]:
    networks = on_test_images(table)
    if not networks:
        raise UserError(f"{table}: has no rows of test images; `hmerbench calibrate --check RUN` reads some")
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    axes = list(figure.subplots(1, len(networks), sharey=True, squeeze=False)[0])
    for axis, (network, ways) in zip(axes, networks.items(), strict=True):
        for way, (shares, right) in ways.items():
            draw(axis, way, shares, right)
        axis.set_title(f"{network} (n={len(right)})")
        axis.set_xlabel(x)
    axes[0].set_ylabel(y)
    axes[0].legend()
    return figure, axes
