"""Where jobs run: processes of this machine, or the nodes of a Ray cluster.

An engine starts named jobs and says which have ended, and how; one that merely went away (killed, out of memory, its
node lost) has Died and can be started again, as every job goes on from what its folder holds. A job is a function
whose first argument is its Place: the archive, and the workspace in which it keeps its folder.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from benchmarks.checkpoint import write_atomically
from benchmarks.data.archive import Archive, open_archive
from benchmarks.errors import UserError

ENGINES = ("local", "ray")
Files = dict[str, tuple[bytes, int]]  # path inside a folder -> content and time of its last change, in ns


class Died(Exception):
    """A job that did not end but went away, with its process or its node."""


@dataclass(frozen=True)
class Ended:
    name: str
    error: Exception | None  # what the job raised; Died where it could not


class Place:
    """What a job works on and in: here, the workspace itself."""

    def __init__(self, archive: Path, workspace: Path):
        self.archive_path, self.workspace = archive, workspace

    def archive(self) -> Archive:
        return open_archive(self.archive_path)

    def pull(self, name: str) -> Path:
        """The folder `name` of the workspace, with all that earlier attempts left in it."""
        return self.workspace / name

    def push(self, name: str) -> None:
        """Keeps what the folder holds now, should this job die."""


class Engine(Protocol):
    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Starts job(place, *arguments), or queues it until there is room."""
        ...

    def ended(self, seconds: float) -> list[Ended]:
        """The jobs that ended since, waiting so long for one."""
        ...

    def stop(self) -> None:
        """Ends what still runs."""
        ...


# -------------------------------------------------------------------------------------------------- this machine


class Processes:
    """Each job a process of its own, all at once; none outlives this one. What they say on stderr goes to `logs`."""

    def __init__(self, archive: Path, workspace: Path, logs: Path, share: int):
        import torch

        self.place, self.logs = Place(archive, workspace), logs
        self.threads = None if "OMP_NUM_THREADS" in os.environ else max(1, (os.cpu_count() or 1) // share)
        self.devices = torch.cuda.device_count()
        self.running: dict[str, tuple[Any, connection.Connection]] = {}
        self.count = 0

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        context = get_context("spawn")  # a fork would copy threads and devices in the middle of their work
        ours, theirs = context.Pipe(duplex=False)
        device = self.count % self.devices if self.devices > 1 else None
        log = self.logs / f"{name}.log"
        process = context.Process(
            target=_process, args=(theirs, log, self.threads, device, job, self.place, *arguments), name=name
        )
        process.start()
        theirs.close()
        self.running[name] = process, ours
        self.count += 1

    def ended(self, seconds: float) -> list[Ended]:
        connection.wait([process.sentinel for process, _ in self.running.values()], seconds)
        over = [name for name, (process, _) in self.running.items() if not process.is_alive()]
        return [self._result(name, *self.running.pop(name)) for name in over]

    def _result(self, name: str, process: Any, pipe: connection.Connection) -> Ended:
        process.join()
        try:
            return Ended(name, pipe.recv())
        except EOFError:
            code = process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            return Ended(name, Died(f"{how}; see {self.logs / name}.log"))

    def stop(self) -> None:
        for process, _ in self.running.values():
            process.kill()
            process.join()
        self.running.clear()


def _process(
    pipe: connection.Connection,
    log: Path,
    threads: int | None,
    device: int | None,
    job: Callable[..., None],
    *arguments: Any,
) -> None:
    """A job's process: ends with its parent, leaves Ctrl-C to it, and hands back what the job raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    if device is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[device] if visible else str(device)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    try:
        job(*arguments)
    except Exception as error:
        pipe.send(error)
    else:
        pipe.send(None)


# --------------------------------------------------------------------------------------------------- a Ray cluster


class Ray:
    """Jobs on the nodes of a Ray cluster: the one at RAY_ADDRESS, else one running here, else one started here.

    A node needs hmerbench installed and nothing else: it is sent the archive, works in a scratch folder, and hands
    its files back after every epoch. So a job whose node died goes on elsewhere from the last one.
    """

    def __init__(self, archive: Archive, workspace: Path, cpus: float, gpus: float | None):
        self.ray = _import_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        self.ours = not self.ray.is_initialized()
        if self.ours:
            try:
                self.ray.init()
            except ConnectionError as error:
                raise UserError(f"no Ray cluster at RAY_ADDRESS: {' '.join(str(error).split())[:200]}") from None
        if gpus is None:
            gpus = 1 if any(has.get("GPU", 0) for has in self._nodes()) else 0
        self.needs = {"CPU": cpus, "GPU": gpus}
        if not self._fits():
            have = max((has.get("CPU", 0) for has in self._nodes()), default=0)
            raise UserError(f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs (the largest: {have:g} "
                            "CPUs); lower --cpus or --gpus, or start such a node")  # fmt: skip
        here = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=False
        )
        depot = self.ray.remote(num_cpus=0, scheduling_strategy=here)(Depot).remote(workspace.resolve())
        content = self.ray.put(archive.path.read_bytes()) if archive.path.is_file() else None
        self.place = NodePlace(archive.path.resolve(), content, depot)
        self.running: dict[Any, str] = {}

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        task = self.ray.remote(
            num_cpus=self.needs["CPU"], num_gpus=self.needs["GPU"], max_retries=0, scheduling_strategy="SPREAD"
        )(_task)
        self.running[task.options(name=name).remote(self.place, job, *arguments)] = name

    def ended(self, seconds: float) -> list[Ended]:
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._result(self.running.pop(reference), reference) for reference in ready]

    def _result(self, name: str, reference: Any) -> Ended:
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            return Ended(name, error.cause if isinstance(error.cause, Exception) else error)
        except self.ray.exceptions.RayError as error:
            return Ended(name, Died(" ".join(str(error).split()).split(". ")[0]))
        return Ended(name, None)

    def stop(self) -> None:
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        self.running.clear()
        if self.ours:
            self.ray.shutdown()

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _fits(self) -> bool:
        return any(all(has.get(what, 0) >= n for what, n in self.needs.items()) for has in self._nodes())


class Depot:
    """An actor beside the driver: the workspace's folders, read and written for nodes that do not share its disk."""

    def __init__(self, workspace: Path):
        self.workspace = workspace

    def read(self, name: str) -> Files:
        return _files(self.workspace / name)

    def write(self, name: str, files: Files) -> None:
        _put(self.workspace / name, files)


class NodePlace(Place):
    """A scratch folder on a node, in step with the driver's workspace by way of its depot."""

    def __init__(self, archive: Path, content: Any, depot: Any):
        super().__init__(archive, Path())
        self.content, self.depot = content, depot
        self.known: dict[str, dict[str, int]] = {}  # folder -> what the depot has

    def archive(self) -> Archive:
        if self.content is None:
            return super().archive()  # unpacked: a path that all nodes have
        path = self.workspace / self.archive_path.name
        path.write_bytes(_import_ray().get(self.content))
        return open_archive(path)

    def pull(self, name: str) -> Path:
        folder = self.workspace / name
        files: Files = _import_ray().get(self.depot.read.remote(name))
        _put(folder, files)
        self.known[name] = {path: changed for path, (_, changed) in files.items()}
        return folder

    def push(self, name: str) -> None:
        files = _files(self.workspace / name, self.known.get(name))
        _import_ray().get(self.depot.write.remote(name, files))
        self.known.setdefault(name, {}).update({path: changed for path, (_, changed) in files.items()})


def _task(place: NodePlace, job: Callable[..., None], *arguments: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="hmerbench-") as scratch:
        place.workspace = Path(scratch)
        job(place, *arguments)


def _files(folder: Path, known: Mapping[str, int] | None = None) -> Files:
    """The files that changed since the `known` times, all where none are given."""
    changed: Files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.name.startswith("."):  # hidden ones are half written
            time = path.stat().st_mtime_ns
            if (known or {}).get(name) != time:
                changed[name] = path.read_bytes(), time
    return changed


def _put(folder: Path, files: Files) -> None:
    """Writes files with their times, by which later stages know what is fresh."""
    for name, (content, changed) in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{name}: not a path inside {folder}")
        write_atomically(path, content)
        os.utime(path, ns=(changed, changed))


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError("the engine 'ray' needs Ray: pip install 'hmerbench[ray]'") from None
    return ray
