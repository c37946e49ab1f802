"""CUDA graphs: the thousands of small kernels of a micro-batch, recorded once per shape, then launched as one.

At these batch sizes a GPU waits for the host to launch kernels. torch.compile would fuse them as well, but takes about
a minute for each of about a thousand shapes; recording a shape takes about as long as a few steps.

What recording requires, and how it is ensured:
- Inputs and gradients keep their addresses: inputs are copied into buffers, gradients are zeroed and never freed. No
  shape is recorded before its third batch, so every parameter that receives a gradient has one by then.
- Decisions of the host are recorded with the kernels: the shape, and whether running statistics are updated. Both are
  in the key. When statistics become fixed, steps are recorded anew, in a pool of their own: torch 2.11 refuses a pool
  whose recordings are all gone. Learning rate, clipping, optimizer and average stay outside.
- Dropout: torch passes the generator's seed and offset to a graph at launch (since 1.13), so a seeded micro-batch draws
  the same masks either way.
- autocast must not reuse bf16 copies of weights across micro-batches: the caller turns its cache off.
- Everything runs on one stream other than the default one (`own_stream`), because a recording must not wait for another
  stream.
- All graphs share one memory pool: they run one after another, and only the loss is read from the pool, at once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import err_console

EAGER = 2  # the first batches of each shape run kernel by kernel, to warm up what is created on first use
FREE = 0.25  # share of the device's memory below which no more shapes are recorded

Step = Callable[[Inputs, bool], Tensor]
# records a step; returns the function that replays it and the tensor of its loss, or None without memory
Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], Any], Tensor] | None]


class Replays:
    """A step, which adds to the gradients and returns the loss, recorded for at most `limit` shapes.

    No recording is replaced by another: frequent shapes come first, and recording a shape again would cost more than it
    saves. The step is an argument of each call, as a trainer kept here would be kept alive, with all its memory.
    """

    def __init__(self, record: Record, limit: int):
        self.record, self.limit = record, limit
        self.seen: Counter[tuple] = Counter()
        # by key: the buffers it reads from, the function that launches it, the tensor of its loss
        self.replays: dict[tuple, tuple[Inputs, Callable[[], Any], Tensor]] = {}

    def __call__(self, step: Step, inputs: Inputs, first: bool, seed: int) -> Tensor:
        """Run step(inputs, first) with the random numbers of `seed`: adds its gradients, returns its loss."""
        key = (first, *(tuple(tensor.shape) for tensor in inputs.tensors))
        self.seen[key] += 1
        if key not in self.replays and self.seen[key] > EAGER and len(self.replays) < self.limit:
            self._record(step, key, inputs, first)
        torch.manual_seed(seed)
        if key not in self.replays:
            return step(inputs, first)
        buffers, launch, loss = self.replays[key]
        for buffer, tensor in zip(buffers.tensors, inputs.tensors, strict=True):
            buffer.copy_(tensor)
        launch()
        return loss.clone()

    def _record(self, step: Step, key: tuple, inputs: Inputs, first: bool) -> None:
        buffers = inputs.each(torch.clone)
        recorded = self.record(partial(step, buffers, first))
        if recorded is None:
            self.limit = len(self.replays)
            err_console.print(f"no memory for more than {self.limit} recorded steps: other shapes run kernel by kernel")
        else:
            self.replays[key] = (buffers, *recorded)

    def give_up(self) -> int:
        """Free the memory of all recordings, make no more, and return how many there were."""
        count, self.limit = len(self.replays), 0
        self.replays.clear()
        torch.cuda.empty_cache()
        return count


class CudaRecord:
    """Records steps on the current stream, without running them, as long as there is memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], Any], Tensor] | None:
        """The function that replays `step` and its loss; None without memory. Raises UserError if recording fails."""
        free, total = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free < FREE * total <= free + cached:  # a recording cannot use what is cached for eager steps
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
        if free < FREE * total:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # like torch.cuda.graph, but without emptying the allocator's cache; other threads prepare batches
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                loss = step()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            # torch's shortage of memory, or the driver's, for the graph itself
            if torch.OutOfMemoryError in (type(error), type(error.__context__)) or "out of memory" in reason:
                return None  # the partial recording is dropped with the graph; none of it ran
            raise UserError(f"a training step cannot be recorded ({reason}); set training.graphs: 0") from error
        return graph.replay, loss


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run everything inside on a stream other than the default one; without effect on a CPU."""
    if device.type != "cuda":
        yield
        return
    before, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)
