"""Jobs on the nodes of a Ray cluster, which need not share a disk."""

import logging
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hmerbench.benchmarks.data.archive import inkml_beside
from hmerbench.benchmarks.errors import UserError, reason, without_secrets
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.jobs.place import Died, Place
from hmerbench.benchmarks.runtime import GRAPHS, WORKERS, configure_libraries, configure_output

Times = dict[str, int]  # path inside a folder -> modification time, in ns
Files = dict[str, tuple[bytes, int]]  # path inside a folder -> content, modification time


class Ray:
    """Jobs on the nodes of a Ray cluster: the one at RAY_ADDRESS, else one running here, else one started here.

    A node needs nothing but hmerbench: it receives the data, works in a scratch folder, and returns its files after
    every epoch, so that a job whose node dies resumes elsewhere from its last epoch.
    """

    def __init__(self, data: Path, workspace: Path, cpus: float, gpus: float | None):
        self.ours = not ray.is_initialized()
        if self.ours:
            try:
                ray.init(logging_level=logging.WARNING)  # else it prints the address, which may hold a password
            except (ConnectionError, ValueError) as error:
                address = os.environ.get("RAY_ADDRESS", "")
                place = f"RAY_ADDRESS={without_secrets(address)}"
                if _answers(address):  # Ray says no more than that it failed
                    fix = "give its token (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN), or its version of Ray"
                    raise UserError(f"{place}: something answers there, but lets this program not in; {fix}") from None
                fix = "start it, or unset RAY_ADDRESS to use this machine"
                raise UserError(f"no Ray cluster at {place}: {reason(error, address)}; {fix}") from None
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
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        depot = ray.remote(num_cpus=0, scheduling_strategy=here)(Depot).remote(workspace.resolve())
        content = {name: ray.put(file) for name, file in sent_files(data).items()}
        self.place = NodePlace(data.resolve(), content, depot)
        self.running: dict[Any, str] = {}

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Queue job(place, *arguments) until a node has room."""
        task = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **self.needs)(_task)
        self.running[task.options(name=name).remote(self.place, job, *arguments)] = name

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


def sent_files(data: Path) -> dict[str, bytes]:
    """An archive with its pen strokes, or the texts in a folder, by path beside the data; nothing of an archive that is
    unpacked, at a path that all nodes share."""
    files = (
        (data, inkml_beside(data)) if data.is_file() else (data / f"{name}.txt" for name in ("train", "valid", "test"))
    )
    return {str(file.relative_to(data.parent)): file.read_bytes() for file in files if file.is_file()}


class Depot:
    """An actor next to the driver that reads and writes the workspace for nodes that do not share its disk."""

    def __init__(self, workspace: Path):
        self.workspace = workspace

    def read(self, name: str) -> Files:
        """All files of a folder."""
        return _files(self.workspace / name, {})

    def write(self, name: str, files: Files, gone: Sequence[str]) -> None:
        """Write files into a folder, and delete those that are gone. Raises UserError for a path outside of it."""
        _put(self.workspace / name, files)
        for file in gone:
            _inside(self.workspace / name, file).unlink(missing_ok=True)


class NodePlace(Place):
    """A scratch folder on a node, synchronized with the driver's workspace through its depot."""

    def __init__(self, data: Path, content: dict[str, Any], depot: Any):
        super().__init__(data, Path())
        self.content, self.depot = content, depot
        self.known: dict[str, Times] = {}  # folder -> files that the depot has
        # how the driver says that runs are computed, by --workers and --no-graphs
        self.environment = {name: os.environ[name] for name in (WORKERS, GRAPHS) if name in os.environ}

    def data(self) -> Path:
        """The data; what was sent of them is copied to this node."""
        for name, content in self.content.items():
            write_atomically(self.workspace / name, ray.get(content))
        return self.workspace / self.path.name if self.content else self.path

    def pull(self, name: str) -> Path:
        """The scratch folder, filled with the driver's files."""
        files: Files = ray.get(self.depot.read.remote(name))
        _put(self.workspace / name, files)
        self.known[name] = {file: time for file, (_, time) in files.items()}
        return self.workspace / name

    def push(self, name: str) -> None:
        """Send the driver the files changed since the last synchronization, and the names of those deleted."""
        files, known = _files(self.workspace / name, self.known[name]), self.known[name]
        gone = [file for file in known if not (self.workspace / name / file).exists()]
        ray.get(self.depot.write.remote(name, files, gone))
        self.known[name] = {file: time for file, time in known.items() if file not in gone}
        self.known[name] |= {file: time for file, (_, time) in files.items()}


def _task(place: NodePlace, job: Callable[..., None], *arguments: Any) -> None:
    os.environ.update(place.environment)
    configure_libraries()
    configure_output()
    with tempfile.TemporaryDirectory(prefix="hmerbench-") as scratch:
        place.workspace = Path(scratch)
        job(place, *arguments)


def _files(folder: Path, known: Times) -> Files:
    """The files of a folder whose modification times differ from the `known` ones."""
    changed: Files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):  # hidden files are half written
            name, time = path.relative_to(folder).as_posix(), path.stat().st_mtime_ns
            if known.get(name) != time:
                changed[name] = path.read_bytes(), time
    return changed


def _put(folder: Path, files: Files) -> None:
    """Write files with their modification times, by which later stages tell what is up to date."""
    for name, (content, time) in files.items():
        path = _inside(folder, name)
        write_atomically(path, content)
        os.utime(path, ns=(time, time))


def _inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder. Raises UserError for one outside of it."""
    if not (path := folder / name).resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{name}: not a path inside {folder}")
    return path
