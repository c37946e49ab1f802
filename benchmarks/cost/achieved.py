"""`cost --measure`: real training steps on this machine's CPU beside what the cost model predicts for it.

Two bounds: of all that operators read and write, at the bandwidth of a large copy (caches may beat it), and the least
that any program must do. The share is what of the latter was achieved.
"""

import os
import statistics
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.config import Config, resolve
from benchmarks.cost import epochs
from benchmarks.cost.epochs import Shape
from benchmarks.cost.hardware import Hardware, bound, measured
from benchmarks.cost.model import planned
from benchmarks.cost.operators import StepCounter, micro_step
from benchmarks.data.archive import Archive
from benchmarks.data.batching import TrainingSet
from benchmarks.performance.bench import QUIET
from models import CoMER, Vocabulary
from models.vocab import bidirectional_targets

console = Console()


def measure(archive: Archive, recipe: str, preset: str, batches: int = 4, repeats: int = 3) -> None:
    """Prints predicted and measured seconds of forward and backward of some of the preset's micro-batches."""
    config = resolve(recipe, preset, 7, archive)
    if (load := os.getloadavg()[0]) > QUIET:
        console.print(f"the machine is not quiet (load {load:.1f}): shares will be too low", style="yellow")
    machine = measured()
    console.print(
        f"measured: {machine.name}: {machine.bandwidth / 1e9:.1f} GB/s, {machine.fp32 / 1e9:.0f} GFLOP/s fp32, "
        f"{(machine.bf16 or 0) / 1e9:.0f} GFLOP/s bf16, {1e6 * machine.launch['eager']:.1f} us an operator"
    )
    plan, training = planned(config, archive)
    epoch = len(plan.epochs) - 1
    indices = dict(zip(plan.full.shapes, training.plan(epoch), strict=True))
    # the largest batches, of which there are few, take too long
    shapes = epochs.spread(plan.full.shapes, batches + 1)[:-1]
    table = Table(title=f"{recipe} {preset}, micro-batches: predicted for this machine, and measured")
    for name in ("images, pixels, steps", "predicted (s)", "limited by", "least (s)", "measured (s)", "share of least"):
        table.add_column(name, justify="left" if name.startswith("limited") else "right")
    prepared, totals = [], np.zeros(3)
    for shape in shapes:
        predicted, least, limited, seconds, ready = one(
            config, training, epoch, indices[shape], shape, machine, repeats
        )
        prepared.append(ready / shape.b)
        totals += predicted, least, seconds
        size = f"{shape.b} x {shape.height} x {shape.width}, {shape.steps}"
        cells = f"{predicted:.3f}", limited, f"{least:.3f}", f"{seconds:.3f}", f"{100 * least / seconds:.0f} %"
        table.add_row(size, *cells)
    predicted, least, seconds = totals
    cells = f"{predicted:.3f}", "", f"{least:.3f}", f"{seconds:.3f}", f"{100 * least / seconds:.0f} %"
    table.add_row("together", *cells)
    console.print(table)
    console.print(f"predicted / measured: {predicted / seconds:.2f}")
    console.print(
        f"measured: augmentation and padding of one image: {1000 * statistics.median(prepared):.2f} ms a thread"
    )


def one(
    config: Config,
    training: TrainingSet,
    epoch: int,
    indices: list[int],
    shape: Shape,
    machine: Hardware,
    repeats: int,
) -> tuple[float, float, str, float, float]:
    """(predicted, least, limited by, measured, preparing) of one batch, seconds."""
    began = time.perf_counter()
    batch = training.batch(epoch, indices)
    ready = time.perf_counter() - began
    if tuple(batch.images.shape) != (shape.b, 1, shape.height, shape.width):
        raise AssertionError(f"planned {shape}, got {tuple(batch.images.shape)}")
    inputs, outputs = bidirectional_targets([Vocabulary().encode(tokens) for tokens in batch.tokens])
    extra = (0, shape.steps - inputs.shape[1])
    inputs, outputs = torch.nn.functional.pad(inputs, extra), torch.nn.functional.pad(outputs, extra)
    costs = StepCounter(config, device_way=False)(*shape)
    bounds = [bound(cost, machine, "eager", config.training.bf16, shared=False) for cost in costs.values()]
    worst = max(bounds, key=lambda b: b.predicted)
    torch.manual_seed(7)
    model = CoMER(config.model).train()
    if config.training.bf16:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        micro_step(model, config.training, batch.images, batch.mask, inputs, outputs)
        times.append(time.perf_counter() - began)
        model.zero_grad(set_to_none=True)
    seconds = min(times[1:])  # as the machine's own numbers
    return sum(b.predicted for b in bounds), sum(b.least for b in bounds), worst.limited_by, seconds, ready
