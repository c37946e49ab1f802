"""What a job is going to do, printed before it begins, and how long its trainings will take."""

from collections.abc import Sequence
from contextlib import suppress
from statistics import median

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import show
from hmerbench.benchmarks.report.ladder import measured_cost
from hmerbench.benchmarks.runs.folder import RunFolder


def show_plan(runs: Sequence[RunFolder], splits: Sequence[str]) -> None:
    """Print what is done of each run, and how long its training will take."""
    rows = []
    for run in runs:
        done = ["trained", *(split for split in splits if run.scored(split))] if run.trained else []
        row = {"row": run.settings.recipe, "seed": run.settings.seed, "already done": ", ".join(done) or "-"}
        rows.append(row | {"training time": "-" if run.trained else expected_time(run)})
    show(f"plan: preset {runs[0].settings.preset}, test sets {', '.join(splits)}", rows)


def expected_time(run: RunFolder) -> str:
    """How long a training will take, by those finished here, or else by the committed ones."""
    if (seconds := expected_seconds(run)) is not None:
        return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"
    committed = run.settings.data.name == "crohme" and measured_cost(run.settings.preset, run.settings.recipe)
    return committed or "unknown"


def expected_seconds(run: RunFolder) -> float | None:
    """Median duration of finished trainings at this preset in the same workspace; None if there are none."""
    others = map(RunFolder, run.path.parents[1].glob(f"*/{run.settings.preset}-seed*"))
    durations = list[float]()
    for other in others:
        with suppress(UserError):  # a damaged file there is no fault of this run
            durations += other.seconds[-1:] if other.trained else []
    return median(durations) if durations else None
