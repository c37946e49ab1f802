"""Rows as CSV for files and as a table for the terminal."""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 130)
aside = Console(stderr=True, highlight=False)  # for progress and warnings, which are no results

Row = Mapping[str, object]  # by the names of the columns; None is left empty


def show(title: str, rows: Sequence[Row], caption: str | None = None) -> None:
    """Prints the columns of the first row; numbers with four digits, to the right."""
    table = Table(title=title, title_justify="left", caption=caption)
    for name in rows[0]:
        numbers = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
