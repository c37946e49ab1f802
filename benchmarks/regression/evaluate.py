"""`make evaluate`: recognize CROHME with the committed weights and compare with the committed scores."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import UserError
from benchmarks.printing import console, show
from benchmarks.recognition.predict import predict
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.packing import copy_part
from benchmarks.runs.workspace import announce, open_data, test_splits
from benchmarks.score import score
from evaluation.scoring.inputs import read_predictions
from evaluation.scoring.interval import proportion_interval


def evaluate(crohme: Path | None, years: Sequence[str], recipes: Sequence[str], results: Path) -> None:
    """Recognize and score CROHME with the weights of the reproduced runs; print ExpRate beside the committed one.

    Predictions and scores go to local/evaluated/<recipe>/<preset>-seed<k>/. Raises UserError without CROHME, for
    another edition of it, and if no run has weights.
    """
    if crohme is None:
        raise UserError("evaluate compares with committed scores of CROHME: give it with CROHME=data.zip")
    archive = open_data(crohme, results)
    announce(archive)
    runs = [run for run in RunFolder.under(results / "reproduced") if run.has_weights]
    runs = [run for run in runs if not recipes or run.recipe in recipes]
    if not runs:
        which = " of these recipes" if recipes else ""
        raise UserError(f"{results / 'reproduced'}: no reproduced run with weights{which}")
    rows = []
    for run in runs:
        name = f"{run.path.parent.name}/{run.path.name}"
        config, again = run.settings, RunFolder(results / "local/evaluated" / name, run.settings)
        if config.data.digest != archive.digest:
            raise UserError(f"{run.path}: uses another edition of CROHME than {archive.path}; give that edition")
        copy_part(run.path / "config.yaml", again.path / "config.yaml")
        copy_part(run.weights, again.weights)
        splits = [split for split in test_splits(archive, years) if split in run.scores]
        predict(again, archive, splits)
        for split, rescored in score(again, archive, splits).items():
            committed = run.scores[split]
            then, now = (read_predictions(folder / f"predictions/{split}.zip") for folder in (run.path, again.path))
            predicted = then.keys() | now.keys()  # the others were skipped both times, which counts as the same
            same = sum(then.get(id_) == now.get(id_) for id_ in predicted) + committed.n - len(predicted)
            low, high = proportion_interval(committed.exact, committed.n)
            rates = {"committed": f"{committed.exprate:.2f}", "here": f"{rescored.exprate:.2f}"}
            counts = {
                "same prediction": f"{same} of {committed.n}",
                "expected here": f"{100 * low:.1f}–{100 * high:.1f}",
            }
            rows.append({"run": name, "set": split, "n": committed.n} | rates | counts)
    show("ExpRate of committed weights, recognized here", rows)
    console.print(
        "Some predictions may differ: committed weights are rounded to float16 after training, and other CPUs round "
        "sums differently, which decides near ties. A rate outside the committed one's 95 % interval (expected here) "
        "indicates a fault: run make doctor, then make regress."
    )
