"""Mirroring a training while it runs, in a process of the lowest priority: so a store that hangs, breaks or is slow to
import does not affect the training, which never imports MLflow."""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.errors import UserError
from benchmarks.tracking.track import track, warn
from benchmarks.tracking.tracking_store import bounded, tracking_uri

STOP_SECONDS = 5  # what the end of a training waits for its mirror
SAMPLE_SECONDS = 10  # between two measurements of the machine


@contextmanager
def live(folder: Path, seconds: float = 30) -> Iterator[None]:
    """Mirrors a run folder now and then, and measures the machine, while the run's training goes on.

    The process hears through its stdin how that ended: `done`, or nothing more - an error, Ctrl-C or a kill - when it
    mirrors the last state itself.
    """
    command = [sys.executable, "-m", "benchmarks.tracking.live", str(folder), str(seconds)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:  # a session of its own: Ctrl-C is for the training
        process = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=pipe, start_new_session=True)
    except OSError as error:
        warn(tracking_uri(folder), f"the training is not mirrored while it runs ({error})")
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


def _relay(process: subprocess.Popen[bytes], uri: str) -> None:
    """Passes the warnings of the mirroring process on, and sees it to its end."""
    for line in process.stderr or ():
        if line.startswith(b"warning: "):
            warn(uri, line.decode(errors="replace").removeprefix("warning: ").rstrip())
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
    fresh = SystemMetricsMonitor(run_id, SAMPLE_SECONDS, resume_logging=True, tracking_uri=bounded(uri))
    fresh.start()
    return fresh


if __name__ == "__main__":
    _follow(Path(sys.argv[1]), float(sys.argv[2]))
