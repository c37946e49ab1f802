"""`make bench`: time plain and fast implementations on full-size networks; write results/speed/.

cpu.csv has one row per benchmark; `ratio` is the gain of the fast side (images/s, words/s: fast / plain; MiB: plain /
fast). The sides alternate, so that other load on the machine affects both alike. growth.csv holds search time against
image area, length, beam width and batch size.
"""

import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hmerbench.benchmarks.environment import bf16_unit, processor, revision
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.performance.plain import plain_search, training_steps
from hmerbench.benchmarks.printing import counted, err_console, progress, show
from hmerbench.benchmarks.report.documents import update_table
from hmerbench.benchmarks.runtime import cores
from hmerbench.evaluation import csv_text
from hmerbench.models.comer import CoMER
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import searcher
from hmerbench.models.layers import Dropout
from hmerbench.models.settings import CoMERSettings, LanguageConfig
from hmerbench.models.vocab import EOS, SOS, Vocabulary

QUIET = 0.5  # load average above which a warning is printed
TURN = 2.0  # s, minimum duration of one measurement
STATUS = Path("/proc/self/status")  # Linux: contains the process's peak memory

Sides = tuple[Callable[[], object], Callable[[], object]]  # plain and fast implementation of one job


@dataclass(frozen=True)
class Sizes:
    """Problem sizes; the defaults are those of the committed numbers."""

    model: CoMERSettings = field(default_factory=CoMERSettings)
    height: int = 96
    width: int = 256
    beam: int = 10
    steps: int = 30
    many_steps: int = 200
    batch: int = 4  # images searched at once; the 200-step search uses 1
    train_batch: int = 8
    tokens: int = 20
    language: LanguageConfig = field(default_factory=LanguageConfig)
    lexicon: int = 10_000
    columns: tuple[int, int] = (35, 20)  # steps x sequences of the language model's batch


def hardware() -> str:
    return f"{processor()}, {counted(cores(), 'core')}, {counted(torch.get_num_threads(), 'thread')}"


def versions() -> str:
    checkout = revision()
    return f"torch {torch.__version__}, Python {sys.version.split()[0]}, {checkout[:9] if checkout else 'no revision'}"


COLUMNS = ("benchmark", "plain", "fast", "ratio", "unit", "n", "spread", "hardware", "versions")
Row = dict[str, Any]


def timing(benchmark: str, unit: str, **measured: float) -> Row:
    """A row of cpu.csv, in four significant digits; `measured` are plain, fast, ratio, n and spread."""
    values = {"benchmark": benchmark, "unit": unit, **measured, "hardware": hardware(), "versions": versions()}
    return {name: float(f"{values[name]:.4g}") if isinstance(values[name], float) else values[name] for name in COLUMNS}


def network(sizes: Sizes) -> CoMER:
    """A network with random weights that never predicts an end token, so that every search takes all its steps."""
    torch.manual_seed(7)
    model = CoMER(sizes.model).eval()
    with torch.no_grad():
        assert model.decoder.proj.bias is not None
        model.decoder.proj.bias[[SOS, EOS]] = -1e3
    return model


def batch(sizes: Sizes, images: int) -> tuple[Tensor, Tensor]:
    """Images of uniform noise (images, 1, H, W) and their empty padding mask."""
    draw = torch.Generator().manual_seed(7)
    ink = torch.rand(images, 1, sizes.height, sizes.width, generator=draw)
    return ink, torch.zeros_like(ink[:, 0], dtype=torch.bool)


def searching(sizes: Sizes, bf16: bool, steps: int, images: int) -> Sides:
    """Joint search: the plain one, which recomputes everything in float32, and the cached one."""
    model, inputs = network(sizes), batch(sizes, images)
    options = SearchOptions(beam_size=sizes.beam, max_len=steps + 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        read = searcher(model)  # once for all batches, as in `predict`
    return lambda: plain_search(model, *inputs, options), lambda: read([inputs], options)


def training(sizes: Sizes, bf16: bool) -> Sides:
    """A training step: with torch's dropout in float32, and as in the trainer."""
    images, mask = batch(sizes, sizes.train_batch)
    draw, vocabulary = torch.Generator().manual_seed(7), Vocabulary()
    ids = torch.randint(EOS + 1, len(vocabulary), (sizes.train_batch, sizes.tokens), generator=draw)
    captions = [vocabulary.decode(row) for row in ids.tolist()]

    def side(fast: bool) -> Callable[[], object]:
        model, half = network(sizes).train(), fast and bf16
        targets = model.targets(captions)
        if not fast:
            with_torch_dropout(model)
        layout = torch.channels_last if half else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fast)

        def step() -> object:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(images.contiguous(memory_format=layout), mask, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        return step

    return side(False), side(True)


def with_torch_dropout(model: nn.Module) -> None:
    """Replace the suite's cheaper dropout with torch's, which draws a double per element."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))


def cases(s: Sizes) -> dict[str, tuple[int, Callable[[], Sides]]]:
    """Two-sided benchmarks by name: number of images, or of words, and a factory of the two sides."""
    return {
        "search_beam10_30steps_fp32": (s.batch, lambda: searching(s, False, s.steps, s.batch)),
        "search_beam10_30steps_bf16": (s.batch, lambda: searching(s, True, s.steps, s.batch)),
        "search_beam10_200steps_fp32": (1, lambda: searching(s, False, s.many_steps, 1)),
        "train_step_fp32": (s.train_batch, lambda: training(s, False)),
        "train_step_bf16": (s.train_batch, lambda: training(s, True)),
        "language_step_fp32": (math.prod(s.columns), lambda: training_steps(s.language, s.lexicon, s.columns, False)),
        "language_step_bf16": (math.prod(s.columns), lambda: training_steps(s.language, s.lexicon, s.columns, True)),
    }


PEAKS = ("search_beam10_30steps_fp32", "search_beam10_30steps_bf16", "train_step_fp32", "train_step_bf16")
GROWTH = {  # axis of growth.csv: the key of GROUND that varies, and its values
    "image_area": ("width", (128, 256, 512, 1024)),  # px
    "sequence_length": ("steps", (10, 20, 40, 80)),
    "beam_width": ("beam", (1, 2, 5, 10, 20)),
    "batch_size": ("batch", (1, 2, 4, 8)),
}
GROUND = {"width": 256, "steps": 20, "beam": 5, "batch": 2}


def seconds(sides: Sides, repeats: int) -> list[list[float]]:
    """Seconds per job for each side, `repeats` times, after one warm-up job. The order of the sides alternates. A
    measurement repeats its job for at least TURN: a shorter one would hit or miss brief load from other processes."""
    times: list[list[float]] = [[] for _ in sides]
    for repeat in range(-1, repeats):
        for side in (0, 1) if repeat % 2 == 0 else (1, 0):
            began, jobs, passed = time.perf_counter(), 0, 0.0
            while not jobs or passed < TURN * (repeat >= 0):
                sides[side]()
                jobs, passed = jobs + 1, time.perf_counter() - began
            if repeat >= 0:
                times[side].append(passed / jobs)
    return times


def spread(sides: list[list[float]]) -> float:
    """Interquartile range / median, the larger of the two sides."""
    quartiles = (np.percentile(values, (25, 50, 75)).tolist() for values in sides)
    return max((upper - lower) / median for lower, median, upper in quartiles)


def timed(name: str, sizes: Sizes, repeats: int) -> Row:
    """Throughput of both sides in images/s, or words/s (median)."""
    count, sides = cases(sizes)[name]
    times = seconds(sides(), repeats)
    plain, fast = (count / statistics.median(side) for side in times)
    unit = "words/s" if name.startswith("language") else "images/s"
    return timing(name, unit, plain=plain, fast=fast, ratio=fast / plain, n=repeats, spread=spread(times))


def peak(name: str, sizes: Sizes, repeats: int) -> Row:
    """Peak resident memory (median) of fresh processes that run each side once; includes libraries."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        measure = partial(resident, name, sizes)
        peaks = [list(processes.map(measure, [side] * repeats)) for side in (0, 1)]
    plain, fast = map(statistics.median, peaks)
    measured = {"plain": plain, "fast": fast, "ratio": plain / fast, "spread": spread(peaks)}
    return timing(f"peak_memory_{name}", "MiB", n=repeats, **measured)


def resident(name: str, sizes: Sizes, side: int) -> float:
    """Run one side of a benchmark once; return this process's peak resident memory in MiB."""
    cases(sizes)[name][1]()[side]()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", STATUS.read_text())[0]) / 2**10


def growth(sizes: Sizes, repeats: int) -> Iterator[dict[str, object]]:
    """Rows of growth.csv: seconds of plain and fast float32 search for every value of every axis."""
    for axis, (name, values) in GROWTH.items():
        for value in values:
            point = GROUND | {name: value}
            varied = replace(sizes, width=point["width"], beam=point["beam"])
            times = seconds(searching(varied, False, point["steps"], point["batch"]), repeats)
            plain, fast = (float(f"{statistics.median(side):.4g}") for side in times)
            x = value * sizes.height if axis == "image_area" else value
            yield {"axis": axis, "value": x, "plain": plain, "fast": fast, "unit": "s", "n": repeats}


def bench(results: Path, only: list[str], repeats: int, sizes: Sizes | None = None) -> list[Row]:
    """Measure and save the benchmarks whose names contain an element of `only` (default: all); other rows are kept.
    Those of bf16 need a unit for it. Raises UserError for unknown names."""
    sizes, folder = sizes or Sizes(), results / "speed"
    jobs: dict[str, Callable[[], Row]] = {name: partial(timed, name, sizes, repeats) for name in cases(sizes)}
    if STATUS.exists():
        jobs |= {f"peak_memory_{name}": partial(peak, name, sizes, repeats) for name in PEAKS}
    if bf16_unit("cpu") is None:  # nothing computes in bf16 here, as it would be emulated
        jobs = {name: job for name, job in jobs.items() if not name.endswith("bf16")}
    names = [*jobs, "growth"]
    if unknown := [part for part in only if not any(part in name for name in names)]:
        hint = "" if bf16_unit("cpu") else "; those in bf16 need a processor with a unit for it"
        known = f"choose from {', '.join(names)} or parts{hint}"
        raise UserError(f"--only {unknown[0]}: no benchmark has this name; {known}")
    wanted = [name for name in names if not only or any(part in name for part in only)]
    if (load := os.getloadavg()[0]) > QUIET:
        err_console.print(f"the machine is not quiet (load {load:.1f}): do not publish these numbers", style="yellow")
    rows: list[Row] = []
    for name in progress(wanted, "measuring"):
        if name == "growth":
            lines = list(growth(sizes, min(repeats, 3)))
            write_atomically(folder / "growth.csv", csv_text(list(lines[0]), lines))
        else:
            rows.append(jobs[name]())
            update_table(folder / "cpu.csv", rows, ["benchmark"])  # immediately, so that Ctrl-C loses nothing
    if rows:
        show("speed", [{name: row[name] for name in COLUMNS[:-2]} for row in rows], rows[0]["hardware"])
    return rows
