"""Jobs on the nodes of a Ray cluster, which need not share a disk."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data.archive import Archive, open_archive
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.jobs.place import Died, Ended, Place
from benchmarks.libraries import settle

Files = dict[str, tuple[bytes, int]]  # path inside a folder -> content and time of its last change, in ns


class Ray:
    """Jobs on the nodes of a Ray cluster: the one at RAY_ADDRESS, else one running here, else one started here.

    A node needs hmerbench installed and nothing else: it is sent the archive, works in a scratch folder, and hands
    its files back after every epoch. So a job whose node died resumes elsewhere from the last one.
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
        """Queues job(place, *arguments) until a node has room."""
        task = self.ray.remote(
            num_cpus=self.needs["CPU"], num_gpus=self.needs["GPU"], max_retries=0, scheduling_strategy="SPREAD"
        )(_task)
        self.running[task.options(name=name).remote(self.place, job, *arguments)] = name

    def ended(self, seconds: float) -> list[Ended]:
        """The jobs that ended since, waiting at most `seconds` for one."""
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
        """Cancels what still runs, and shuts down a cluster that was started here."""
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
        """All files of a folder."""
        return _files(self.workspace / name)

    def write(self, name: str, files: Files) -> None:
        """Puts files into a folder. Raises UserError for a path that leaves it."""
        _put(self.workspace / name, files)


class NodePlace(Place):
    """A scratch folder on a node, in step with the driver's workspace by way of its depot."""

    def __init__(self, archive: Path, content: Any, depot: Any):
        super().__init__(archive, Path())
        self.content, self.depot = content, depot
        self.known: dict[str, dict[str, int]] = {}  # folder -> what the depot has

    def archive(self) -> Archive:
        """The archive, sent to this node if it is a file."""
        if self.content is None:
            return super().archive()  # unpacked: a path that all nodes have
        path = self.workspace / self.archive_path.name
        path.write_bytes(_import_ray().get(self.content))
        return open_archive(path)

    def pull(self, name: str) -> Path:
        """The scratch folder, with all that the driver has of it."""
        folder = self.workspace / name
        files: Files = _import_ray().get(self.depot.read.remote(name))
        _put(folder, files)
        self.known[name] = {path: changed for path, (_, changed) in files.items()}
        return folder

    def push(self, name: str) -> None:
        """Sends the driver what changed since."""
        files = _files(self.workspace / name, self.known.get(name))
        _import_ray().get(self.depot.write.remote(name, files))
        self.known.setdefault(name, {}).update({path: changed for path, (_, changed) in files.items()})


def _task(place: NodePlace, job: Callable[..., None], *arguments: Any) -> None:
    settle()
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
