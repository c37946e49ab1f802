"""`make evaluate`: recognize CROHME with the committed weights and compare with the committed scores."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.data.archive import Archive
from benchmarks.environment import best_device, environment
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.printing import console, show
from benchmarks.recognition.predict import predict
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.packing import copy_part
from benchmarks.runs.workspace import announce, open_data, test_splits
from benchmarks.score import score
from evaluation.scoring.inputs import read_predictions
from evaluation.scoring.interval import interval_text

Row = dict[str, str | int]


def evaluate(crohme: Path | None, years: Sequence[str], recipes: Sequence[str], results: Path) -> None:
    """Recognize and score CROHME with the weights of the reproduced runs; print ExpRate beside the committed one.

    Predictions and scores go to local/evaluated/<recipe>/<preset>-seed<k>/. A stopped evaluation is resumed if
    revision, versions and hardware are still the same. Raises UserError without CROHME, for another edition of it, and
    if no run has weights.
    """
    if crohme is None:
        raise UserError("evaluate compares with committed scores of CROHME: give it with CROHME=data.zip")
    archive = open_data(crohme, results, trains=False)
    announce(archive)
    runs = [run for run in RunFolder.under(results / "reproduced") if run.has_weights]
    runs = [run for run in runs if not recipes or run.recipe in recipes]
    if not runs:
        which = " of these recipes" if recipes else ""
        raise UserError(f"{results / 'reproduced'}: no run{which} has weights; --weights reads with those of any run")
    for run in runs:
        if run.settings.data.digest != archive.digest:
            used = f"{run.path}: uses another edition of CROHME than {archive.path}"
            raise UserError(f"{used}; give that edition, or give --weights to read any other data")
    splits = test_splits(archive, years)
    wanted = {f"{_name(run)}/{split}": (run, split) for run in runs for split in splits if split in run.scores}
    evaluated = results / "local/evaluated"
    rows, here = {}, {key: value for key, value in environment(best_device()).items() if key != "started"}
    with suppress(OSError, ValueError, LookupError, TypeError):  # no evaluation was stopped, or it cannot be resumed
        stopped = json.loads((evaluated / "unfinished.json").read_text())
        rows = stopped["rows"] if stopped["environment"] == here else {}
    done = len(rows.keys() & wanted.keys())
    console.print(f"plan: {len(runs)} runs, {len(wanted)} test sets{f', {done} of them already done' if done else ''}")
    for key, (run, split) in wanted.items():
        if key not in rows:
            rows[key] = row = _evaluated(run, split, archive, evaluated / _name(run))
            write_atomically(evaluated / "unfinished.json", json.dumps({"environment": here, "rows": rows}) + "\n")
            words = (
                f"ExpRate {row['here']} %, committed {row['committed']}; {row['same prediction']} predictions the same"
            )
            console.print(f"{key}: {words}")
    show("ExpRate of committed weights, recognized here", [rows[key] for key in wanted])
    console.print(
        "Some predictions may differ: committed weights are rounded to float16 after training, and other CPUs round "
        "sums differently, which decides near ties. A rate outside the committed one's 95 % interval (expected here) "
        "indicates a fault: run make doctor, then make regress."
    )
    (evaluated / "unfinished.json").unlink(missing_ok=True)  # the next evaluation begins anew


def _name(run: RunFolder) -> str:
    return f"{run.path.parent.name}/{run.path.name}"


def _evaluated(run: RunFolder, split: str, archive: Archive, folder: Path) -> Row:
    """Recognize and score a test set in `folder` with the weights of a committed run; the results side by side."""
    again = RunFolder(folder, run.settings)
    copy_part(run.path / "config.yaml", again.path / "config.yaml")
    copy_part(run.weights, again.weights)
    predict(again, archive, [split])
    (rescored,) = score(again, archive, [split]).values()
    committed = run.scores[split]
    then, now = (read_predictions(folder / f"predictions/{split}.tsv") for folder in (run.path, again.path))
    predicted = then.keys() | now.keys()  # the others were skipped both times, which counts as the same
    same = sum(then.get(id_) == now.get(id_) for id_ in predicted) + committed.n - len(predicted)
    return {
        "run": _name(run),
        "set": split,
        "n": committed.n,
        "committed": f"{committed.exprate:.2f}",
        "here": f"{rescored.exprate:.2f}",
        "same prediction": f"{same} of {committed.n}",
        "expected here": interval_text(committed.exact, committed.n),
    }
