"""The processes that train together."""

import os
from dataclasses import dataclass

import torch
from torch import distributed


@dataclass(frozen=True)
class Team:
    """The processes that train together: one, or as many as torchrun started."""

    rank: int
    world: int
    device: torch.device

    @classmethod
    def gather(cls) -> "Team":
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        local = int(os.environ.get("LOCAL_RANK", 0))
        cuda = torch.cuda.is_available()
        device = torch.device(f"cuda:{local}" if cuda else "cpu")
        if world > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
        return cls(rank, world, device)

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        if self.world > 1:
            distributed.all_reduce(values)
        return values
