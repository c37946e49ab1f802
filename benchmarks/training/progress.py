"""Training progress on the console."""

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.printing import err_console


class Report(Progress):
    """A progress bar, and one line per epoch for logs. `done` epochs are already complete."""

    def __init__(self, config: Config, done: int, quiet: bool):
        description, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
        columns = (description, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn())
        day = 86400.0  # an epoch may take hours, and the time left is estimated from several
        super().__init__(*columns, console=err_console, disable=quiet, speed_estimate_period=day)
        self.config, self.epochs = config, config.training.epochs
        title = f"{config.recipe} ({config.preset})"
        self.run_task = self.add_task(title, total=self.epochs, completed=done, note="epochs")
        self.epoch_task = self.add_task("  epoch", total=1, note="steps")

    def epoch(self, epoch: int, steps: int, position: int) -> None:
        """Start an epoch (counted from 0), of which `position` steps are already done."""
        self.reset(self.epoch_task, total=steps, completed=position, description=f"  epoch {epoch + 1}")

    def step(self, position: int, loss: float) -> None:
        """Show that `position` steps of the epoch are done, and their mean loss."""
        self.update(self.epoch_task, completed=position, note=f"steps, loss {loss:.3f}")

    def line(self, line: dict[str, Any]) -> None:
        """End an epoch; `line` is its entry in the history."""
        self.advance(self.run_task)
        validated = f", val token ExpRate {line['val_token_exprate']:.2f}" if "val_token_exprate" in line else ""
        self.console.print(
            f"{self.config.recipe} {self.config.preset} seed {self.config.seed}: epoch {line['epoch']}/{self.epochs} "
            f"loss {line['loss']:.4f}, {line['images_per_s']:.0f} images/s{validated}",
        )
