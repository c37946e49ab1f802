"""Consoles for results and for progress; tables for the terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import console as rich
from rich.table import Table

from hmerbench.evaluation import printable


class Console(rich.Console):
    """Rich's, which writes out the control characters that names of files and settings may hold."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, line by line."""
        lines = ("\n".join(map(printable, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*lines, **options)


# no markup: names and paths may look like it
console = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 130)
# for progress and warnings, which in a notebook would become part of what it shows
err_console = Console(
    stderr=True,
    highlight=False,
    markup=False,
    soft_wrap=True,
    width=None if sys.stderr.isatty() else 130,
    force_jupyter=False,
)

Row = Mapping[str, object]  # by column name; None is an empty cell


def show(title: str, rows: Sequence[Row], caption: str | None = None) -> None:
    """Print `rows` with the columns of the first; numbers with four significant digits, right-aligned."""
    table = Table(title=title, title_justify="left", caption=caption)
    for name in rows[0]:
        numbers = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def counted(n: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return printable(value)
