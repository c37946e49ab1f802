"""`make gpu-check`: what a GPU that was never used before makes of this suite, in five minutes: results/speed/gpu.csv.

Four parts, each number kept as soon as it is measured:
- tests: those that only a GPU can fail.
- step: the training's own micro-batch (`Trainer.micro_step` of the preset `fast`: inputs made on the device, forward,
  backward) at eight padded shapes of its last epoch, small to large. In ms: `cold` the first of its shape, `eager`
  kernel by kernel, `recorded` while a CUDA graph is made of it, `replayed` from that (medians but for the single ones);
  `difference` is that of the gradients, replayed - eager, as a share of the eager ones' length.
- search: CROHME 2014 by the best committed weights, in float32 and bf16, beside their committed score.
- set: the keys of a preset that follow from it.
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

from benchmarks.config import Config, resolve
from benchmarks.data.archive import Archive, open_archive
from benchmarks.data.on_device import Drawn
from benchmarks.data.samples import evenly
from benchmarks.environment import best_device, environment, why_no_gpu
from benchmarks.errors import UserError, shortage
from benchmarks.files import write_atomically
from benchmarks.performance.bench import versions
from benchmarks.printing import aside, show
from benchmarks.recognition.predict import recognize, write_predictions
from benchmarks.runs.folder import RunFolder
from benchmarks.score import score
from benchmarks.training.cuda_graphs import own_stream
from benchmarks.training.team import Team, repeatable
from benchmarks.training.trainer import Trainer
from evaluation import csv_text
from models.weights import load_weights

CHECKOUT = Path(__file__).parents[2]
GRAPHS, ON_DEVICE = "tests/training/test_cuda_graphs.py", "tests/data/test_on_device.py"
SHAPES, REPEATS = 8, 5
GRADIENT_TOLERANCE = 0.02  # a difference of gradients that bf16 and the order of sums explain
SPLIT = "2014"
COLUMNS = ("part", "case", "measure", "value", "unit", "hardware", "versions")

Found = tuple[str, str, str, float | bool, str]  # the first five of a row


def gpu_check(crohme: Path | None, results: Path) -> None:
    """Checks this machine's GPU with CROHME. UserError without one or the other."""
    device = best_device()
    if device.type != "cuda":
        raise UserError(f"gpu-check is for a machine with a GPU: {why_no_gpu()}; make doctor says what is here")
    if crohme is None:
        raise UserError("gpu-check searches CROHME 2014: give it with CROHME=data.zip")
    archive = open_archive(crohme)
    examine(archive, resolve("comer-fusion", "fast", 7, archive), results, device)


def examine(archive: Archive, config: Config, results: Path, device: torch.device) -> None:
    """All parts, with the training of `config`, printed and written to results/speed/gpu.csv, where rows of other GPUs
    stay."""
    config = config.changed({"training.resident": True})
    path, found, made_by = results / "speed/gpu.csv", list[Found](), (environment(device)["device"], versions())
    lines = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    others = [line for line in lines if line["hardware"] != made_by[0]]
    parts = tests(archive), steps(archive, config, device), searches(archive, results, device), switches(found, config)
    for number in chain.from_iterable(parts):
        found.append(number)
        rows = [dict(zip(COLUMNS, (*one, *made_by), strict=True)) for one in found]
        write_atomically(path, csv_text(COLUMNS, [*others, *rows]))
    show(f"gpu-check: {made_by[0]}", [dict(zip(COLUMNS, one, strict=False)) for one in found], made_by[1])
    print(path)


def tests(archive: Archive) -> Iterator[Found]:
    """The CUDA tests; those that fail by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        given = os.environ | {"CROHME": str(archive.path.resolve())}
        done = subprocess.run([*pytest, GRAPHS, ON_DEVICE], cwd=CHECKOUT, env=given, capture_output=True, text=True)
        if not report.exists():  # no pytest, no tests
            said = (done.stderr or done.stdout).strip().splitlines()
            aside.print(f"the tests did not run: {said[-1] if said else done.returncode}", markup=False)
            yield "tests", "all", "did not run", 1, "tests"
            return
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield "tests", "all", "passed", len(cases) - len(failed) - skipped, "tests"
    yield "tests", "all", "skipped", skipped, "tests"
    for case in failed:
        yield "tests", f"{case.get('classname')}: {case.get('name')}", "failed", 1, "tests"


def steps(archive: Archive, config: Config, device: torch.device) -> Iterator[Found]:
    """The micro-batch at shapes from small to large, until the memory is used up; then the optimizer, and the peak."""
    team = Team(0, 1, device)
    repeatable(team, config.training.threads)
    with tempfile.TemporaryDirectory() as folder, own_stream(device):
        trainer = Trainer(RunFolder(Path(folder), config), archive, team)
        trainer.model.train()
        last = config.training.epochs - 1
        began, plan = time.perf_counter(), trainer.set.plan(last)
        drawn = [trainer.set.prepare(last, indices) for indices in plan]
        yield "epoch", "last", "batches", len(plan), "batches"
        yield "epoch", "last", "planned and drawn on the host", time.perf_counter() - began, "s"
        # images, height, width, decoding steps
        shapes = {(b.numbers.shape[1], *b.shape, b.targets[0].shape[1]): b for b in drawn if isinstance(b, Drawn)}
        sizes = sorted(shapes, key=lambda shape: (math.prod(shape[:3]), shape))
        for shape in [*evenly(sizes[:-1], SHAPES - 1), sizes[-1]]:
            case, pixels = "{} x {} x {} px, {} steps".format(*shape), math.prod(shape[:3])
            try:
                measured = timed(trainer, shapes[shape], device)
            except torch.OutOfMemoryError as error:
                aside.print(f"{case}: {shortage(error)}")
                yield "step", case, "no memory", pixels, "px"
                break
            for measure, value in measured.items():
                yield "step", case, measure, value, "share" if measure == "difference" else "ms"
            yield "step", case, "pixels", pixels, "px"
        yield "step", "optimizer", "eager", median(_ms(trainer.optimizer.step, device) for _ in range(REPEATS)), "ms"
    yield from memory("training", device)


def timed(trainer: Trainer, batch: Drawn, device: torch.device) -> dict[str, float]:
    """Times of one micro-batch in every way; its gradients the same way twice (same images, dropout and seed)."""

    def once() -> float:
        trainer.optimizer.zero_grad(set_to_none=False)
        return _ms(lambda: trainer.micro_step(batch, 0), device)

    def gradients() -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])

    replays = trainer.replays
    room = replays.limit if replays else 0
    if replays:
        replays.limit = 0  # none is recorded, until there are enough of the others
    found = {"cold": once(), "eager": median(once() for _ in range(REPEATS))}
    if replays is None:
        return found
    expected, count, replays.limit = gradients(), len(replays.replays), room
    recorded = once()
    if len(replays.replays) == count:  # no room, and it said so
        return found
    replayed = median(once() for _ in range(REPEATS))
    difference = float((gradients() - expected).norm() / expected.norm())
    return found | {"recorded": recorded, "replayed": replayed, "difference": difference}


def _ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds until the device is done with it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return 1000 * (time.perf_counter() - began)


def memory(case: str, device: torch.device) -> Iterator[Found]:
    """The most that the device had to hold since it was last asked for."""
    if device.type == "cuda":
        yield "memory", case, "peak", torch.cuda.max_memory_reserved(device) / 2**30, "GiB"
        yield "memory", case, "of", torch.cuda.get_device_properties(device).total_memory / 2**30, "GiB"


def searches(archive: Archive, results: Path, device: torch.device) -> Iterator[Found]:
    """CROHME 2014 by the best committed weights: seconds, and ExpRate beside the committed one with its interval."""
    committed = RunFolder.under(results / "reproduced")
    runs = [run for run in committed if run.has_weights and SPLIT in run.scores]
    if not runs:
        raise UserError(f"{results / 'reproduced'}: no committed weights to search with; run in a checkout")
    run = max(runs, key=lambda run: run.scores[SPLIT].exprate)
    config, scored = run.settings, run.scores[SPLIT]
    gc.collect()  # the trainer, to which its recordings refer
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model = load_weights(run.weights, config.model).to(device).eval()
    samples = evenly(archive.samples(SPLIT), config.search.limit)
    case = f"{run.path.parent.name}/{run.path.name}"
    for measure, value in zip(("committed", "from", "to"), (scored.exprate, *scored.ci95), strict=True):
        yield "search", case, f"ExpRate, {measure}", value, "%"
    for name, bf16 in (("float32", False), ("bf16", True)):
        way = config.changed({"search.bf16": bf16})
        here, began = RunFolder(results / "local/gpu-check" / name, way), time.perf_counter()
        found = recognize(model, way, samples, device, f"{SPLIT}, {name}")
        yield "search", case, f"time in {name}", time.perf_counter() - began, f"s for {len(samples)} images"
        write_predictions(here, SPLIT, found)
        yield "search", case, f"ExpRate in {name}", score(here, archive, [SPLIT])[SPLIT].exprate, "%"
    yield from memory("search", device)


def switches(found: list[Found], config: Config) -> Iterator[Found]:
    """What a preset for this GPU should say. Recordings and images on the device are kept where their tests pass and
    they are right and quick; batches are as large as the largest that found room."""

    def values(part: str, measure: str) -> list[float]:
        return [value for its, _, what, value, _ in found if (its, what) == (part, measure)]

    def passes(file: str) -> bool:
        failed = [case for _, case, measure, *_ in found if measure == "failed" and Path(file).stem in case]
        return not failed and not values("tests", "did not run")

    replayed, eager = values("step", "replayed"), values("step", "eager")
    right = all(difference <= GRADIENT_TOLERANCE for difference in values("step", "difference"))
    record = passes(GRAPHS) and right and 0 < sum(replayed) < sum(eager[: len(replayed)])
    yield "set", "preset", "training.graphs", config.training.graphs if record else 0, ""
    yield "set", "preset", "training.resident", passes(ON_DEVICE), ""
    if values("step", "no memory"):
        yield "set", "preset", "training.batching.pixels", max(values("step", "pixels"), default=0), "px"
    (low,), (high,), (rate,) = (values("search", f"ExpRate{of}") for of in (", from", ", to", " in bf16"))
    (single,), (half,) = (values("search", f"time in {name}") for name in ("float32", "bf16"))
    yield "set", "preset", "search.bf16", low <= rate <= high and half < single, ""
