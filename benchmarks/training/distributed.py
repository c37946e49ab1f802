"""The processes that train one run together."""

import os
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from torch import distributed

from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import UserError


def make_deterministic() -> None:
    """Make torch deterministic, once per process."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # no uninitialized memory is ever read; filling it takes a tenth of a step on a CPU, a kernel per tensor on a GPU
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def seed_of(*key: int) -> int:
    """A seed of torch's random numbers that depends on whole numbers alone, such as the run's seed and the step."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class Team:
    """The processes that train one run: a single one, or those that torchrun started."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def gather(cls) -> "Team":
        """The team of this process, from torchrun's environment variables; a team of one without them. Raises UserError
        if there are more processes than GPUs."""
        names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        values = {name: os.environ.get(name) or default for name, default in names.items()}
        lacking = values["WORLD_SIZE"] != "1" and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
        if lacking or not all(value.isdecimal() for value in values.values()):
            variables = ", ".join(f"{name}={value}" for name, value in values.items())
            raise UserError(f"{variables}: these are not as torchrun sets them; start with torchrun, or unset them")
        rank, world, local = map(int, values.values())
        device = best_device(local)
        gpu = device if device.type == "cuda" else None
        if gpu:
            if local >= (count := torch.cuda.device_count()):
                raise UserError(f"torchrun starts more processes than there are GPUs ({count}); lower --nproc-per-node")
            torch.cuda.set_device(gpu)  # or all processes would use the first one, too
        if world > 1 and not distributed.is_initialized():
            patience = timedelta(hours=1)  # the others wait while rank 0 validates
            distributed.init_process_group(
                "nccl" if gpu else "gloo", timeout=patience, rank=rank, world_size=world, device_id=gpu
            )
        return cls(rank, world, device)

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.world > 1:
            distributed.barrier()

    def decide(self, decision: bool) -> bool:
        """Rank 0's decision, in all processes: two that decide by their own clocks wait for each other for ever."""
        if self.world == 1:
            return decision
        return bool(self.sum(torch.tensor(float(decision and self.rank == 0), device=self.device)))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            distributed.all_reduce(values)
        return values
