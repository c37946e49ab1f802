"""Consoles for results and for progress; tables for the terminal; the progress of a loop, and of a training."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

from rich import console as rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hmerbench.evaluation import printable

QUIET_SECONDS = 15  # between two lines of progress without a terminal
Item = TypeVar("Item")


class Console(rich.Console):
    """Rich's, which writes out the control characters that names of files and settings may hold."""

    def print(self, *objects: Any, **options: Any) -> None:
        lines = ("\n".join(map(printable, o.split("\n"))) if isinstance(o, str) else o for o in objects)
        super().print(*lines, **options)


def _console(terminal: bool, **options: Any) -> Console:
    """Without markup: names and paths may look like it."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if terminal else 130, **options)


console = _console(bool(sys.stdout and sys.stdout.isatty()))  # None: closed
# for progress and warnings, which in a notebook would become part of what it shows
err_console = _console(bool(sys.stderr and sys.stderr.isatty()), stderr=True, force_jupyter=False)


def show(title: str, rows: Sequence[Mapping[str, object]], caption: str | None = None) -> None:
    """Print `rows` with the columns of the first; numbers with four significant digits, right-aligned. None is an
    empty cell."""
    table = Table(title=title, title_justify="left", caption=caption)
    for name in rows[0]:
        numbers = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def progress(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, with a bar on a terminal, else with a line now and then of how much is done."""
    total = len(items) if isinstance(items, Sized) else None
    if err_console.is_terminal:
        columns = "  {task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=err_console, transient=True) as bar:
            yield from bar.track(items, total, description=what)
        return
    printed = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - printed > QUIET_SECONDS:
            printed = time.monotonic()
            err_console.print(f"  {what}: {f'{100 * done // total} %' if total else f'{done:,}'}")
        yield item


class TrainingProgress(Progress):
    """A progress bar of a training, and one line per epoch for logs. `done` epochs are already complete."""

    def __init__(self, name: str, epochs: int, done: int, quiet: bool):
        description, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (description, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn())
        day = 86400.0  # an epoch may take hours, and the time left is estimated from several
        super().__init__(*columns, console=err_console, disable=quiet, speed_estimate_period=day)
        self.name, self.epochs = name, epochs
        self.run_task = self.add_task(name, total=epochs, completed=done, note="epochs")
        self.epoch_task = self.add_task("  epoch", total=1, note="steps")

    def epoch(self, epoch: int, steps: int, position: int) -> None:
        """Start an epoch (counted from 0), of which `position` steps are already done."""
        self.reset(self.epoch_task, total=steps, completed=position, description=f"  epoch {epoch + 1}")

    def step(self, position: int, loss: float) -> None:
        """Show that `position` steps of the epoch are done, and their mean loss."""
        self.update(self.epoch_task, completed=position, note=f"steps, loss {loss:.3f}")

    def line(self, line: Mapping[str, Any]) -> None:
        """End an epoch; `line` is its entry in the history."""
        self.advance(self.run_task)
        validated = f", val token ExpRate {line['val_token_exprate']:.2f}" if "val_token_exprate" in line else ""
        if not self.disable:  # other processes of a team are quiet
            done = f"{self.name}: epoch {line['epoch']}/{self.epochs} loss {line['loss']:.4f}"
            self.console.print(f"{done}, {line['images_per_s']:.0f} images/s{validated}")


def counted(n: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _cell(value: object) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return printable(value)
