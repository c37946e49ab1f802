"""MLflow as a mirror of run folders (mirror.py). The folder is the truth: trouble with MLflow costs one warning and
next to no time, and `python -m benchmarks track FOLDER` mirrors what is missing later.

While a training goes on, a process of its own mirrors it and measures the machine, at the lowest priority. So a store
that hangs, breaks or is slow to import is no matter of the training, which never imports MLflow.
"""

import os
import re
import select
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import urlopen

from rich.console import Console

from benchmarks.errors import UserError
from benchmarks.runfolder import RunFolder
from benchmarks.tracking.mirror import Mirror, has_content, sqlite_path

ANSWER_SECONDS = 5  # a store that takes longer to answer at all is not usable
STOP_SECONDS = 5  # what the end of a training waits for its mirror
PATIENCE = 20  # a store that failed after t seconds is left alone for 20 t: trouble costs a twentieth at most
SAMPLE_SECONDS = 10  # between two measurements of the machine

console = Console(stderr=True)
Result = TypeVar("Result")
_warned: set[str] = set()
_left_alone_until: dict[str, float] = {}


def track(
    folder: Path, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
) -> str | None:
    """Mirrors a run folder (and its tables); returns the MLflow run id, None where MLflow was no help.

    The run hangs in its table, or, called `name`, below the run called `under`. `running` says that its training goes
    on right now. Raises UserError when `folder` is not a run folder.
    """
    run = RunFolder.read(folder)
    return _with_store(folder, lambda mirror: mirror.put(run, tables, under, name, running))


def conclude(folder: Path, data: str, under: str, status: str) -> None:
    """Says how it ended (FINISHED or KILLED) of the run called `under`; `folder` is one of those that hang below it."""
    _with_store(folder, lambda mirror: mirror.conclude(data, under, status))


def _with_store(folder: Path, action: Callable[[Mirror], Result]) -> Result | None:
    """What the action returns; None, and one warning, where the store of a folder is of no use."""
    uri, began = tracking_uri(folder), time.monotonic()
    if began < _left_alone_until.get(uri, 0):
        return None
    try:
        _check_reachable(uri)
        result = action(Mirror(_bounded(uri), _workspace(folder)))
    except ImportError as error:
        _warn(uri, f"{error.name or error} is not installed, so runs are not logged (the run folders hold everything)")
    except Exception as error:  # a mirror must never stop the work
        _left_alone_until[uri] = time.monotonic() + PATIENCE * (time.monotonic() - began)
        words = re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))[:160] or type(error).__name__
        if "database schema" in words:
            words = "its tables are of another MLflow: use that, or, if they are older, `mlflow db upgrade`"
        _warn(
            uri, f"MLflow at {store(folder)} is not usable ({words}); `python -m benchmarks track` can log runs later"
        )
    else:
        _warned.discard(uri)
        return result
    return None


@contextmanager
def live(folder: Path, seconds: float = 30) -> Iterator[None]:
    """Mirrors a run folder now and then, in a process of its own, while its training goes on.

    The process hears through its stdin how that ended: `done`, or nothing more - an error, Ctrl-C or a kill - when it
    mirrors the last state itself.
    """
    command = [sys.executable, "-m", "benchmarks.tracking.track", str(folder), str(seconds)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:  # a session of its own: Ctrl-C is for the training
        process = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=pipe, start_new_session=True)
    except OSError as error:
        _warn(tracking_uri(folder), f"the training is not mirrored while it goes on ({error})")
        yield
        return
    relay = threading.Thread(target=_relay, args=(process, tracking_uri(folder)), daemon=True)
    relay.start()
    assert process.stdin
    with closing(process.stdin):
        yield
        with suppress(OSError):  # it is gone already
            os.write(process.stdin.fileno(), b"done")
    relay.join(STOP_SECONDS)
    if relay.is_alive():  # it hangs; nothing is lost by this
        process.kill()
        relay.join(STOP_SECONDS)


def tracking_uri(folder: Path) -> str:
    """MLFLOW_TRACKING_URI, else the SQLite file of the workspace the run folder lies in."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_workspace(folder).resolve() / 'mlflow.db'}"


def store(folder: Path) -> str:
    """The tracking URI as it may be shown: without a password."""
    return re.sub(r"//[^/@]*@", "//", tracking_uri(folder))


def browse(results: Path, port: int) -> None:
    """Becomes MLflow's own user interface, on the loopback address only, over the store that was logged to.

    Raises UserError where there is nothing to look at, or a server that has its own.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if urlparse(uri).scheme in ("http", "https"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server with a user interface of its own: open {uri} in a browser")
    if not uri:
        places = [results / "mlflow.db", *sorted(results.glob("local/*/mlflow.db"))]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise UserError(f"{places[0]}: nothing was logged yet; run make reproduce-table2, or name another RESULTS=")
        uri = f"sqlite:///{found.resolve()}"
    print(f"MLflow at {re.sub(r'//[^/@]*@', '//', uri)}: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # not in the command line, where every user sees a password
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # there is nothing to run, only to see
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])


def _workspace(folder: Path) -> Path:
    """WORKSPACE/{runs,reproduced}/recipe/name is where run folders lie."""
    return folder.resolve().parents[2]


def _warn(uri: str, message: str) -> None:
    """Once for every store, until it works again."""
    if uri not in _warned:
        _warned.add(uri)
        console.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


# ------------------------------------------------------------------------------------------- beside a training


def _relay(process: subprocess.Popen[bytes], uri: str) -> None:
    """Passes the warnings of the mirroring process on, and sees it to its end."""
    for line in process.stderr or ():
        if line.startswith(b"warning: "):
            _warn(uri, line.decode(errors="replace").removeprefix("warning: ").rstrip())
    process.wait()


def _follow(folder: Path, seconds: float) -> None:
    """The mirroring process: until stdin says how the training ended."""
    os.nice(19)
    monitor = None
    while not select.select([sys.stdin], [], [], seconds)[0]:
        with suppress(UserError):  # told when the run is mirrored in the end
            if (folder / "history.jsonl").exists() and (run_id := track(folder, running=True)):
                with suppress(Exception):  # a measurement is worth no trouble
                    monitor = _measure(monitor, run_id, tracking_uri(folder))
    if monitor is not None:
        monitor.finish()
    if os.read(sys.stdin.fileno(), 4) != b"done":
        with suppress(UserError):
            track(folder)


def _measure(monitor: Any, run_id: str, uri: str) -> Any:
    """MLflow's monitor of processor, memory, disk, network and GPUs, begun again where trouble ended it."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    thread = getattr(monitor, "_process", None)
    if thread is not None and thread.is_alive() and getattr(monitor, "_run_id", None) == run_id:
        return monitor
    fresh = SystemMetricsMonitor(run_id, SAMPLE_SECONDS, resume_logging=True, tracking_uri=_bounded(uri))
    fresh.start()
    return fresh


# ------------------------------------------------------------------------------------------- stores that are no help


def _check_reachable(uri: str) -> None:
    """Fails at once where MLflow would retry for minutes: a database broken or locked, a host dead or mute."""
    parsed = urlparse(uri)
    if path := sqlite_path(uri):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not has_content(path):
            return
        with closing(sqlite3.connect(path, timeout=ANSWER_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("PRAGMA schema_version").fetchone()
            database.execute("ROLLBACK")
    elif parsed.scheme in ("http", "https"):
        server = parsed._replace(netloc=parsed.netloc.rpartition("@")[2]).geturl().rstrip("/")
        unchecked = ssl._create_unverified_context()  # nothing is told or believed here; MLflow itself does check
        with suppress(HTTPError):  # it answers, if only to refuse
            urlopen(f"{server}/health", timeout=ANSWER_SECONDS, context=unchecked).close()
    elif parsed.hostname or parsed.scheme.startswith("postgresql"):
        from sqlalchemy import create_engine

        engine = create_engine(uri, connect_args={"connect_timeout": ANSWER_SECONDS})
        engine.connect().close()
        engine.dispose()


def _bounded(uri: str) -> str:
    """PostgreSQL without a server before it waits for locks for ever; so it is told not to."""
    if not uri.startswith("postgresql") or "options=" in uri:
        return uri
    limits = f"connect_timeout={ANSWER_SECONDS}&options=-c%20lock_timeout%3D{ANSWER_SECONDS}s"
    return f"{uri}{'&' if '?' in uri else '?'}{limits}"


if __name__ == "__main__":
    _follow(Path(sys.argv[1]), float(sys.argv[2]))
