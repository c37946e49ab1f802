"""Steps that are recorded as CUDA graphs are, without a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

GRAPHS = {
    "training": {
        "epochs": 3,
        "batching": {"order": "shape", "size": 4, "micro_batches": 2},
        "schedule": {"name": "cosine"},
        "optimizer": {"clip": 1.0},
    },
    "select": "last",
}


def rehearsed(work: Callable[[], Tensor | None]) -> tuple[Callable[[], object], Tensor]:
    """Like CudaRecord on a CPU: does not do the work, and every replay reads and writes the same tensors."""
    result = torch.empty(())

    def replay() -> None:
        loss = work()
        if loss is not None:
            result.copy_(loss)

    return replay, result


LACKING = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which 1.20 GiB is free."
)
