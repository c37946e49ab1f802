"""`make bench`: the plain way beside the fast way in one run, on networks of full size, to results/speed/.

cpu.csv has one row per benchmark; its ratio says how many times better the fast side is (images/s: fast / plain;
seconds and MiB: plain / fast), its spread is the interquartile range over the median, of the side where that is larger.
Both sides take turns, so that what else the machine does meets them alike. growth.csv says how cost grows.
"""

import csv
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from benchmarks.config import load, resolve
from benchmarks.data.archive import open_archive
from benchmarks.data.batching import evaluation_batches
from benchmarks.environment import processor, revision
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.printing import csv_text, show
from benchmarks.recognition.predict import recognize
from benchmarks.training.loss import token_loss
from models import CoMER, CoMERConfig, SearchOptions, joint_search
from models.inference.folded_decoder import FoldedNetwork
from models.inference.folded_encoder import FoldedEncoder
from models.inference.plain_search import plain_search
from models.layers import Dropout
from models.vocab import EOS, SOS, bidirectional_targets
from models.weights import load_weights

QUIET = 0.5  # load that is no reason for a warning
TURN = 2.0  # s
console = Console(stderr=True)

Sides = tuple[Callable[[], object], Callable[[], object]]  # the same job, plain and fast


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are those of the committed numbers."""

    model: CoMERConfig = field(default_factory=CoMERConfig)
    height: int = 96
    width: int = 256
    beam: int = 10
    steps: int = 30
    many_steps: int = 200
    batch: int = 4  # images searched at once; of a long search one alone
    train_batch: int = 8
    tokens: int = 20


@dataclass(frozen=True)
class Row:
    """A line of cpu.csv. What was done on one side only leaves `plain`, `ratio` and `spread` empty."""

    benchmark: str
    plain: float | None
    fast: float
    ratio: float | None
    unit: str
    n: int
    spread: float | None
    hardware: str
    versions: str


# ------------------------------------------------------------------------------------------------------ the jobs


def network(sizes: Sizes) -> CoMER:
    """A network of random weights that never ends a hypothesis, so that a search takes all its steps."""
    torch.manual_seed(7)
    model = CoMER(sizes.model).eval()
    with torch.no_grad():
        assert model.decoder.proj.bias is not None
        model.decoder.proj.bias[[SOS, EOS]] = -1e3
    return model


def batch(sizes: Sizes, images: int) -> tuple[Tensor, Tensor]:
    """Ink like noise, on images without padding."""
    draw = torch.Generator().manual_seed(7)
    shape = (images, sizes.height, sizes.width)
    return torch.rand(images, 1, *shape[1:], generator=draw), torch.zeros(shape, dtype=torch.bool)


def encoding(sizes: Sizes, bf16: bool) -> Sides:
    model, images = network(sizes), batch(sizes, sizes.batch)
    with torch.no_grad():
        folded = FoldedEncoder(model.encoder, torch.bfloat16 if bf16 else torch.float32)
    return torch.no_grad()(lambda: model.encode(*images)), torch.inference_mode()(lambda: folded(*images))


def searching(sizes: Sizes, bf16: bool, steps: int, images: int) -> Sides:
    model, inputs = network(sizes), batch(sizes, images)
    options = SearchOptions(beam_size=sizes.beam, max_len=steps + 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        folded = FoldedNetwork(model)  # once for all batches, as `predict` does
    return lambda: plain_search(model, *inputs, options), lambda: joint_search(folded, *inputs, options)


def training(sizes: Sizes, bf16: bool) -> Sides:
    images, mask = batch(sizes, sizes.train_batch)
    draw = torch.Generator().manual_seed(7)
    labels = torch.randint(EOS + 1, sizes.model.vocab_size, (sizes.train_batch, sizes.tokens), generator=draw)
    inputs, outputs = bidirectional_targets(labels.tolist())

    def side(fast: bool) -> Callable[[], object]:
        model = network(sizes).train()
        if not fast:
            with_torch_dropout(model)
        half = fast and bf16
        layout = torch.channels_last if half else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fast)

        def step() -> object:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits = model(images.contiguous(memory_format=layout), mask, inputs)
            loss = token_loss(logits, outputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        return step

    return side(False), side(True)


def with_torch_dropout(model: nn.Module) -> None:
    """Replaces the suite's cheaper dropout by torch's own, which draws a double an element."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))


@dataclass(frozen=True)
class Case:
    """A job that both sides do, with so many images."""

    sides: Callable[[], Sides]
    images: int
    minutes: float  # for both sides once, on two quiet cores


def cases(s: Sizes) -> dict[str, Case]:
    return {
        "encoder_fp32": Case(lambda: encoding(s, False), s.batch, 0.004),
        "encoder_bf16": Case(lambda: encoding(s, True), s.batch, 0.003),
        "search_beam10_30steps_fp32": Case(lambda: searching(s, False, s.steps, s.batch), s.batch, 0.08),
        "search_beam10_30steps_bf16": Case(lambda: searching(s, True, s.steps, s.batch), s.batch, 0.08),
        "search_beam10_200steps_fp32": Case(lambda: searching(s, False, s.many_steps, 1), 1, 0.8),
        "train_step_fp32": Case(lambda: training(s, False), s.train_batch, 0.03),
        "train_step_bf16": Case(lambda: training(s, True), s.train_batch, 0.025),
    }


PEAKS = ("search_beam10_30steps_fp32", "search_beam10_30steps_bf16", "train_step_fp32", "train_step_bf16")
GROWTH = {  # what is varied around GROUND, images of 96 pixels' height: its name in GROUND and its values
    "image_area": ("width", (128, 256, 512, 1024)),  # px
    "sequence_length": ("steps", (10, 20, 40, 80)),
    "beam_width": ("beam", (1, 2, 5, 10, 20)),
    "batch_size": ("batch", (1, 2, 4, 8)),
}
GROUND = {"width": 256, "steps": 20, "beam": 5, "batch": 2}
CROHME = ("crohme2014_beam10_reference_lengths_bf16", "crohme2014_changed_by_bf16")  # only with an archive
NAMES = (*cases(Sizes()), *(f"peak_memory_{name}" for name in PEAKS), "growth", *CROHME)


COLUMNS = tuple(column.name for column in fields(Row))


# --------------------------------------------------------------------------------------------------- measuring


def seconds(sides: list[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Times of every side, in turns: forwards, then backwards, and so on; each is warmed up once.

    A turn takes TURN at least, the job being done as often as that takes: other work on the machine comes and goes
    in less than a second, and a short job would meet it or not, where a long one always meets some.
    """
    times: list[list[float]] = [[] for _ in sides]
    for repeat in range(-1, repeats):
        order = list(range(len(sides)))
        for side in order if repeat % 2 == 0 else order[::-1]:
            began, jobs, passed = time.perf_counter(), 0, 0.0
            while not jobs or passed < TURN * (repeat >= 0):
                sides[side]()
                jobs, passed = jobs + 1, time.perf_counter() - began
            if repeat >= 0:
                times[side].append(passed / jobs)
    return times


def spread(times: list[float]) -> float:
    """Interquartile range over the median; the range where there are too few."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / statistics.median(times)


def timed(name: str, case: Case, repeats: int) -> Row:
    times = seconds(list(case.sides()), repeats)
    plain, fast = (case.images / statistics.median(side) for side in times)
    return row(name, plain, fast, fast / plain, "images/s", repeats, max(map(spread, times)))


def peak(case: str, sizes: Sizes, repeats: int) -> Row:
    """Peak resident memory of a fresh process per side that does its job once, libraries included."""
    sides = [[resident(case, side, sizes) for _ in range(repeats)] for side in ("plain", "fast")]
    plain, fast = (statistics.median(side) for side in sides)
    return row(f"peak_memory_{case}", plain, fast, plain / fast, "MiB", repeats, max(map(spread, sides)))


def resident(case: str, side: str, sizes: Sizes) -> float:
    code = f"from benchmarks.performance.bench import *; occupy({case!r}, {side!r}, {sizes!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{case}, {side}: the process to be measured failed ({done.stderr.strip()[-200:]})")
    return float(done.stdout)


def occupy(name: str, side: str, sizes: Sizes) -> None:
    """Does one side of a benchmark once and prints the peak resident memory of this process, MiB."""
    import resource

    cases(sizes)[name].sides()[("plain", "fast").index(side)]()
    status = Path("/proc/self/status")
    if status.exists():  # Linux starts a child's ru_maxrss at its parent's size
        print(int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 2**10)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def row(
    name: str, plain: float | None, fast: float, ratio: float | None, unit: str, n: int, spread: float | None
) -> Row:
    hardware = f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    shown = [None if x is None else float(f"{x:.4g}") for x in (plain, fast, ratio, spread)]
    return Row(name, shown[0], shown[1] or 0.0, shown[2], unit, n, shown[3], hardware, versions())


def versions() -> str:
    """What a time depends on beside the hardware."""
    return f"torch {torch.__version__}, Python {sys.version.split()[0]}, {(revision() or 'no revision')[:9]}"


def growth(path: Path, sizes: Sizes, repeats: int) -> None:
    """Writes seconds of a float32 search, both ways, for every value of every axis."""
    lines = []
    for axis, (name, values) in GROWTH.items():
        for value in values:
            at = GROUND | {name: value}
            # tiny networks, in tests, have few classes
            these = replace(sizes, width=at["width"], beam=min(at["beam"], sizes.model.vocab_size // 2))
            times = seconds(list(searching(these, False, at["steps"], at["batch"])), min(repeats, 3))
            plain, fast = (float(f"{statistics.median(side):.4g}") for side in times)
            x = value * sizes.height if axis == "image_area" else value
            lines.append({"axis": axis, "value": x, "plain": plain, "fast": fast, "unit": "s", "n": min(repeats, 3)})
    write_atomically(path, csv_text(list(lines[0]), lines))


# ------------------------------------------------------------------------------------------------------ writing


def speed(
    results: Path, only: list[str], repeats: int, sizes: Sizes | None = None, crohme: Path | None = None
) -> list[Row]:
    """Measures what `only` names (nothing: everything) and writes it; rows of other benchmarks stay as they are.

    Two rows need `crohme`, an archive with CROHME 2014. UserError for unknown names.
    """
    if unknown := [part for part in only if not any(part in name for name in NAMES)]:
        raise UserError(f"--only {unknown[0]}: no such benchmark; choose from {', '.join(NAMES)} or a part of a name")
    if repeats < 1:
        raise UserError(f"--repeats {repeats}: must be at least 1 (5 for numbers to publish)")
    sizes, folder = sizes or Sizes(), results / "speed"
    jobs: dict[str, tuple[float, Callable[[], Row | None]]] = {  # minutes, roughly, and what measures
        name: ((repeats + 1) * case.minutes, partial(timed, name, case, repeats)) for name, case in cases(sizes).items()
    }
    jobs |= {f"peak_memory_{name}": (0.15 * repeats, partial(peak, name, sizes, repeats)) for name in PEAKS}
    jobs["growth"] = 2.0, partial(growth, folder / "growth.csv", sizes, repeats)
    if crohme is not None:
        jobs[CROHME[0]] = 3.0, partial(recognizing, crohme, sizes)
        jobs[CROHME[1]] = 2.0, partial(changed, crohme, results)
    wanted = {name: job for name, job in jobs.items() if not only or any(part in name for part in only)}
    if not wanted:
        raise UserError(f"--only {only[0]}: needs CROHME; give the archive with --crohme")
    rough = math.ceil(sum(minutes for minutes, _ in wanted.values()))
    console.print(f"{len(wanted)} benchmarks, {repeats} times each: about {rough} min on two quiet cores")
    if (load := os.getloadavg()[0]) > QUIET:
        console.print(f"the machine is not quiet (load {load:.1f}): these are no numbers to publish", style="yellow")
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted))
        for name, (_, measure) in wanted.items():
            progress.update(task, description=name)
            if (made := measure()) is not None:
                rows.append(made)
                save(folder / "cpu.csv", rows)  # at once: what was measured outlives Ctrl-C
            progress.advance(task)
    if rows:
        show(
            "speed",
            [{name: value for name, value in asdict(row).items() if name not in COLUMNS[-2:]} for row in rows],
            rows[0].hardware,
        )
    return rows


def recognizing(crohme: Path, sizes: Sizes) -> Row:
    """Seconds for all of CROHME 2014. Random weights know no end, so a batch takes as many steps as its longest
    reference, end included; trained weights drop what is finished earlier."""
    archive = open_archive(crohme)
    config = resolve("comer-fusion", "paper", 7, archive)
    model, began, images = network(sizes), time.perf_counter(), 0
    with torch.autocast("cpu", torch.bfloat16):
        folded = FoldedNetwork(model)
    for part in evaluation_batches(archive.samples("2014"), config, config.search.batch_size):
        options = SearchOptions(sizes.beam, max(map(len, part.tokens)) + 2)
        images += len(joint_search(folded, part.images.float() / 255, part.mask, options))
    return row(CROHME[0], None, time.perf_counter() - began, None, f"s for {images} images", 1, None)


def changed(crohme: Path, results: Path) -> Row:
    """How many predictions of the committed laptop run differ between bf16 and float32."""
    archive, run = open_archive(crohme), results / "reproduced/comer-fusion/laptop-seed7"
    config = load(run / "config.yaml")
    model, samples = load_weights(run / "best.safetensors", config.model).eval(), archive.samples("2014")
    found = []
    for bf16 in (False, True):
        search = config.search.model_copy(update={"bf16": bf16})
        way = config.model_copy(update={"search": search})
        found.append(recognize(model, way, samples, torch.device("cpu"), f"2014, bf16: {bf16}"))
    others = sum(found[0][name][0] != found[1][name][0] for name in found[0])
    return row(CROHME[1], None, others, None, f"of {len(samples)} predictions", 1, None)


def save(path: Path, rows: list[Row]) -> None:
    """Puts rows into the table, in the place of older ones of their names."""
    old = csv.DictReader(path.read_text().splitlines() if path.exists() else [",".join(COLUMNS)])
    if tuple(old.fieldnames or ()) != COLUMNS:
        raise UserError(f"{path}: has other columns than {', '.join(COLUMNS)}; delete it and measure again")
    lines: dict[str, dict] = {line["benchmark"]: line for line in old} | {made.benchmark: asdict(made) for made in rows}
    order = sorted(lines, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
    write_atomically(path, csv_text(COLUMNS, [lines[name] for name in order]))
