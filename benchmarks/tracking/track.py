"""Track run folders in MLflow (mirror.py). The folder is authoritative: a failure of MLflow costs one warning and next
to no time, and `hmerbench track FOLDER` mirrors the run later.

A training is mirrored while it runs by this module as a program: a separate process of the lowest priority, so that
neither a failing or hanging store nor the slow import of MLflow affects it.
"""

import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hmerbench.benchmarks.errors import UserError, reason
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.runs.listing import run_in
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.tracking.tracking_store import bounded, reach, store, tracking_uri, writing

if TYPE_CHECKING:
    from hmerbench.benchmarks.tracking.mirror import Mirror

BACKOFF = 20  # a store that failed after t seconds is skipped for 20 t, so failures cost at most 1/20 of the time

Result = TypeVar("Result")
_warned: set[str] = set()
_left_alone_until: dict[str, float] = {}


def track(folder: Path, tables: Path | None = None, running: bool = False) -> str | None:
    """Mirror a run folder (and `tables`) to MLflow; return the MLflow run id, or None if the store failed.

    The run becomes a child of its table, a trial of its study. `running`: its training is in progress; nothing is
    logged until an epoch is saved, as the folder may still look like that of an earlier training.
    Raises UserError if `folder` is not a run folder or damaged.
    """
    run = run_in(folder)
    _ = run.settings, run.history, run.environment, run.finished, run.scores, run.trial  # report damaged files now
    if running and not (run.history and (isinstance(run, LanguageRun) or run.state)):
        return None
    return with_store(folder, run.data, lambda mirror: mirror.put(run, tables, running))


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


def set_status(folder: Path, data: str, status: str) -> None:
    """Set the status (RUNNING, FINISHED or KILLED) of the study of a trial's folder."""
    with_store(folder, data, lambda mirror: mirror.set_status(folder, status))


def with_store(folder: Path, data: str, action: "Callable[[Mirror], Result]") -> Result | None:
    """Run `action` on the store of the run folder `folder`, on `data`, and return its result; None, with one
    warning, if the store fails."""
    uri, started = tracking_uri(folder), time.monotonic()
    if started < _left_alone_until.get(uri, 0):
        return None
    try:
        reach(uri)
        # imports MLflow, which is slow and not needed for training
        from hmerbench.benchmarks.tracking.mirror import Mirror

        with writing(uri):
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


# ------------------------------------------------------------------------------------------ while a training goes on


STOP_SECONDS = 5  # how long the end of a training waits for its mirror
SAMPLE_SECONDS = 10  # between two samples of the system metrics


@contextmanager
def live(folder: Path, seconds: float = 30) -> Iterator[None]:
    """Mirror a run folder every `seconds` seconds and log system metrics while the run's training goes on.

    The mirroring process learns from its stdin how the training ended: after `done`, the caller mirrors the final
    state; if stdin just closes (an error, Ctrl-C or a kill), the process mirrors it itself.
    """
    command = [sys.executable, "-m", "hmerbench.benchmarks.tracking.track", str(folder), str(seconds)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:  # in a new session, so that Ctrl-C reaches only the training
        process = subprocess.Popen(command, stdin=pipe, stdout=null, stderr=pipe, start_new_session=True)
    except OSError as error:
        warn(tracking_uri(folder), f"the training is not mirrored while it runs ({error})")
        yield
        return
    relay = threading.Thread(target=_relay, args=(process, tracking_uri(folder)), daemon=True)
    relay.start()
    assert process.stdin
    with closing(process.stdin):
        yield
        with suppress(OSError):  # the process has already exited
            os.write(process.stdin.fileno(), b"done")
    relay.join(STOP_SECONDS)
    if relay.is_alive():  # the store hangs; the run can still be mirrored later
        process.kill()
        relay.join(STOP_SECONDS)


def _relay(process: subprocess.Popen[bytes], uri: str) -> None:
    """Print the warnings of the mirroring process and wait for it to exit."""
    for line in process.stderr or ():
        if line.startswith(b"warning: "):
            warn(uri, line.decode(errors="replace").removeprefix("warning: ").rstrip())
    process.wait()


def _follow(folder: Path, seconds: float) -> None:
    """Main loop of the mirroring process, until stdin tells how the training ended."""
    os.nice(19)
    monitor = None
    while not select.select([sys.stdin], [], [], seconds)[0]:
        with suppress(UserError):  # reported when the finished run is mirrored
            if run_id := track(folder, running=True):
                with suppress(Exception):  # system metrics are optional
                    monitor = monitor or _measured(run_id, tracking_uri(folder))
    if monitor is not None:
        monitor.finish()
    if os.read(sys.stdin.fileno(), 4) != b"done":
        with suppress(UserError):
            if run_in(folder).history:
                track(folder)


def _measured(run_id: str, uri: str) -> Any:
    """MLflow's monitor of CPU, memory, disk, network and GPUs, which has begun."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, SAMPLE_SECONDS, resume_logging=True, tracking_uri=bounded(uri))
    monitor.start()
    return monitor


if __name__ == "__main__":
    _follow(Path(sys.argv[1]), float(sys.argv[2]))
