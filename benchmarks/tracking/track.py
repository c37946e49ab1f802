"""MLflow as a mirror of run folders (mirror.py). The folder is the truth: trouble with MLflow costs one warning and
next to no time, and `python -m benchmarks track FOLDER` mirrors what is missing later."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.printing import aside
from benchmarks.runs.folder import RunFolder
from benchmarks.tracking.tracking_store import bounded, reach, store, tracking_uri, without_password, workspace_of

if TYPE_CHECKING:
    from benchmarks.tracking.mirror import Mirror

PATIENCE = 20  # a store that failed after t seconds is left alone for 20 t: trouble costs a twentieth at most

Result = TypeVar("Result")
_warned: set[str] = set()
_left_alone_until: dict[str, float] = {}


def track(
    folder: Path, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
) -> str | None:
    """Mirrors a run folder (and its tables); returns the MLflow run id, None where MLflow was no help.

    The run hangs in its table, or, called `name`, below the run called `under`, as the trials of tuning do below their
    study. `running` says that its training goes on right now. Raises UserError when `folder` is not a run folder.
    """
    under = under or study_of(folder)
    run = RunFolder(folder)
    _ = run.config, run.history, run.environment, run.state, run.scores  # what is damaged is told now, and as an error
    return _with_store(folder, run.data, lambda mirror: mirror.put(run, tables, under, name, running))


def study_of(folder: Path) -> str:
    """The run that stands for a study, by one of its trials' folders WORKSPACE/tuning/STUDY/TRIAL; "" for any other."""
    study = folder.resolve().parent
    return f"tuning/{study.name}" if study.parent.name == "tuning" else ""


def conclude(folder: Path, data: str, under: str, status: str) -> None:
    """Says how it ended (FINISHED or KILLED) of the run called `under`; `folder` is one of those that hang below it."""
    _with_store(folder, data, lambda mirror: mirror.conclude(under, status))


def _with_store(folder: Path, data: str, action: "Callable[[Mirror], Result]") -> Result | None:
    """What the action returns; None, and one warning, where the store of a folder is of no use."""
    uri, began = tracking_uri(folder), time.monotonic()
    if began < _left_alone_until.get(uri, 0):
        return None
    try:
        reach(uri)
        from benchmarks.tracking.mirror import Mirror  # MLflow is slow to import, and not needed to train

        result = action(Mirror(bounded(uri), workspace_of(folder), data))
    except ImportError as error:
        warn(uri, f"{error.name or error} is not installed, so runs are not logged (the run folders hold everything)")
    except Exception as error:  # a mirror must never stop the work
        _left_alone_until[uri] = time.monotonic() + PATIENCE * (time.monotonic() - began)
        words = without_password(" ".join(str(error).split()))[:160] or type(error).__name__
        if "database schema" in words:
            words = "its tables are of another MLflow: use that, or, if they are older, `mlflow db upgrade`"
        warn(uri, f"MLflow at {store(folder)} is not usable ({words}); `python -m benchmarks track` can log runs later")
    else:
        _warned.discard(uri)
        return result
    return None


def warn(uri: str, message: str) -> None:
    """Once for every store, until it works again."""
    if uri not in _warned:
        _warned.add(uri)
        aside.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)
