"""Track run folders in MLflow (mirror.py). The folder is authoritative: a failure of MLflow costs one warning and next
to no time, and `hmerbench track FOLDER` mirrors the run later."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hmerbench.benchmarks.errors import UserError, reason
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.runs.language import LanguageRun
from hmerbench.benchmarks.runs.listing import run_in
from hmerbench.benchmarks.tracking.tracking_store import bounded, reach, store, tracking_uri

if TYPE_CHECKING:
    from hmerbench.benchmarks.tracking.mirror import Mirror

BACKOFF = 20  # a store that failed after t seconds is skipped for 20 t, so failures cost at most 1/20 of the time

Result = TypeVar("Result")
_warned: set[str] = set()
_left_alone_until: dict[str, float] = {}


def track(
    folder: Path, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
) -> str | None:
    """Mirror a run folder (and `tables`) to MLflow; return the MLflow run id, or None if the store failed.

    The run becomes a child of its table or, with the name `name`, of the run named `under`, as a trial does of its
    study. `running`: its training is in progress; nothing is logged until an epoch is saved, as the folder may still
    look like that of an earlier training. Raises UserError if `folder` is not a run folder or damaged.
    """
    under = under or study_of(folder)
    run = run_in(folder)
    _ = run.settings, run.history, run.environment, run.finished, run.scores  # report damaged files now, as errors
    if running and not (run.history and (isinstance(run, LanguageRun) or run.state)):
        return None
    return with_store(folder, run.data, lambda mirror: mirror.put(run, tables, under, name, running))


def remove(folder: Path) -> bool:
    """Delete a run folder and its MLflow run; return whether it had one.

    Raises UserError for a committed run, one that is being trained, anything that is no run folder, and, before
    anything is deleted, if the store fails.
    """
    run = run_in(folder)
    _ = run.settings
    if folder.resolve().parent.parent.name == "reproduced":
        raise UserError(f"{folder}: this is a committed run, which the tables count; git rm -r removes it")
    with locked(folder):
        logged = with_store(folder, run.data, lambda mirror: mirror.remove(run))
        if logged is None:
            raise UserError(f"{folder}: nothing was deleted; make MLflow usable (see above), or delete the folder")
        # moved aside first, under a name that no listing shows: deleted in part, it would look like a run of its own
        place = folder.resolve()
        for aside in place.parent.glob(".removed-*"):  # of a kill
            shutil.rmtree(aside, ignore_errors=True)
        with suppress(FileNotFoundError):  # another removal clears up, too
            shutil.rmtree(place.rename(place.with_name(f".removed-{place.name}")))
    return logged


def study_of(folder: Path) -> str:
    """The name of the study's run for a trial's folder WORKSPACE/tuning/STUDY/TRIAL; "" for any other folder."""
    study = folder.resolve().parent
    return f"tuning/{study.name}" if study.parent.name == "tuning" else ""


def conclude(folder: Path, data: str, under: str, status: str) -> None:
    """Set the final status (FINISHED or KILLED) of the run named `under`; `folder` is that of a child."""
    with_store(folder, data, lambda mirror: mirror.conclude(under, status))


def with_store(folder: Path, data: str, action: "Callable[[Mirror], Result]") -> Result | None:
    """Run `action` on the store of the run folder `folder`, on `data`, and return its result; None, with one
    warning, if the store fails."""
    uri, started = tracking_uri(folder), time.monotonic()
    if started < _left_alone_until.get(uri, 0):
        return None
    try:
        reach(uri)
        from hmerbench.benchmarks.tracking.mirror import (
            Mirror,  # imports MLflow, which is slow and not needed for training
        )

        mirror = Mirror(bounded(uri), data)
        if mirror.left_behind:
            places = ", ".join(mirror.left_behind)
            warn(f"artifacts of {uri}", f"{mirror.database}: artifacts go to {places}; move that folder beside it")
        result = action(mirror)
    except ImportError as error:
        warn(uri, f"{error.name or error} is not installed, so runs are not logged (the run folders hold everything)")
    except Exception as error:  # the mirror must never stop a run
        _left_alone_until[uri] = time.monotonic() + BACKOFF * (time.monotonic() - started)
        why = reason(error, uri)
        if "database schema" in why:
            why = "its tables are of another MLflow version: use that, or, if they are older, `mlflow db upgrade`"
        warn(uri, f"MLflow at {store(folder)} is not usable ({why}); `hmerbench track` can log runs later")
    else:
        _warned.discard(uri)
        return result
    return None


def warn(uri: str, message: str) -> None:
    """Print a warning, once per store until it works again."""
    if uri not in _warned:
        _warned.add(uri)
        err_console.print(f"warning: {message}", style="yellow", soft_wrap=True)
