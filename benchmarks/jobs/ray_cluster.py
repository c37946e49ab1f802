"""Jobs on the nodes of a Ray cluster, which share the disk of data and workspace."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.errors import UserError, reason, without_secrets
from hmerbench.benchmarks.jobs.place import Died, Place
from hmerbench.benchmarks.runtime import GRAPHS, WORKERS, configure_libraries, configure_output

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise UserError("the engine 'ray' needs Ray: pip install '.[ray]' in the checkout") from None


class Ray:
    """Jobs on the nodes of a Ray cluster: the one at RAY_ADDRESS, else one running here, else one started here.

    A job whose node dies resumes elsewhere, from the files in its folder.
    """

    def __init__(self, data: Path, workspace: Path, cpus: float, gpus: float | None):
        self.ours = not ray.is_initialized()
        if self.ours:
            try:
                ray.init(logging_level=logging.WARNING)  # else it prints the address, which may hold a password
            except (ConnectionError, ValueError) as error:
                address = os.environ.get("RAY_ADDRESS", "")
                told = f"RAY_ADDRESS={without_secrets(address)}"
                if _answers(address):  # Ray says no more than that it failed
                    fix = "give its token (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN), or its version of Ray"
                    raise UserError(f"{told}: something answers there, but lets this program not in; {fix}") from None
                fix = "start it, or unset RAY_ADDRESS to use this machine"
                raise UserError(f"no Ray cluster at {told}: {reason(error, address)}; {fix}") from None
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = 1 if any("GPU" in node for node in nodes) else 0
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            most = max((node.get("CPU", 0) for node in nodes), default=0)
            raise UserError(
                f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs (the largest: {most:g} CPUs); "
                "lower --cpus or --gpus, or start such a node"
            )
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        workspace.mkdir(parents=True, exist_ok=True)
        self.place = Place(data.resolve(), workspace.resolve())
        # how the driver says that runs are computed, by --workers and --no-graphs
        self.environment = {name: os.environ[name] for name in (WORKERS, GRAPHS) if name in os.environ}
        self.running: dict[Any, str] = {}

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Queue job(place, *arguments) until a node has room."""
        task = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **self.needs)(_task)
        self.running[task.options(name=name).remote(self.environment, self.place, job, *arguments)] = name

    def ended(self, seconds: float) -> dict[str, Exception | None]:
        """Wait at most `seconds` for a job to end; return the jobs that ended, with what they raised."""
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return {self.running.pop(reference): _error_of(reference) for reference in ready}

    def stop(self) -> None:
        """Cancel the jobs that are still running, and shut down a cluster that was started here."""
        for reference in self.running:
            ray.cancel(reference, force=True)
        self.running.clear()
        if self.ours:
            ray.shutdown()


def _answers(address: str) -> bool:
    """Whether a program listens at host:port."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    with suppress(OSError, ValueError, OverflowError), socket.create_connection((host.strip("[]"), int(port)), 2):
        return True
    return False


def _error_of(reference: Any) -> Exception | None:
    try:
        ray.get(reference)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        return Died(" ".join(str(error).split()).split(". ")[0])
    return None


def _task(environment: Mapping[str, str], place: Place, job: Callable[..., None], *arguments: Any) -> None:
    os.environ.update(environment)
    configure_libraries()
    configure_output()
    for path in (place.data, place.workspace):
        if not path.exists():
            raise UserError(f"{socket.gethostname()}: {path} is not there; nodes need a disk that they share")
    job(place, *arguments)
