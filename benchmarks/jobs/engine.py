"""The engine that runs jobs: processes on this machine, or the nodes of a Ray cluster.

An engine starts named jobs and reports which have ended, with what they raised. A job is a function whose first
argument is its Place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import UserError

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.processes import Processes
    from hmerbench.benchmarks.jobs.ray_cluster import Ray

    Engine = Processes | Ray

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Placing:
    """The engine, the number of jobs at a time (runs on this machine, or workers of a study), and the CPUs and GPUs of
    each on a cluster; `gpus` None: one if any node has a GPU."""

    engine: str = "local"
    jobs: int = 1
    cpus: float = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"no engine called '{self.engine}': choose {' or '.join(ENGINES)}")
        if self.engine == "local" and (self.cpus, self.gpus) != (1, None):
            raise UserError("--cpus and --gpus (CPUS=, GPUS=) are for the engine ray; local jobs share this machine")

    def open(self, archive: Archive, workspace: Path, logs: Path) -> "Engine":
        """Start the engine. Jobs on this machine log to `logs`."""
        if self.engine == "ray":
            from hmerbench.benchmarks.jobs.ray_cluster import Ray

            return Ray(archive, workspace, self.cpus, self.gpus)
        from hmerbench.benchmarks.jobs.processes import Processes

        return Processes(archive.path, workspace, logs, self.jobs)
