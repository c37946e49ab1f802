"""`make bench`: the plain way beside the fast way in one run, on networks of full size, to results/speed/.

cpu.csv has a row a benchmark; its ratio says how many times better the fast side is (images/s: fast / plain; seconds
and MiB: plain / fast), its spread is the interquartile range over the median, of the side where that is larger.
Both sides take turns, so that what else the machine does meets them alike. growth.csv and its plot say how cost grows.
"""

import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from benchmarks.config import load, resolve
from benchmarks.data.archive import open_archive
from benchmarks.data.batching import evaluation_batches
from benchmarks.environment import processor, revision
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
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
    """A line of cpu.csv. What was done on one side only leaves `plain` and `ratio` empty."""

    benchmark: str
    plain: float | None
    fast: float
    ratio: float | None
    unit: str
    n: int
    spread: float | None
    hardware: str
    versions: str


@dataclass(frozen=True)
class Case:
    """One benchmark. `sides` makes the plain and the fast job; both do `images` images."""

    name: str
    sides: Callable[[Sizes], tuple[Callable[[], object], Callable[[], object]]]
    images: int
    minutes: float  # for both sides once, on two quiet cores


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


def encoding(sizes: Sizes, bf16: bool) -> tuple[Callable[[], object], Callable[[], object]]:
    model, images = network(sizes), batch(sizes, sizes.batch)
    with torch.no_grad():
        folded = FoldedEncoder(model.encoder, torch.bfloat16 if bf16 else torch.float32)

    @torch.no_grad()
    def plain() -> object:
        return model.encode(*images)

    @torch.inference_mode()
    def fast() -> object:
        return folded(*images)

    return plain, fast


def searching(sizes: Sizes, bf16: bool, steps: int, images: int) -> tuple[Callable[[], object], Callable[[], object]]:
    model, inputs = network(sizes), batch(sizes, images)
    options = SearchOptions(beam_size=sizes.beam, max_len=steps + 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        folded = FoldedNetwork(model)  # once for all batches, as `predict` does
    return lambda: plain_search(model, *inputs, options), lambda: joint_search(folded, *inputs, options)


def training(sizes: Sizes, bf16: bool) -> tuple[Callable[[], object], Callable[[], object]]:
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


def cases(sizes: Sizes) -> list[Case]:
    s = sizes
    return [
        Case("encoder_fp32", lambda s: encoding(s, False), s.batch, 0.004),
        Case("encoder_bf16", lambda s: encoding(s, True), s.batch, 0.003),
        Case("search_beam10_30steps_fp32", lambda s: searching(s, False, s.steps, s.batch), s.batch, 0.08),
        Case("search_beam10_30steps_bf16", lambda s: searching(s, True, s.steps, s.batch), s.batch, 0.08),
        Case("search_beam10_200steps_fp32", lambda s: searching(s, False, s.many_steps, 1), 1, 0.8),
        Case("train_step_fp32", lambda s: training(s, False), s.train_batch, 0.03),
        Case("train_step_bf16", lambda s: training(s, True), s.train_batch, 0.025),
    ]


PEAKS = ("search_beam10_30steps_fp32", "search_beam10_30steps_bf16", "train_step_fp32", "train_step_bf16")
GROWTH = {  # what is varied around two images of 96 x 256 pixels, a beam of 5 and 20 steps
    "image_area": (128, 256, 512, 1024),  # widths, px
    "sequence_length": (10, 20, 40, 80),
    "beam_width": (1, 2, 5, 10, 20),
    "batch_size": (1, 2, 4, 8),
}
GROUND = {"width": 256, "steps": 20, "beam": 5, "batch": 2}
AXES = dict(zip(GROWTH, ("width", "steps", "beam", "batch"), strict=True))
CROHME = ("crohme2014_beam10_reference_lengths_bf16", "crohme2014_changed_by_bf16")  # only with an archive
NAMES = (*(case.name for case in cases(Sizes())), *(f"peak_memory_{name}" for name in PEAKS), "growth", *CROHME)


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


def timed(case: Case, sizes: Sizes, repeats: int) -> Row:
    times = seconds(list(case.sides(sizes)), repeats)
    plain, fast = (case.images / statistics.median(side) for side in times)
    return row(case.name, plain, fast, fast / plain, "images/s", repeats, max(map(spread, times)))


def peak(case: str, sizes: Sizes, repeats: int) -> Row:
    """Peak resident memory of a fresh process a side that does its job once, libraries included."""
    name = f"peak_memory_{case}"
    sides = [[resident(case, side, sizes) for _ in range(repeats)] for side in ("plain", "fast")]
    plain, fast = (statistics.median(side) for side in sides)
    return row(name, plain, fast, plain / fast, "MiB", repeats, max(map(spread, sides)))


def resident(case: str, side: str, sizes: Sizes) -> float:
    code = f"from benchmarks.performance.bench import *; occupy({case!r}, {side!r}, {sizes!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{case}, {side}: the process to be measured failed ({done.stderr.strip()[-200:]})")
    return float(done.stdout)


def occupy(name: str, side: str, sizes: Sizes) -> None:
    """Does one side of a benchmark once and prints the peak resident memory of this process, MiB."""
    import resource

    case = next(case for case in cases(sizes) if case.name == name)
    job = case.sides(sizes)[("plain", "fast").index(side)]
    job()
    status = Path("/proc/self/status")
    if status.exists():  # Linux starts a child's ru_maxrss at its parent's size
        print(int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 2**10)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def row(
    name: str, plain: float | None, fast: float, ratio: float | None, unit: str, n: int, spread: float | None
) -> Row:
    cores, threads = os.cpu_count(), torch.get_num_threads()
    hardware = f"{processor()}, {cores} cores, {threads} threads"
    versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}, {(revision() or 'no revision')[:9]}"
    shown = [None if x is None else float(f"{x:.4g}") for x in (plain, fast, ratio, spread)]
    return Row(name, shown[0], shown[1] or 0.0, shown[2], unit, n, shown[3], hardware, versions)


def growth(sizes: Sizes, repeats: int, tell: Callable[[str], None] = lambda _: None) -> pd.DataFrame:
    """Seconds of a float32 search, both ways, for every value of every axis."""
    lines = []
    for axis, values in GROWTH.items():
        for value in values:
            tell(f"growth: {axis} {value}")
            at = GROUND | {AXES[axis]: value}
            # tiny networks, in tests, have few classes
            beam = min(at["beam"], sizes.model.vocab_size // 2)
            these = replace(sizes, width=at["width"], beam=beam)
            times = seconds(list(searching(these, False, at["steps"], at["batch"])), repeats)
            plain, fast = (statistics.median(side) for side in times)
            x = value * sizes.height if axis == "image_area" else value
            lines.append((axis, x, float(f"{plain:.4g}"), float(f"{fast:.4g}"), "s", repeats))
    return pd.DataFrame(lines, columns=["axis", "value", "plain", "fast", "unit", "n"])


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
    wanted = [name for name in NAMES if not only or any(part in name for part in only)]
    if crohme is None:
        wanted = [name for name in wanted if name not in CROHME]
        if not wanted:
            raise UserError(f"--only {only[0]}: needs CROHME; give the archive with --crohme")
    sizes, folder, rows = sizes or Sizes(), results / "speed", []
    jobs = {case.name: case for case in cases(sizes)}
    others = {"growth": 2.0, CROHME[0]: 3.0, CROHME[1]: 2.0}  # minutes; a peak of memory starts two programs
    rough = sum(
        (repeats + 1) * jobs[name].minutes if name in jobs else others.get(name, 0.15 * repeats) for name in wanted
    )
    console.print(f"{len(wanted)} benchmarks, {repeats} times each: about {math.ceil(rough)} min on two quiet cores")
    if (load := os.getloadavg()[0]) > QUIET:
        console.print(f"the machine is not quiet (load {load:.1f}): these are no numbers to publish", style="yellow")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted))
        for name in wanted:
            progress.update(task, description=name)
            if name == "growth":
                table = growth(sizes, min(repeats, 3), lambda text: progress.update(task, description=text))
                write_atomically(folder / "growth.csv", table.to_csv(index=False, lineterminator="\n"))
                draw(table, folder)
            else:
                if name in jobs:
                    made = timed(jobs[name], sizes, repeats)
                elif crohme is not None and name in CROHME:
                    made = (recognizing if name == CROHME[0] else changed)(crohme, results, sizes)
                else:
                    made = peak(name.removeprefix("peak_memory_"), sizes, repeats)
                rows.append(made)
                save(folder / "cpu.csv", rows)  # at once: what was measured outlives Ctrl-C
            progress.advance(task)
    show(rows)
    return rows


def recognizing(crohme: Path, results: Path, sizes: Sizes) -> Row:
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


def changed(crohme: Path, results: Path, sizes: Sizes) -> Row:
    """How many predictions of the committed laptop run are others in bf16 than in float32."""
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
    columns = [column.name for column in fields(Row)]
    old = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=columns)
    if list(old.columns) != columns:
        raise UserError(f"{path}: has other columns than {', '.join(columns)}; delete it and measure again")
    new = pd.DataFrame([astuple(made) for made in rows], columns=columns)
    kept = old[~old["benchmark"].isin(new["benchmark"])]
    whole = new if kept.empty else pd.concat([kept, new])
    place = {name: number for number, name in enumerate(NAMES)}
    order = [place.get(name, len(place)) for name in whole["benchmark"]]
    whole = whole.assign(order=order).sort_values("order", kind="stable").drop(columns="order")
    write_atomically(path, whole.to_csv(index=False, lineterminator="\n"))


def show(rows: list[Row]) -> None:
    table = Table(title="speed", caption=rows[0].hardware if rows else None)
    table.add_column("benchmark", overflow="fold")
    for name in ("plain", "fast", "unit", "ratio", "n", "spread"):
        table.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    for made in rows:
        ratio = "" if made.ratio is None else f"{made.ratio:.2f}x"
        spread = "" if made.spread is None else f"{100 * made.spread:.0f} %"
        plain = "" if made.plain is None else f"{made.plain:.4g}"
        table.add_row(made.benchmark, plain, f"{made.fast:.4g}", made.unit, ratio, str(made.n), spread)
    Console().print(table)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """growth.pdf, .svg, .png: seconds against each axis, both ways; the legend gives the last slope, cost ~ x^slope."""
    import matplotlib.style
    from matplotlib.figure import Figure

    from benchmarks.report.figures.make import DATES, STYLE, rendered

    with matplotlib.style.context(STYLE, after_reset=True):
        figure = Figure(figsize=(7, 2))
        panels = figure.subplots(1, len(GROWTH), sharey=True)
        for panel, (axis, part) in zip(panels, table.groupby("axis", sort=False), strict=True):
            for side, marker in (("plain", "s-"), ("fast", "o-")):
                panel.loglog(part["value"], part[side], marker, label=f"{side}, ~x^{slope(part, side):.1f}")
            panel.set_xlabel(str(axis).replace("_", " ") + (" (px)" if axis == "image_area" else ""))
            panel.legend()
        panels[0].set_ylabel("seconds")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for kind in DATES:
            write_atomically(folder / f"growth.{kind}", rendered(figure, kind))


def slope(part: pd.DataFrame, side: str) -> float:
    """How the cost grows over the last doubling: 1 is linear."""
    first, last = part.iloc[-2], part.iloc[-1]
    return math.log(last[side] / first[side]) / math.log(last["value"] / first["value"])
