"""Weights read test sets again, without training: the committed ones, or any on any archive.

`make evaluate` recognizes CROHME with the committed weights, and compares with the committed scores. Given `--weights`,
`evaluate` takes a run folder, its weights file or a checkpoint of CoMER's authors, and any archive in CoMER's layout,
which needs no training set, and for test sets of one's own no symLG. Results on other data lie apart and are called so.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.environment import best_device, environment
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked, write_atomically
from hmerbench.benchmarks.printing import console, counted, show
from hmerbench.benchmarks.recognition.default_weights import default_weights
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.packing import copy_part
from hmerbench.benchmarks.runs.workspace import (
    EVALUATED,
    announce,
    open_data,
    remember,
    report_command,
    select_splits,
    workspace,
)
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.strict_files import read_plain
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.metrics import METRICS, interval_text
from hmerbench.evaluation.scoring.score import Score
from hmerbench.evaluation.scoring.stats import mcnemar
from hmerbench.models.weights import pack_weights


def evaluate_committed(crohme: Path | None, years: Sequence[str], recipes: Sequence[str], results: Path) -> None:
    """Recognize and score CROHME with the weights of the reproduced runs; print ExpRate beside the committed one.

    Predictions and scores go to local/evaluated/<recipe>/<preset>-seed<k>/. A stopped evaluation is resumed if
    revision, versions and hardware are still the same. Other data are read with the best of these weights alone, unless
    `recipes` are named. Raises UserError without CROHME, if no run has weights and a score on these sets, and while
    another process evaluates there.
    """
    if crohme is None:
        raise UserError("evaluate compares with committed scores of CROHME: give it with CROHME=data.zip")
    archive = open_data(crohme, results, trains=False)
    runs = [run for run in RunFolder.under(results / "reproduced") if run.has_weights]
    of_runs = archive.name == "crohme" or any(archive.holds(run.settings.data.digest) for run in runs)
    if not (of_runs or recipes):  # with no scores to compare with: what `recognize` reads with
        evaluate_weights(default_weights(), crohme, years, results)
        return
    announce(archive)
    lacking = [recipe for recipe in recipes if recipe not in {run.recipe for run in runs}]
    if lacking or not runs:
        of = f" of {', '.join(lacking)}" if lacking else ""
        have = ", ".join(sorted({run.recipe for run in runs})) or "none"
        fix = f"choose from those that have ({have}), or read with those of any run (--weights)"
        raise UserError(f"{results / 'reproduced'}: no run{of} has weights; {fix}")
    runs = [run for run in runs if not recipes or run.recipe in recipes]
    for run in runs:
        if not archive.holds(run.settings.data.digest):
            used = f"{run.path}: it was scored on other data than {archive.path}"
            raise UserError(f"{used}; give all of CROHME, or --weights to read any data")
    splits = select_splits(archive, years)
    wanted = {f"{_name(run)}/{split}": (run, split) for run in runs for split in splits if split in run.scores}
    if not wanted:
        of = ", ".join(sorted({run.recipe for run in runs}))
        fix = "choose other years, or read these with the weights of any run (--weights)"
        raise UserError(f"{results / 'reproduced'}: no run of {of} is scored on {', '.join(splits)}; {fix}")
    with locked(results / EVALUATED, ".evaluating"):
        _evaluate(wanted, archive, results / EVALUATED)


def _evaluate(wanted: Mapping[str, tuple[RunFolder, str]], archive: Archive, evaluated: Path) -> None:
    """Recognize and score what the stopped evaluation in the folder, if any, has not done yet; print all."""
    rows, here = {}, {key: value for key, value in environment(best_device()).items() if key != "started"}
    with suppress(OSError, ValueError, LookupError, TypeError):  # no evaluation was stopped, or it cannot be resumed
        stopped = read_plain(evaluated / "unfinished.json")
        rows = stopped["rows"] if stopped["environment"] == here else {}
    runs, splits = {run.path for run, _ in wanted.values()}, dict.fromkeys(split for _, split in wanted.values())
    already = f"; {done} already done" if (done := len(rows.keys() & wanted.keys())) else ""
    console.print(f"plan: {counted(len(runs), 'run')}, test sets {', '.join(splits)}{already}")
    for key, (run, split) in wanted.items():
        if key not in rows:
            rows[key] = row = _evaluated(run, split, archive, evaluated / _name(run))
            write_atomically(evaluated / "unfinished.json", json.dumps({"environment": here, "rows": rows}) + "\n")
            words = f"ExpRate {row['here']} %, committed {row['committed']}; {row['same']} predictions the same"
            console.print(f"{key}: {words}")
    show("ExpRate of committed weights, recognized here", [rows[key] for key in wanted])
    console.print(
        "Some predictions may differ: committed weights are rounded to float16 after training, and other CPUs round "
        "sums differently, which decides near ties. These fall either way alike: if far more expressions are lost than "
        "won, or the reverse (p below 0.001), something is at fault: run make doctor, then make regress."
    )
    (evaluated / "unfinished.json").unlink(missing_ok=True)  # the next evaluation begins anew


def _name(run: RunFolder) -> str:
    return f"{run.path.parent.name}/{run.path.name}"


def _evaluated(run: RunFolder, split: str, archive: Archive, folder: Path) -> dict[str, str | int]:
    """Recognize and score a test set in `folder` with the weights of a committed run; the results side by side."""
    again = RunFolder(folder, run.settings)
    copy_part(run.path / "config.yaml", again.path / "config.yaml")
    copy_part(run.weights_file, again.weights_file)
    predict(again, archive, [split])
    (here,) = score(again, archive, [split]).values()
    committed = run.scores[split]
    right, right_here = ({row.id for row in each.expressions(split).values() if row.exact} for each in (run, again))
    lost, won = len(right - right_here), len(right_here - right)
    then, now = (read_predictions(folder / f"predictions/{split}.tsv") for folder in (run.path, again.path))
    predicted = then.keys() | now.keys()  # the others were skipped both times, which counts as the same
    same = sum(then.get(id_) == now.get(id_) for id_ in predicted) + committed.n - len(predicted)
    return {
        "run": _name(run),
        "set": split,
        "n": committed.n,
        "committed": f"{committed.exprate:.2f}",
        "here": f"{here.exprate:.2f}",
        "same": f"{same} of {committed.n}",
        "lost": lost,
        "won": won,
        "p": f"{mcnemar(won, lost):.3g}",
    }


def evaluate_weights(weights: Path, crohme: Path | None, years: Sequence[str], results: Path) -> Path:
    """Recognize and score the test sets of an archive (by default the embedded set) and print their scores.

    Predictions and scores go to local/evaluated/<recipe>/<preset>-seed<k>-<digest>/ under `results`, or under the
    folder of the archive's other runs if it is not CROHME. Raises UserError or CheckpointError before anything is
    recognized, and UserError while another process works in that folder.
    """
    recognizer = Recognizer.load(weights)  # first: without them, no data is made
    archive = open_data(crohme, results, trains=False)
    splits = select_splits(archive, years)
    announce(archive)
    for split in splits:
        archive.ground_truth(split)  # a caption that does not convert is reported now, not after the recognition
    run = evaluated_run(recognizer, archive, results)
    with locked(run.path):
        predict(run, archive, splits)
        scores = score(run, archive, splits)
    data = "CROHME" if archive.name == "crohme" else f"{archive.name} data, not CROHME"
    show(f"{weights} on {data}", [_row(split, scores[split]) for split in splits])
    console.print(f"predictions, scores and errors: {run.path}; every image: {report_command(archive, results)}")
    return run.path


def evaluated_run(recognizer: Recognizer, archive: Archive, results: Path) -> RunFolder:
    """The folder for what a network reads of an archive that is not their own: other weights and other settings have
    another digest in its name, whatever their files are called, and so has another archive's folder. It has copies of
    both, so that `predict` and `score` take it for a run. Raises UserError while another process works there."""
    remember(archive, results)
    config, packed = recognizer.config, pack_weights(recognizer.model)
    folder = results / EVALUATED if archive.name == "crohme" else workspace(archive, results) / "evaluated"
    digest = hashlib.sha256(packed + config.to_yaml().encode()).hexdigest()[:8]
    run = RunFolder(folder / f"{config.name}-{digest}", config)
    with locked(run.path):
        run.write("config.yaml", config.to_yaml())
        run.write("best.safetensors", packed)
    return run


def _row(split: str, score: Score) -> dict[str, str | int]:
    rates = {metric.heading or metric.name: score.printed(metric) for metric in METRICS}
    row = {"set": split, "n": score.n, "interval": interval_text(score.exact, score.n)} | rates
    return row | {"missing": score.missing, "signature": score.signature}
