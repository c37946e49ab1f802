"""How fast the scoring is: files in, Summary.txt out, with all process starts; and in one process."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from evaluation import InputError, symlg
from evaluation.lgeval import metrics
from evaluation.scoring import run_scripts
from evaluation.scoring.inputs import prediction_file, read_ground_truth, read_predictions

Sets = dict[str, tuple[dict[str, str], dict[str, str]]]  # year -> (prediction files, symLG texts) by id


def load(archive: Path, released: Path, years: tuple[str, ...] = ("2014", "2016", "2019")) -> Sets:
    """The test sets of an archive, with released/predictions_YEAR.zip or else the captions as predictions."""
    sets: Sets = {}
    for year in years:
        truth = read_ground_truth(f"{archive}:{year}")
        path = released / f"predictions_{year}.zip"
        if path.exists():
            predictions = read_predictions(path)
        else:
            captions = truth.captions or {}
            predictions = {key: prediction_file(key, tokens) for key, tokens in captions.items()}
        sets[year] = (predictions, truth.symlg)
    return sets


def in_process(sets: Sets) -> list[int]:
    """Convert and compare everything in this process; the exact counts of the sets."""
    exact = []
    for predictions, truth in sets.values():
        rows = []
        for key, text in truth.items():
            rows.append(metrics.compare(_graph(predictions.get(key)), symlg.read(text)).metrics)
        metrics.summary(rows, "", "")
        exact.append(sum(row["D_B"] == 0 for row in rows))
    return exact


def _graph(text: str | None) -> symlg.SymLG:
    try:
        return symlg.EMPTY_GRAPH if text is None else symlg.from_latex(symlg.formula_in(text))
    except symlg.Unconverted:
        return symlg.EMPTY_GRAPH


def by_scripts(sets: Sets, folder: Path) -> float:
    """Seconds the scripts in use take over all sets, from prediction files on disk to Summary.txt."""
    seconds = 0.0
    for year, (predictions, truth) in sets.items():
        work = Path(tempfile.mkdtemp(prefix=year, dir=folder))
        run_scripts.write_all(work / "result", predictions, ".txt")
        run_scripts.write_all(work / "gt_symlg", truth, ".lg")
        start = time.perf_counter()
        run_scripts.run_script("tex2symlg", ["result", "pred_symlg"], work)
        run_scripts.run_script("evaluate", ["pred_symlg", "gt_symlg"], work)
        seconds += time.perf_counter() - start
        if not (work / "Results_pred_symlg" / "Summary.txt").exists():
            raise InputError(f"{run_scripts.scripts()}: wrote no Summary.txt")
    return seconds


def measure(run: Callable[[], float], repeats: int) -> str:
    """Mean, standard deviation and extremes of `repeats` runs that return their seconds; processor time beside."""
    before = sum(os.times()[:4])
    times = [run() for _ in range(repeats)]
    processor = (sum(os.times()[:4]) - before) / repeats
    spread = statistics.stdev(times) if repeats > 1 else 0.0
    wall = f"{statistics.mean(times):.3f} s ± {spread:.3f} (n = {repeats}, {min(times):.3f}–{max(times):.3f})"
    return f"{wall}, {processor:.3f} s of processor time with preparation"


def run(archive: Path, released: Path, repeats: int, sample: int) -> list[str]:
    """The lines of the benchmark. Scripts of LGEVAL_BIN and ours are set side by side on `sample` files a
    set."""
    sets = load(archive, released)
    files = sum(len(truth) for _, truth in sets.values())

    def once() -> float:
        start = time.perf_counter()
        in_process(sets)
        return time.perf_counter() - start

    other = os.environ.pop("LGEVAL_BIN", None)
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            f"{files} files of {', '.join(sets)}; one process at a time, {os.cpu_count()} CPUs",
            f"scripts    {measure(lambda: by_scripts(sets, Path(folder)), repeats)}",
            f"in process {measure(once, repeats)}",
        ]
        if other:
            part = {
                year: (predictions, dict(list(truth.items())[:sample])) for year, (predictions, truth) in sets.items()
            }
            part = {y: ({k: t for k, t in p.items() if k in truth}, truth) for y, (p, truth) in part.items()}
            ours = by_scripts(part, Path(folder))
            os.environ["LGEVAL_BIN"] = other
            theirs = by_scripts(part, Path(folder))
            n = sum(len(truth) for _, truth in part.values())
            lines.append(f"{n} files: ours {ours:.2f} s, {other} {theirs:.2f} s, ratio {theirs / ours:.0f}")
    return lines
