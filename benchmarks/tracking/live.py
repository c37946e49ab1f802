"""Mirror a training while it runs, in a separate process of the lowest priority, so that neither a failing or hanging
store nor the slow import of MLflow affects the training."""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs.listing import run_in
from hmerbench.benchmarks.tracking.track import track, warn
from hmerbench.benchmarks.tracking.tracking_store import bounded, tracking_uri

STOP_SECONDS = 5  # how long the end of a training waits for its mirror
SAMPLE_SECONDS = 10  # between two samples of the system metrics


@contextmanager
def live(folder: Path, seconds: float = 30) -> Iterator[None]:
    """Mirror a run folder every `seconds` seconds and log system metrics while the run's training goes on.

    The mirroring process learns from its stdin how the training ended: after `done`, the caller mirrors the final
    state; if stdin just closes (an error, Ctrl-C or a kill), the process mirrors it itself.
    """
    command = [sys.executable, "-m", "hmerbench.benchmarks.tracking.live", str(folder), str(seconds)]
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
                    monitor = _measure(monitor, run_id, tracking_uri(folder))
    if monitor is not None:
        monitor.finish()
    if os.read(sys.stdin.fileno(), 4) != b"done":
        with suppress(UserError):
            if run_in(folder).history:
                track(folder)


def _measure(monitor: Any, run_id: str, uri: str) -> Any:
    """Return MLflow's monitor of CPU, memory, disk, network and GPUs, restarted if an error ended it or the run is
    another one."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    thread = getattr(monitor, "_process", None)
    if thread is not None and thread.is_alive() and getattr(monitor, "_run_id", None) == run_id:
        return monitor
    if monitor is not None:
        monitor.finish()
    monitor = SystemMetricsMonitor(run_id, SAMPLE_SECONDS, resume_logging=True, tracking_uri=bounded(uri))
    monitor.start()
    return monitor


if __name__ == "__main__":
    _follow(Path(sys.argv[1]), float(sys.argv[2]))
