"""What a person sees of a training: a bar, and one line per epoch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.config import Config
from benchmarks.printing import aside


class Report:
    """The bar a person watches, and one line per epoch for logs."""

    def __init__(self, progress: Progress, config: Config, epochs: int, done: int):
        self.progress, self.config, self.epochs = progress, config, epochs
        self.whole = progress.add_task(
            f"{config.recipe} ({config.preset})", total=epochs, completed=done, note="epochs"
        )
        self.now = progress.add_task("  epoch", total=1, note="steps")

    def epoch(self, epoch: int, steps: int, position: int) -> None:
        """An epoch, counted from 0, begins at a position."""
        self.progress.reset(self.now, total=steps, completed=position, description=f"  epoch {epoch + 1}")

    def step(self, position: int, loss: float) -> None:
        """So many steps of the epoch are done, with this mean loss."""
        self.progress.update(self.now, completed=position, note=f"steps, loss {loss:.3f}")

    def line(self, line: dict[str, Any]) -> None:
        """An epoch is over, of which the history says `line`."""
        self.progress.advance(self.whole)
        validated = f", val token ExpRate {line['val_token_exprate']:.2f}" if "val_token_exprate" in line else ""
        self.progress.console.print(
            f"{self.config.recipe} {self.config.preset} seed {self.config.seed}: epoch {line['epoch']}/{self.epochs} "
            f"loss {line['loss']:.4f}, {line['images_per_s']:.0f} images/s{validated}",
        )


@contextmanager
def progress_of(config: Config, done: int, quiet: bool) -> Iterator[Report]:
    """The report of a training of which `done` epochs are over."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeRemainingColumn(), console=aside, disable=quiet) as progress:
        yield Report(progress, config, config.training.epochs, done)
