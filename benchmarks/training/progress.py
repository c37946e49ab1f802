"""What a person sees of a training: a bar, and one line per epoch."""

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.config import Config
from benchmarks.printing import aside


class Report(Progress):
    """The bar a person watches, and one line per epoch for logs, of a training of which `done` epochs are over."""

    def __init__(self, config: Config, done: int, quiet: bool):
        description, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (description, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn())
        super().__init__(*columns, console=aside, disable=quiet)
        self.config, self.epochs = config, config.training.epochs
        title = f"{config.recipe} ({config.preset})"
        self.whole = self.add_task(title, total=self.epochs, completed=done, note="epochs")
        self.now = self.add_task("  epoch", total=1, note="steps")

    def epoch(self, epoch: int, steps: int, position: int) -> None:
        """An epoch, counted from 0, begins at a position."""
        self.reset(self.now, total=steps, completed=position, description=f"  epoch {epoch + 1}")

    def step(self, position: int, loss: float) -> None:
        """So many steps of the epoch are done, with this mean loss."""
        self.update(self.now, completed=position, note=f"steps, loss {loss:.3f}")

    def line(self, line: dict[str, Any]) -> None:
        """An epoch is over, of which the history says `line`."""
        self.advance(self.whole)
        validated = f", val token ExpRate {line['val_token_exprate']:.2f}" if "val_token_exprate" in line else ""
        self.console.print(
            f"{self.config.recipe} {self.config.preset} seed {self.config.seed}: epoch {line['epoch']}/{self.epochs} "
            f"loss {line['loss']:.4f}, {line['images_per_s']:.0f} images/s{validated}",
        )
