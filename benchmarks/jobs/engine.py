"""The engine that runs jobs: processes on this machine, or the nodes of a Ray cluster.

An engine starts named jobs and reports which have ended, with what they raised. A job is a function whose first
argument is its Place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hmerbench.benchmarks.errors import UserError

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.processes import Processes
    from hmerbench.benchmarks.jobs.ray_cluster import Ray

    Engine = Processes | Ray

ENGINES = ("local", "ray")
RUN_CORES, RUN_GIB = 2, 8  # of a run among others on a GPU: cores to train and to prepare batches, memory of the device


@dataclass(frozen=True)
class Placing:
    """The engine, the number of jobs at a time (runs on this machine, or workers of a study; None: as many as fill its
    GPUs, one without), and the CPUs and GPUs of each on a cluster; `gpus` None: one if any node has a GPU."""

    engine: str = "local"
    jobs: int | None = None
    cpus: float = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"no engine called '{self.engine}': choose {' or '.join(ENGINES)}")
        if self.engine == "local" and (self.cpus, self.gpus) != (1, None):
            raise UserError("--cpus and --gpus are for the engine ray; local jobs share this machine")

    def at_once(self, runs: int) -> int:
        """How many of `runs` runs to do at a time on this machine."""
        if self.jobs is not None:
            return self.jobs
        import torch

        from hmerbench.benchmarks.environment import cores

        if not (gpus := torch.cuda.device_count()):
            return 1
        gib = sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(gpus)) / 2**30
        return max(1, min(runs, cores() // RUN_CORES, int(gib / RUN_GIB)))

    def open(self, data: Path, workspace: Path, logs: Path, jobs: int) -> "Engine":
        """Start the engine for at most `jobs` jobs at a time on `data`. Jobs on this machine log to `logs`."""
        if self.engine == "ray":
            from hmerbench.benchmarks.jobs.ray_cluster import Ray

            return Ray(data, workspace, self.cpus, self.gpus)
        from hmerbench.benchmarks.jobs.processes import Processes

        return Processes(data, workspace, logs, jobs)
