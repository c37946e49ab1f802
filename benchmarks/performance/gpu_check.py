"""`make gpu-check`: check the suite on a new GPU in a few minutes; write results/speed/gpu.csv.

Four parts; every number is saved as soon as it is measured:
- tests: those of recorded steps, of batches made on the device and of language models, some skipped elsewhere.
- step: one micro-batch (`Learner.micro_step` of the preset `gpu`: inputs made on the device, forward, backward) at
  eight padded shapes of its last epoch, from small to large. Times in ms: `cold`, the first of its shape; `eager`,
  kernel by kernel; `recorded`, while a CUDA graph is captured; `replayed`, from the graph. `eager` and `replayed` are
  medians. `difference` is |replayed - eager| / |eager| for the gradients.
- search: CROHME 2014 with the best committed weights, in float32 and bf16, beside their committed score.
- set: how to compute, and the preset keys, that follow from these measurements.
"""

import csv
import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import torch

from hmerbench.benchmarks.config import Config, resolve
from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.on_device import Drawn
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.environment import best_device, bf16_unit, environment, gpu_error
from hmerbench.benchmarks.errors import UserError, out_of_memory_reason
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.paths import CHECKOUT
from hmerbench.benchmarks.performance.bench import versions
from hmerbench.benchmarks.printing import err_console, show
from hmerbench.benchmarks.recognition.predict import recognize, write_predictions
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.training.cuda_graphs import EAGER_STEPS, own_stream
from hmerbench.benchmarks.training.distributed import Team, make_deterministic
from hmerbench.benchmarks.training.trainer import Trainer
from hmerbench.evaluation import csv_text
from hmerbench.models.weights import load_weights

GRAPHS, ON_DEVICE = "tests/training/test_cuda_graphs.py", "tests/data/test_on_device.py"
TESTS = (GRAPHS, ON_DEVICE, "tests/language_models/test_training.py")
SHAPES, REPEATS = 8, 5
GRADIENT_TOLERANCE = 0.02  # relative; explained by bf16 and the order of summation
SPLIT = "2014"
COLUMNS = ("part", "case", "measure", "value", "unit", "hardware", "versions")

Measurement = tuple[str, str, str, float | bool, str]  # the first five of COLUMNS


def gpu_check(crohme: Path | None, results: Path) -> None:
    """Check this machine's GPU. Raises UserError without a GPU or without CROHME."""
    device = best_device()
    if device.type != "cuda":
        raise UserError(f"gpu-check needs a GPU: {gpu_error()}; make doctor lists the devices")
    if crohme is None:
        raise UserError("gpu-check searches CROHME 2014: give it with CROHME=data.zip")
    archive = open_archive(crohme)
    examine(archive, resolve("comer-fusion", "gpu", 7, archive), results, device)


def examine(archive: Archive, config: Config, results: Path, device: torch.device) -> None:
    """Run all parts with the training settings of `config`; print and write results/speed/gpu.csv, keeping the rows of
    other GPUs."""
    path, hardware, software = results / "speed/gpu.csv", environment(device)["device"], versions()
    lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
    others = [line for line in lines if line["hardware"] != hardware]
    done: list[Measurement] = []
    parts = tests(archive), steps(archive, config, device), searches(archive, results, device), switches(done, config)
    for measurement in chain.from_iterable(parts):
        done.append(measurement)
        rows = [dict(zip(COLUMNS, (*_rounded(row), hardware, software), strict=True)) for row in done]
        write_atomically(path, csv_text(COLUMNS, [*others, *rows]))
    show(f"gpu-check: {hardware}", [dict(zip(COLUMNS, _rounded(row), strict=False)) for row in done], software)
    print(path)


def _rounded(row: Measurement) -> Measurement:
    """The row, a measured value to four significant digits."""
    part, case, measure, value, unit = row
    return part, case, measure, float(f"{value:.4g}") if isinstance(value, float) else value, unit


def tests(archive: Archive) -> Iterator[Measurement]:
    """Run the tests; count the results of each file and name the failures."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        variables = os.environ | {"CROHME": str(archive.path.resolve())}
        done = subprocess.run([*pytest, *TESTS], cwd=CHECKOUT, env=variables, capture_output=True, text=True)
        if not report.exists():  # pytest or the tests are not installed
            output = (done.stderr or done.stdout).strip().splitlines()
            err_console.print(f"the tests did not run: {output[-1] if output else done.returncode}")
            yield "tests", "all", "did not run", 1, "tests"
            return
        cases = list(ElementTree.parse(report).iter("testcase"))
    for name in (Path(test).stem for test in TESTS):
        own = [case for case in cases if name in case.get("classname", "").split(".")]
        failed = [case for case in own if case.find("failure") is not None or case.find("error") is not None]
        skipped = sum(case.find("skipped") is not None for case in own)
        yield "tests", name, "passed", len(own) - len(failed) - skipped, "tests"
        yield "tests", name, "skipped", skipped, "tests"
        for case in failed:
            yield "tests", f"{name}: {case.get('name')}", "failed", 1, "tests"


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
        shapes = {(b.numbers.shape[1], *b.shape, *b.targets[0].shape): b for b in drawn if isinstance(b, Drawn)}
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
    yield from memory("training", device)


def _timed_or_not(trainer: Trainer, batch: Drawn, device: torch.device) -> tuple[dict[str, float] | None, str]:
    """`timed`, or None and the reason if memory runs out."""
    try:
        return timed(trainer, batch, device), ""
    except torch.OutOfMemoryError as error:
        return None, out_of_memory_reason(error)


def timed(trainer: Trainer, batch: Drawn, device: torch.device) -> dict[str, float]:
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


def memory(case: str, device: torch.device) -> Iterator[Measurement]:
    """Peak reserved memory since the last reset, and total memory of the device."""
    if device.type == "cuda":
        yield "memory", case, "peak", torch.cuda.max_memory_reserved(device) / 2**30, "GiB"
        yield "memory", case, "of", torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB"


def searches(archive: Archive, results: Path, device: torch.device) -> Iterator[Measurement]:
    """Search CROHME 2014 with the best committed weights: seconds and ExpRate, and the committed ExpRate."""
    committed = RunFolder.under(results / "reproduced")
    runs = [run for run in committed if run.has_weights and SPLIT in run.scores]
    if not runs:
        raise UserError(f"{results / 'reproduced'}: it holds no committed weights; run this command in a checkout")
    run = max(runs, key=lambda run: run.scores[SPLIT].exprate)
    config, scored = run.settings, run.scores[SPLIT]
    gc.collect()  # frees the trainer, which is in a reference cycle with its recordings
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model = load_weights(run.weights, config.model).to(device).eval()
    samples = evenly(archive.samples(SPLIT), config.search.limit)
    case = f"{run.path.parent.name}/{run.path.name}"
    for measure, value in zip(("committed", "from", "to"), (scored.exprate, *scored.ci95), strict=True):
        yield "search", case, f"ExpRate, {measure}", value, "%"
    ways = {"float32": False, "bf16": True} if bf16_unit(device.type) else {"float32": False}
    for name, bf16 in ways.items():
        settings = config.changed({"search.bf16": bf16})
        here, began = RunFolder(results / "local/gpu-check" / name, settings), time.perf_counter()
        predictions = recognize(model, settings, samples, device, f"{SPLIT}, {name}")
        yield "search", case, f"time in {name}", time.perf_counter() - began, f"s for {len(samples)} images"
        write_predictions(here, SPLIT, predictions, model.vocabulary)
        yield "search", case, f"ExpRate in {name}", score(here, archive, [SPLIT])[SPLIT].exprate, "%"
    yield from memory("search", device)


def switches(done: list[Measurement], config: Config) -> Iterator[Measurement]:
    """Recommended keys. Steps are recorded if their tests pass (all of them: none failed or was skipped), gradients
    agree and replay is faster; images stay on the device if their tests pass; batches are limited to the largest that
    fitted, if memory ran out; bf16 search is used if it is faster and its ExpRate lies in the committed interval."""

    def values(part: str, measure: str) -> list[float]:
        return [row[3] for row in done if (row[0], row[2]) == (part, measure)]

    def passes(file: str) -> bool:
        own = [row for row in done if row[0] == "tests" and row[1].partition(":")[0] == Path(file).stem]
        return {measure for _, _, measure, value, _ in own if value} == {"passed"}

    replayed, eager = values("step", "replayed"), values("step", "eager")
    correct = all(difference <= GRADIENT_TOLERANCE for difference in values("step", "difference"))
    record = passes(GRAPHS) and correct and 0 < sum(replayed) < sum(eager[: len(replayed)])
    yield "set", "execution", "graphs", record, ""
    yield "set", "execution", "resident", passes(ON_DEVICE), ""
    if values("step", "no memory"):
        yield "set", "preset", "training.batching.pixels", max(values("step", "pixels"), default=0), "px"
    (low,), (high,), rates = (values("search", f"ExpRate{of}") for of in (", from", ", to", " in bf16"))
    (single,), half = (values("search", f"time in {name}") for name in ("float32", "bf16"))
    better = [low <= rate <= high and seconds < single for rate, seconds in zip(rates, half, strict=True)]
    yield "set", "preset", "search.bf16", any(better), ""
