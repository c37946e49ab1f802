"""Steps of training, timed on a new GPU (`hmerbench gpu-check`), and the ways to compute a training, compared with what
rounding alone does to it (`hmerbench equivalence`).

A step is one micro-batch (`Learner.micro_step` of the preset `gpu`: inputs sent, forward, backward), at eight padded
shapes of its last epoch, from small to large. Times in ms, in results/speed/gpu.csv: `cold`, the first of its shape;
`eager`, kernel by kernel; `recorded`, while a CUDA graph is captured; `replayed`, from the graph. `eager` and
`replayed` are medians. `difference` is |replayed - eager| / |eager| for the gradients. Every number is saved as soon
as it is measured.

The ways are compared on the same short training, a preset's with fewer expressions and epochs: every loss and the final
weights with those of `plain`. A way that computes the same training differs from it no more than `disturbed` does.
- plain: batches made by the training itself, kernel by kernel
- workers: batches made by processes, bit for bit the same
- recorded (GPU): steps and updates replayed from CUDA graphs, batches made by processes
- disturbed: plain, from first weights changed by 6e-8 of their values at random, the rounding unit of float32
In results/speed/equivalence.csv, `loss` is that of the last epoch, `loss_difference` the largest of an epoch, relative;
`weights_difference` is |weights - plain| / |plain|, of all weights that are read with.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.environment import Execution, best_device, environment, gpu_error
from hmerbench.benchmarks.errors import UserError, lacks_memory, out_of_memory_reason
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.performance.bench import versions
from hmerbench.benchmarks.printing import err_console, show
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import open_data
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.benchmarks.training.cuda_graphs import EAGER_STEPS, own_stream
from hmerbench.benchmarks.training.distributed import Team, make_deterministic
from hmerbench.benchmarks.training.trainer import Trainer
from hmerbench.evaluation import csv_text

SHAPES, REPEATS = 8, 5
COLUMNS = ("part", "case", "measure", "value", "unit", "hardware", "versions")

Measurement = tuple[str, str, str, float, str]  # the first five of COLUMNS
Row = dict[str, Any]


def gpu_check(crohme: Path | None, results: Path) -> None:
    """Time the steps of this machine's GPU. Raises UserError without one."""
    device = best_device()
    if device.type != "cuda":
        raise UserError(f"gpu-check needs a GPU: {gpu_error()}; make doctor lists the devices")
    archive = open_data(crohme, results)
    examine(archive, resolve("comer-fusion", "gpu", 7, archive), results, device)


def examine(archive: Archive, config: Config, results: Path, device: torch.device) -> None:
    """Time the steps of `config`; print and write results/speed/gpu.csv, keeping the rows of other GPUs."""
    path, hardware, software = results / "speed/gpu.csv", environment(device)["device"], versions()
    lines = read_table(path) if path.exists() else []
    rows: list[Row] = [line for line in lines if line["hardware"] != hardware]
    done: list[Row] = []
    for part, case, measure, value, unit in steps(archive, config, device):
        value = float(f"{value:.4g}") if isinstance(value, float) else value
        done.append(dict(zip(COLUMNS, (part, case, measure, value, unit), strict=False)))
        rows.append(done[-1] | {"hardware": hardware, "versions": software})
        write_atomically(path, csv_text(COLUMNS, rows))
    show(f"gpu-check: {hardware}", done, software)
    print(path)


def steps(archive: Archive, config: Config, device: torch.device) -> Iterator[Measurement]:
    """Time the micro-batch at shapes from small to large, until memory runs out; then the optimizer; report memory."""
    team = Team(0, 1, device)
    make_deterministic(team)
    with tempfile.TemporaryDirectory() as folder, own_stream(device):
        trainer = Trainer(RunFolder(Path(folder), config), archive, team)
        learner = trainer.learner
        learner.model.train()
        last = config.training.epochs - 1
        began, plan = time.perf_counter(), trainer.training_set.plan(last)
        drawn = [trainer.training_set.prepare(last, indices) for indices in plan]
        yield "epoch", "last", "batches", len(plan), "batches"
        yield "epoch", "last", "planned and drawn on the host", time.perf_counter() - began, "s"
        # images, height, width, shape of the network's first targets
        shapes = {(*batch.mask.shape, *batch.targets[0].shape): batch for batch in drawn}
        sizes = sorted(shapes, key=lambda shape: (math.prod(shape[:3]), shape))
        for shape in [*evenly(sizes[:-1], SHAPES - 1), sizes[-1]]:
            case, pixels = "{} x {} x {} px, {} x {} words".format(*shape), math.prod(shape[:3])
            measured, reason = _timed_or_not(trainer, shapes[shape], device)
            if measured is None and learner.replays and learner.replays.give_up():  # as in training
                measured, reason = _timed_or_not(trainer, shapes[shape], device)
            if measured is None:
                err_console.print(f"{case}: {reason}")
                yield "step", case, "no memory", pixels, "px"
                break
            for measure, value in measured.items():
                yield "step", case, measure, value, "share" if measure == "difference" else "ms"
            yield "step", case, "pixels", pixels, "px"
        yield "step", "optimizer", "eager", median(_ms(learner.optimizer.step, device) for _ in range(REPEATS)), "ms"
    if device.type == "cuda":
        yield "memory", "training", "peak", torch.cuda.max_memory_reserved(device) / 2**30, "GiB"
        yield "memory", "training", "of", torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB"


def _timed_or_not(trainer: Trainer, batch: Inputs, device: torch.device) -> tuple[dict[str, float] | None, str]:
    """`timed`, or None and the reason if memory runs out."""
    try:
        return timed(trainer, batch, device), ""
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        return None, out_of_memory_reason(error)


def timed(trainer: Trainer, batch: Inputs, device: torch.device) -> dict[str, float]:
    """Times of one micro-batch in ms, and the relative difference of eager and replayed gradients (same dropout), which
    is NaN if it cannot be recorded."""
    learner = trainer.learner

    def once() -> float:
        learner.optimizer.zero_grad(set_to_none=False)
        return _ms(lambda: learner.micro_step(trainer.training_set.inputs(batch), 0, 0), device)

    def gradients() -> torch.Tensor:
        parameters = learner.model.parameters()
        return torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])

    replays = learner.replays
    if replays:
        replays.steps = 0  # no recording during the eager steps
    times = {"cold": once(), "eager": median(once() for _ in range(REPEATS))}
    if replays is None:
        return times
    expected, count, replays.steps = gradients(), len(replays.recorded), EAGER_STEPS
    try:
        recorded = once()
    except UserError as error:
        err_console.print(str(error))
        replays.give_up()
        return times | {"difference": math.nan}
    if len(replays.recorded) == count:  # out of memory, which the recorder has reported
        return times
    replayed = median(once() for _ in range(REPEATS))
    difference = float((gradients() - expected).norm() / expected.norm())
    return times | {"recorded": recorded, "replayed": replayed, "difference": difference}


def _ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds until the device has finished `work`."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return 1000 * (time.perf_counter() - began)


# ------------------------------------------------------------------------------------------ ways to compute a training


ROUNDING = 6e-8  # 2**-24
EPOCHS = 2  # the second of which has fixed statistics, where the preset has


def ways(device: torch.device) -> dict[str, Execution]:
    """How each way computes, on a device."""
    plain = Execution(workers=0, graphs=False)
    recorded = {"recorded": Execution(workers=2, graphs=True)} if device.type == "cuda" else {}
    return {"plain": plain, "workers": Execution(workers=2, graphs=False), **recorded, "disturbed": plain}


def equivalence(archive: Archive, results: Path, recipe: str, preset: str, expressions: int) -> list[dict[str, Any]]:
    """Train all ways on this machine; print the rows and write them, keeping those of other hardware and trainings."""
    team = Team.gather()
    make_deterministic(team)
    config = resolve(recipe, preset, 7, archive).changed(
        {"data.limit": expressions, "training.epochs": EPOCHS, "training.recalibrate": 20}
    )
    what, device = f"{recipe}, {preset}, {expressions:,} expressions", environment(team.device)["device"]
    rows, plain = list[Row](), None
    for way, execution in ways(team.device).items():
        began = time.perf_counter()
        losses, weights, steps = trained(config, archive, team, execution, disturb=way == "disturbed")
        first, plain_weights = plain = plain or (losses, weights)
        differences = {
            "loss_difference": max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, first, strict=True)),
            "weights_difference": float((weights - plain_weights).norm() / plain_weights.norm()),
        }
        row: Row = {"training": what, "way": way, "steps": steps, "loss": losses[-1]}
        row |= {name: float(f"{difference:.3g}") for name, difference in differences.items()}
        row |= {"seconds": round(time.perf_counter() - began, 1), "hardware": device, "versions": versions()}
        rows.append(row)
        show(f"equivalence: {what}", [row])
    path = results / "speed/equivalence.csv"
    lines = read_table(path) if path.exists() else []
    kept = [line for line in lines if (line["training"], line["hardware"]) != (what, device)]
    write_atomically(path, csv_text([*rows[0]], [*kept, *rows]))
    return rows


def trained(
    config: Config, archive: Archive, team: Team, execution: Execution, disturb: bool
) -> tuple[list[float], Tensor, int]:
    """Losses of the epochs, the weights to recognize with in one vector (float64, on the CPU), and steps taken."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder), config)
        trainer = Trainer(run, archive, team, execution=execution)
        if disturb:
            generator = torch.Generator().manual_seed(7)
            for parameter in trainer.learner.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                parameter.data.mul_(1 + ROUNDING * noise)
        trainer.run()
        state = trainer.learner.inference_model(None).state_dict()
        weights = torch.cat(
            [tensor.double().flatten().cpu() for tensor in state.values() if tensor.is_floating_point()]
        )
        history = RunFolder(Path(folder)).history
    return [line["loss"] for line in history], weights, history[-1]["step"]
