"""CUDA graphs: the thousands of small kernels of a micro-batch, recorded once a shape, then launched as one.

At these batch sizes a GPU waits for the host to launch kernels. torch.compile would fuse them as well, but takes about
a minute for each of some thousand shapes; recording one takes about as long as a few steps.

What recording asks for, and where it is seen to:
- Inputs and gradients stay where they are: inputs are copied into buffers, gradients are set to zero and never freed.
  No shape is recorded before its third batch, so every parameter that gets a gradient has one by then.
- What the host decides is recorded with the kernels: the shape, and whether running statistics are kept. Both are in
  the key. Learning rate, clipping, optimizer and average stay outside.
- Dropout: torch hands the generator's seed and offset to a graph when it is launched (since 1.13), so a micro-batch
  seeded as ever draws the same masks in both ways.
- autocast must not keep weights in bf16 from one micro-batch to the next: the caller turns its cache off.
- Recording, replaying and all else run on one stream that is not the default one (`own_stream`): a recording must not
  wait for another stream.
- One memory pool serves all graphs: they run one after another, and of what lies in the pool only the loss is read, at
  once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.data.batching import Inputs
from benchmarks.errors import UserError
from benchmarks.printing import aside

EAGER = 2  # so many batches of a shape run kernel by kernel: they warm up what is made on first use
FREE = 0.25  # of a device's memory: where less is left, no more shapes are recorded

# of a step: what repeats it, and its result; None where there is no room
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], Any], Tensor] | None]


class Replays:
    """A step, which adds to the gradients and returns the loss, recorded for at most `limit` shapes.

    None is given up for another: with more shapes than that, frequent ones come first, and recording again what was
    forgotten would cost more than it saves.
    """

    def __init__(self, step: Callable[[Inputs, bool], Tensor], record: Record, limit: int):
        self.step, self.record, self.limit = step, record, limit
        self.seen: Counter[tuple] = Counter()
        # by what their step was recorded for: where it reads, what launches it, where its loss is left
        self.replays: dict[tuple, tuple[Inputs, Callable[[], Any], Tensor]] = {}

    def __call__(self, inputs: Inputs, first: bool, seed: int) -> Tensor:
        """The loss of step(inputs, first) under the random numbers of `seed`, whose gradients are added."""
        key = (first, *(tuple(tensor.shape) for tensor in inputs))
        self.seen[key] += 1
        if key not in self.replays and self.seen[key] > EAGER and len(self.replays) < self.limit:
            self._record(key, inputs, first)
        torch.manual_seed(seed)
        if key not in self.replays:
            return self.step(inputs, first)
        still, launch, loss = self.replays[key]
        for buffer, tensor in zip(still, inputs, strict=True):
            buffer.copy_(tensor)
        launch()
        return loss.clone()

    def _record(self, key: tuple, inputs: Inputs, first: bool) -> None:
        still = Inputs(*(tensor.clone() for tensor in inputs))
        recorded = self.record(partial(self.step, still, first))
        if recorded is None:
            self.limit = len(self.replays)
            aside.print(f"no memory for more than {self.limit} recorded steps: other shapes run kernel by kernel")
        else:
            self.replays[key] = (still, *recorded)

    def give_up(self) -> int:
        """Frees the memory of all recordings and makes no more; how many there were."""
        count, self.limit = len(self.replays), 0
        self.replays.clear()
        torch.cuda.empty_cache()
        return count


class CudaRecord:
    """Records on the current stream, without running anything, while there is memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], Any], Tensor] | None:
        """How to replay `step`, and the loss it leaves; None where there is no memory. UserError where it cannot be."""
        free, total = torch.cuda.mem_get_info()
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free < FREE * total:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # as torch.cuda.graph, which empties the allocator's cache each time; other threads prepare batches
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                loss = step()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            if torch.OutOfMemoryError in (type(error), type(error.__context__)):
                return None  # what was begun goes with the graph; nothing of it ran
            reason = str(error).splitlines()[0]
            raise UserError(f"a training step cannot be recorded ({reason}); set training.graphs: 0") from error
        return graph.replay, loss


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Everything inside runs on one stream beside the default one; on a CPU there are none."""
    if device.type != "cuda":
        yield
        return
    before, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)
