"""`hmerbench export --compare`: what an exported network costs and gains, on a fixed sample of CROHME's test images.

Every image is read in PyTorch in float32, as ONNX computes, and by the numpy reader with the weights in each type, one
after the other on one thread, so that a busy machine slows all alike. results/exported.csv has a row for each network
and way to read, results/exported.md says it.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import Sample, at_random
from hmerbench.benchmarks.environment import processor
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.onnx_files import WEIGHTS, write_onnx
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.printing import progress
from hmerbench.benchmarks.recognition.onnx_reader import Reader
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report.documents import from_template, markdown, update_table
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.evaluation.scoring.stats import compare_paired

SEED = 11  # of the sample
TORCH = "PyTorch"
Way = dict[str, Any]  # a line of exported.csv: what one way to read costs and gains


def bench_export(archive: Archive, runs: Sequence[Path], results: Path, count: int) -> list[Way]:
    """Measure the runs on `count` images, and write both files; rows of other runs are kept."""
    (samples, truth), rows = sample_of(archive, count), list[Way]()
    for folder in runs:
        rows = update_table(results / "exported.csv", measured(RunFolder(folder), samples, truth), ["network", "way"])
        write_atomically(results / "exported.md", page(rows))
    return rows


def sample_of(archive: Archive, count: int) -> tuple[list[Sample], GroundTruth]:
    """A fixed sample of all test images, by SPLIT-ID."""
    every = {f"{split}-{id_}": (split, id_) for split in archive.tests for id_ in archive.captions(split)}
    texts = {split: archive.ground_truth(split) for split in archive.tests}
    samples, graphs, captions = list[Sample](), dict[str, str](), dict[str, list[str]]()
    for name in at_random(every, count, SEED):
        split, id_ = every[name]
        graphs[name], captions[name] = texts[split][id_], archive.captions(split)[id_]
        samples.append(Sample(name, (*captions[name],), archive.image(split, id_)))
    return samples, GroundTruth(graphs, captions)


def measured(run: RunFolder, samples: Sequence[Sample], truth: GroundTruth) -> list[Way]:
    """A row for each way to read."""
    recognizer = Recognizer.load(run.path)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        ways: dict[str, Callable[[np.ndarray], str]] = {TORCH: partial(best_of, recognizer.in_float32())}
        megabytes = {TORCH: run.weights_file.stat().st_size / 1e6}
        for weights in WEIGHTS:
            folder = Path(scratch) / weights
            write_onnx(recognizer.model, recognizer.config, folder, weights)
            megabytes[weights] = sum(file.stat().st_size for file in folder.glob("*.onnx")) / 1e6
            ways[weights] = partial(best_through, Reader(folder))
        texts, seconds = {way: dict[str, str]() for way in ways}, dict.fromkeys(ways, 0.0)
        for read in ways.values():  # the first reading is slower
            read(samples[0].image)
        for sample in progress(samples, f"reading in {len(ways)} ways"):
            for way, read in ways.items():
                began = time.process_time()
                texts[way][sample.id] = read(sample.image)
                seconds[way] += time.process_time() - began
    right = {way: evaluate(texts[way], truth, NO_FIELDS).right for way in ways}
    wrong = {way: [int(sample.id not in right[way]) for sample in samples] for way in ways}
    rows, n = list[Way](), len(samples)
    for way in ways:
        against = compare_paired(wrong[way], wrong[WEIGHTS[0]], [sample.id.partition("-")[2] for sample in samples])
        low, high = against.interval
        rows.append(
            {
                "network": run.settings.name,
                "way": way if way == TORCH else f"ONNX, {way}",
                "n": n,
                "right": len(right[way]),
                "same_reading": sum(texts[way][s.id] == texts[TORCH][s.id] for s in samples),
                "lost": against.only_b,
                "won": against.only_a,
                "points": round(against.difference, 2),
                "low": round(low, 2),
                "high": round(high, 2),
                "seconds": round(seconds[way] / n, 3),
                "of_torch": round(seconds[way] / seconds[TORCH], 3),
                "megabytes": round(megabytes[way], 2),
                "cpu": processor(),
            }
        )
    return rows


def best_of(recognizer: Recognizer, ink: np.ndarray) -> str:
    """The best reading in PyTorch; empty if nothing was found."""
    [found] = recognizer.each([ink])
    return "" if isinstance(found, UserError) else found.latex


def best_through(reader: Reader, ink: np.ndarray) -> str:
    """The best reading through ONNX; empty if nothing was found."""
    return next((found.latex for found in reader(ink)), "")


def page(rows: Sequence[Way]) -> str:
    table = []
    for row in rows:
        points, low, high, seconds, share, size = (
            float(row[key]) for key in ("points", "low", "high", "seconds", "of_torch", "megabytes")
        )
        line = {"network": row["network"], "weights": row["way"], "n": row["n"], "right": row["right"]}
        line |= {"same reading as PyTorch": row["same_reading"], "lost, won": "", "points (95 %)": ""}
        if row["way"] not in (TORCH, f"ONNX, {WEIGHTS[0]}"):  # the latter is what others are compared with
            line["lost, won"] = f"{row['lost']}, {row['won']}"
            line["points (95 %)"] = f"{points:+.1f} ({low:+.1f} to {high:+.1f})"
        table.append(line | {"s an image": f"{seconds:.2f}", "of PyTorch's": f"{share:.0%}", "MB": f"{size:.1f}"})
    *years, last = crohme().tests
    content = {"years": f"{', '.join(years)} and {last}", "cpu": rows[-1]["cpu"], "table": markdown(table)}
    return from_template("exported.md", **content)
