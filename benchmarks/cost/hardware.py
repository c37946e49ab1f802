"""What machines can do at best, and what bounds a part of a training on them.

Peak numbers are the vendors' (dense, no sparsity) and are not reached; the time an operator costs its launch is an
assumption, of the size that is usual: eager PyTorch needs 5 to 25 us of the CPU for each, a node of a CUDA graph one or
two of the GPU (NVIDIA's technical blog "Getting Started with CUDA Graphs": 3.4 us a kernel of 2.9 us).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.environment import processor


@dataclass(frozen=True)
class Hardware:
    """One kind of device, or several of them that share the micro-batches of a step."""

    name: str
    called: str  # a part of the name it gives itself (environment.json)
    fp32: float  # FLOP/s
    bf16: float | None  # FLOP/s of matrix products; None: it has no bf16
    bandwidth: float  # bytes/s of its memory
    launch: dict[str, float]  # seconds an operator costs at least, by the way it is launched
    devices: int = 1


GPU = {"eager": 7e-6, "graph": 1.5e-6}  # assumed, see above
HARDWARE = {
    # NVIDIA H200 Tensor Core GPU datasheet (SXM): 67 TFLOP/s FP32 (TF32 is not used), 1,979 TFLOP/s BF16 with sparsity,
    # half of it dense, 4.8 TB/s
    "h200": Hardware("h200", "H200", 67e12, 989e12, 4.8e12, GPU),
    # NVIDIA Turing whitepaper, RTX 2080 Ti (reference): 13.4 TFLOP/s FP32, 616 GB/s; Turing has no bf16
    "2080ti": Hardware("2080ti", "2080 Ti", 13.4e12, None, 616e9, GPU),
    # the authors' machine; what the four tell each other is left out
    "4x2080ti": Hardware("4x2080ti", "4 x 2080 Ti", 13.4e12, None, 616e9, GPU, devices=4),
}


@dataclass(frozen=True)
class Bound:
    """Seconds that each limit alone asks for. `predicted` is the largest of the first three."""

    compute: float
    memory: float  # all that operators read and write, at full bandwidth
    launch: float
    least: float  # compute, or the activations written and read once, whichever is more: no program is faster

    @property
    def limits(self) -> dict[str, float]:
        return {"compute": self.compute, "memory": self.memory, "launches": self.launch}

    @property
    def predicted(self) -> float:
        return max(self.limits.values())

    @property
    def limited_by(self) -> str:
        return max(self.limits, key=lambda name: self.limits[name])


def bound(cost: np.ndarray, machine: Hardware, mode: str, bf16: bool, shared: bool) -> Bound:
    """What limits a part of cost [launches, flop, byte, least]; `shared`: all devices do it together."""
    peak = machine.bf16 if bf16 else machine.fp32
    assert peak is not None
    launches, flop, byte, least = cost / (machine.devices if shared else 1)
    compute = flop / peak
    memory = byte / machine.bandwidth
    return Bound(compute, memory, launches * machine.launch[mode], max(compute, least / machine.bandwidth))


def measured() -> Hardware:
    """This machine's CPU, in a few seconds: copying 256 MiB, products of 1024 x 1024 matrices, adding one number."""
    source = torch.ones(2**26)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / best(lambda: target.copy_(source))
    peaks = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(1024, 1024, dtype=dtype)
        peaks[dtype] = 2 * 1024**3 / best(lambda a=a: a @ a)
    one = torch.ones(1)
    launch = best(lambda: [one + 1 for _ in range(1000)]) / 1000
    name = f"{processor()}, {torch.get_num_threads()} threads"
    return Hardware(name, processor(), peaks[torch.float32], peaks[torch.bfloat16], bandwidth, {"eager": launch})


def best(job: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return min(times[1:])
