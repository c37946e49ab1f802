"""CUDA graphs: the thousands of small kernels of a micro-batch or of an update, recorded once, then launched as one.

At these batch sizes a GPU waits for the host to launch kernels. torch.compile would fuse them as well, but takes about
a minute for each of some hundred shapes; recording a shape takes about as long as two steps.

What recording requires, and how it is ensured:
- Inputs and gradients keep their addresses: inputs are copied into buffers, gradients are zeroed and never freed.
  Nothing is recorded before the third step, so every parameter that receives a gradient has one by then, and every
  moment of the optimizer exists.
- Decisions of the host are recorded with the kernels. The shape of a batch is the key of its recording. Rates, which
  change from step to step, are tensors. When statistics become fixed, all is recorded anew, in a pool of its own: torch
  2.11 refuses a pool whose recordings are all gone.
- No graph is destroyed while others are in use: with each, torch 2.13 frees the workspaces in which cuBLAS computes for
  all of them.
- Dropout: torch passes the generator's seed and offset to a graph at launch (since 1.13), so a seeded micro-batch draws
  the same masks either way.
- autocast must not reuse bf16 copies of weights across micro-batches: the caller turns its cache off.
- Everything runs on one stream other than the default one (`own_stream`), because a recording must not wait for another
  stream.
- All graphs share one memory pool: they run one after another, and only the loss is read from the pool, at once.
"""

import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.errors import Lost, UserError, gpu_failure, lacks_memory, out_of_memory_reason
from hmerbench.benchmarks.printing import err_console

EAGER_STEPS = 2  # the first steps of a process run kernel by kernel, to warm up what is created on first use
FREE = 0.05  # share of the device's memory below which no more shapes are recorded

Work = Callable[[], Tensor | None]
# records work without doing it; returns the function that replays it and what it returned, or None without memory
Record = Callable[[Work], tuple[Callable[[], Any], Any] | None]


class Replays:
    """Steps that are recorded at the first sight of their shape, and the update that ends each, once for all.

    What to do is an argument of each call, as a trainer kept here would be kept alive, with all its memory.
    """

    def __init__(self, record: Record):
        self.record, self.steps, self.full, self.told, self.given_up = record, 0, False, False, False
        # by shapes: the buffers a recording reads from, the function that launches it, the tensor of its loss
        self.recorded: dict[Hashable, tuple[Inputs, Callable[[], Any], Tensor]] = {}
        self.updating: Callable[[], Any] | None = None

    @property
    def warm(self) -> bool:
        """Whether enough steps have run kernel by kernel, and there is memory for recordings."""
        return self.steps >= EAGER_STEPS and not self.full

    def micro_step(self, step: Callable[[Inputs], Tensor], inputs: Inputs, seed: int) -> Tensor:
        """Run step(inputs) with the random numbers of `seed`: adds its gradients, returns its loss."""
        key = tuple(tensor.shape for tensor in tree_leaves(inputs))
        if key not in self.recorded and self.warm:
            buffers = tree_map(torch.clone, inputs)
            if recorded := self._recorded(partial(step, buffers)):
                self.recorded[key] = (buffers, *recorded)
        torch.manual_seed(seed)
        if key not in self.recorded:
            return step(inputs)
        buffers, launch, loss = self.recorded[key]
        for buffer, tensor in zip(tree_leaves(buffers), tree_leaves(inputs), strict=True):
            buffer.copy_(tensor, non_blocking=True)
        launch()
        return loss.clone()

    def update(self, update: Callable[[], None]) -> None:
        """Run an update, which ends a step."""
        if self.updating is None and self.warm and (recorded := self._recorded(update)):
            self.updating = recorded[0]
        (self.updating or update)()
        self.steps += 1

    def _recorded(self, work: Work) -> tuple[Callable[[], Any], Any] | None:
        if (recorded := self.record(work)) is None:
            if not self.told:
                limit = f"no memory for more than {len(self.recorded)} recorded steps"
                err_console.print(f"{limit}: others run kernel by kernel")
            self.full = self.told = True
        return recorded

    def retry(self) -> None:
        """Record again what there was no memory for: what other runs used may be free."""
        self.full = self.given_up

    def anew(self, record: Record) -> "Replays":
        """As warm, or as full, and nothing recorded."""
        replays = Replays(record)
        replays.steps, replays.full, replays.given_up = self.steps, self.full, self.given_up
        return replays

    def give_up(self) -> int:
        """Free the memory of all recordings, make no more, and return how many there were."""
        count, self.full, self.given_up = len(self.recorded), True, True
        self.recorded.clear()
        self.updating, self.record = None, lambda _: None  # with what it keeps
        torch.cuda.empty_cache()
        return count


class CudaRecord:
    """Records work on the current stream, without doing it, as long as there is memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.failed: list[torch.cuda.CUDAGraph] = []

    def __call__(self, work: Work) -> tuple[Callable[[], Any], Any] | None:
        """The function that replays `work`, and what it returned; None without memory. Raises UserError if recording
        fails, and Lost if that leaves torch unusable."""
        free, total = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free < FREE * total <= free + cached:  # a recording cannot use what is cached for eager steps
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
        if free < FREE * total:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            # like torch.cuda.graph, but without emptying the allocator's cache; autograd has threads of its own
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            # for the step, or for the graph itself
            if lacks_memory(error) or (error.__context__ and lacks_memory(error.__context__)):
                self.failed.append(graph)  # nothing of it ran; kept, as with it went the workspaces of those before it
                if still_recording():
                    reason = out_of_memory_reason(error if lacks_memory(error) else error.__context__ or error)
                    fix = "run the same command again, with fewer runs at a time (JOBS=) or --no-graphs"
                    raise Lost(f"{reason}, to record a training step; {fix}") from None
                return None
            # a process that prepares batches was killed, or the GPU is lost: not for want of a way to record
            of_recording = re.search("captur|_STATUS_", str(error))
            if "DataLoader worker" in str(error) or (gpu_failure(error) and not of_recording):
                raise
            reason = str(error).splitlines()[0]
            raise UserError(f"a training step cannot be recorded ({reason}); add --no-graphs") from error
        return graph.replay, result


def still_recording() -> bool:
    """Whether torch's generator is left as if recording, as torch 2.11 leaves it where that fails: it draws no more."""
    try:
        torch.rand((), device="cuda")
    except RuntimeError as error:
        return not lacks_memory(error)
    return False


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
