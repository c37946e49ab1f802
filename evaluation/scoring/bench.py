"""Times scoring, with the captions of the test sets as predictions: by the scripts, from files to Summary.txt, and in
one process."""

import os
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring import run_scripts
from hmerbench.evaluation.scoring.inputs import GroundTruth, read_ground_truth
from hmerbench.evaluation.scoring.tokens import prediction_file

REPEATS = 5  # runs to average
SAMPLE = 20  # files of each set for LGEVAL_BIN's scripts, which take seconds per file
Sets = dict[str, tuple[dict[str, str], GroundTruth]]  # year -> prediction files by id, and the truth


def load(archive: Path) -> Sets:
    """The test sets of an archive."""
    sets: Sets = {}
    for year in ("2014", "2016", "2019"):
        truth = read_ground_truth(f"{archive}:{year}")
        sets[year] = {key: prediction_file(key, tokens) for key, tokens in (truth.captions or {}).items()}, truth
    return sets


def by_scripts(sets: Sets, folder: Path, sample: int | None = None) -> float:
    """Seconds that the scripts in use take for the first `sample` files of every set, from prediction files on disk to
    Summary.txt."""
    seconds = 0.0
    for year, (predictions, truth) in sets.items():
        work = Path(tempfile.mkdtemp(prefix=year, dir=folder))
        symlg = dict(list(truth.symlg.items())[:sample])
        run_scripts.write_all(work / "result", {key: predictions[key] for key in symlg if key in predictions}, ".txt")
        run_scripts.write_all(work / "gt_symlg", symlg, ".lg")
        start = time.perf_counter()
        run_scripts.run_script("tex2symlg", ["result", "pred_symlg"], work)
        run_scripts.run_script("evaluate", ["pred_symlg", "gt_symlg"], work)
        seconds += time.perf_counter() - start
        if not (work / "Results_pred_symlg" / "Summary.txt").exists():
            raise InputError(f"{run_scripts.scripts()}: wrote no Summary.txt")
    return seconds


def measure(run: Callable[[], object]) -> str:
    """Mean, standard deviation and range of REPEATS runs in seconds, and their processor time."""
    before, times = sum(os.times()[:4]), timeit.repeat(run, number=1, repeat=REPEATS)
    processor, mean, spread = (sum(os.times()[:4]) - before) / REPEATS, statistics.mean(times), statistics.stdev(times)
    wall = f"{mean:.3f} s ± {spread:.3f} (n = {REPEATS}, {min(times):.3f}–{max(times):.3f})"
    return f"{wall}, {processor:.3f} s of processor time"


def run(archive: Path) -> list[str]:
    """The lines of the benchmark. LGEVAL_BIN's scripts are compared with ours on SAMPLE files of each set."""
    sets = load(archive)
    files = sum(len(truth.symlg) for _, truth in sets.values())
    other = os.environ.pop("LGEVAL_BIN", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def in_process() -> None:
            for predictions, truth in load(archive).values():
                run_scripts.in_process(predictions, truth.graphs())

        lines = [
            f"{files} files of {', '.join(sets)}; one process at a time, {os.cpu_count()} CPUs",
            f"scripts    {measure(lambda: by_scripts(sets, folder))}",
            f"in process {measure(in_process)}",
        ]
        if other:
            ours = by_scripts(sets, folder, SAMPLE)
            os.environ["LGEVAL_BIN"] = other
            theirs = by_scripts(sets, folder, SAMPLE)
            n = sum(min(SAMPLE, len(truth.symlg)) for _, truth in sets.values())
            lines.append(f"{n} files: ours {ours:.2f} s, {other} {theirs:.2f} s, ratio {theirs / ours:.0f}")
    return lines
