"""ExpRate on CROHME's test images by depth of nesting, from results/nested.csv."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.figures.results import WIDTH, looks_of
from hmerbench.benchmarks.strict_files import read_table

SHOWN = ("large", "medium")  # presets, a panel each
ROWS = ("bttr", "bttr-baseline", "comer-self", "comer-cross", "comer-fusion")
_DEPTH = re.compile(r"depth (\d)( and more)? \((.*)\)")


def by_depth(table: Path) -> Figure:
    """A panel for each preset, a line for each row of the ablation. Raises UserError for a damaged table."""
    rows = [row for row in read_table(table) if row.get("recipe") in ROWS and row.get("preset") in SHOWN]
    depths = [name for name in rows[0] if name.startswith("depth ")] if rows else []
    if not depths:
        raise UserError(f"{table}: has no rows of {' and '.join(SHOWN)}; `hmerbench nested` makes it again")
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes, looks = figure.subplots(1, len(SHOWN), sharey=True), looks_of(list(ROWS))
    for axis, preset in zip(axes, SHOWN, strict=True):
        for row in sorted((row for row in rows if row["preset"] == preset), key=lambda row: ROWS.index(row["recipe"])):
            color, marker, line = looks[row["recipe"]]
            rates = [float(row[name].partition(" ")[0]) for name in depths]
            axis.plot(range(len(depths)), rates, color=color, marker=marker, linestyle=line, label=row["recipe"])
        axis.set_title(f"preset {preset}")
        axis.set_xticks(
            range(len(depths)), [re.sub(r"depth (\d)( and more)? \((.*)\)", _label, name) for name in depths]
        )
        axis.set_xlabel("depth of nesting (images)")
    axes[0].set_ylabel("ExpRate (%)")
    axes[-1].legend()
    return figure


def _label(match: re.Match[str]) -> str:
    return f"{match[1]}{'+' if match[2] else ''}\n({match[3]})"
