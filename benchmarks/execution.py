"""How a run is computed: nothing here changes what is computed beyond rounding, so none of it is part of a run.

The device decides, or the options of `train` and `reproduce`, which set variables that their processes inherit.
environment.json records what a training used.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmerbench.benchmarks.errors import UserError

if TYPE_CHECKING:
    import torch

MAX_WORKERS = 4  # processes that prepare the batches of a run on a GPU, some 800 images/s each
MAX_READERS = 8  # processes that search a test set on a GPU, each with a context and a network of its own
WORKERS, GRAPHS = "HMERBENCH_WORKERS", "HMERBENCH_GRAPHS"
CORES = "HMERBENCH_CORES"  # of this machine's, those that a job among others may use


@dataclass(frozen=True)
class Execution:
    """How the batches of a run are made and its steps are run."""

    workers: int  # processes that prepare batches in advance; 0: the training itself does
    graphs: bool  # steps are recorded as CUDA graphs, one for each shape, and replayed

    @classmethod
    def on(cls, device: "torch.device", world: int = 1) -> "Execution":
        """That of one of `world` processes on a device.

        A CPU trains with all its cores, so none is left for workers; several processes exchange gradients within a
        step, which is then not recorded. Raises UserError for a variable that cannot be followed.
        """
        gpu = device.type == "cuda"
        workers = _number(WORKERS, max(1, min(MAX_WORKERS, own_cores() // world - 1)) if gpu else 0)
        graphs = _number(GRAPHS, int(gpu and world == 1), 1)
        if graphs and not (gpu and world == 1):
            raise UserError(f"{GRAPHS}=1: only a single process on a GPU records its steps; leave it out")
        return cls(workers, bool(graphs))


def own_cores() -> int:
    """The cores that this job may use."""
    from hmerbench.benchmarks.environment import cores

    return _number(CORES, cores())


def readers(device: "torch.device") -> int:
    """Processes that search a test set together: on a GPU, which waits for the host in a search, one a core."""
    return max(1, min(MAX_READERS, own_cores())) if device.type == "cuda" else 1


def _number(name: str, default: int, largest: int = 4096) -> int:
    """The value of an environment variable, a whole number up to `largest`."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 4 or int(text) > largest:
        raise UserError(f"{name}={text[:40]}: give a whole number from 0 to {largest}, or leave it out")
    return int(text)
