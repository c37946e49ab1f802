"""Which engine runs jobs: processes of this machine, or the nodes of a Ray cluster.

An engine starts named jobs and says which have ended, with what they raised. A job is a function whose first argument
is its Place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.archive import Archive
from benchmarks.errors import UserError

if TYPE_CHECKING:
    from benchmarks.jobs.processes import Processes
    from benchmarks.jobs.ray_cluster import Ray

    Engine = Processes | Ray

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Placing:
    """The engine; how many jobs at a time share the cores of this machine, or work on a study; and what a cluster gives
    each of them: CPUs, and GPUs (None: one where there are any)."""

    engine: str = "local"
    jobs: int = 1
    cpus: float = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"no engine called '{self.engine}': choose {' or '.join(ENGINES)}")

    def open(self, archive: Archive, workspace: Path, logs: Path) -> "Engine":
        """The engine itself; on this machine jobs say what they do in `logs`."""
        if self.engine == "ray":
            from benchmarks.jobs.ray_cluster import Ray

            return Ray(archive, workspace, self.cpus, self.gpus)
        from benchmarks.jobs.processes import Processes

        return Processes(archive.path, workspace, logs, self.jobs)
