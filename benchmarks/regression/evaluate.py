"""`make evaluate`: CROHME recognized again with the committed weights, beside what is committed."""

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
    """Recognizes CROHME with the weights of the reproduced runs, scores that, and prints it beside what is committed.

    What was recognized lies in local/evaluated/<recipe>/<preset>-seed<k>/. Raises UserError without CROHME.
    """
    if crohme is None:
        raise UserError("evaluate compares with committed scores of CROHME: give it with CROHME=data.zip")
    archive = open_data(crohme, results)
    announce(archive)
    runs = [run for run in RunFolder.under(results / "reproduced") if run.has_weights]
    runs = [run for run in runs if not recipes or run.recipe in recipes]
    if not runs:
        of_these = " of these recipes" * bool(recipes)
        raise UserError(f"{results / 'reproduced'}: no reproduced run with weights{of_these}")
    rows = []
    for run in runs:
        name = f"{run.path.parent.name}/{run.path.name}"
        config, again = run.settings, RunFolder(results / "local/evaluated" / name, run.settings)
        if config.data.digest != archive.digest:
            raise UserError(f"{run.path}: ran on another edition of CROHME than {archive.path}; give that one")
        copy_part(run.path / "config.yaml", again.path / "config.yaml")
        copy_part(run.weights, again.weights)
        splits = [split for split in test_splits(archive, years) if split in run.scores]
        predict(again, archive, splits)
        for split, found in score(again, archive, splits).items():
            committed = run.scores[split]
            then, now = (read_predictions(place / f"predictions/{split}.zip") for place in (run.path, again.path))
            read = then.keys() | now.keys()  # an image that was skipped both times has no prediction, and the same
            same = sum(then.get(name) == now.get(name) for name in read) + committed.n - len(read)
            low, high = proportion_interval(committed.exact, committed.n)
            rates = {"committed": f"{committed.exprate:.2f}", "here": f"{found.exprate:.2f}"}
            counts = {
                "same prediction": f"{same} of {committed.n}",
                "expected here": f"{100 * low:.1f}–{100 * high:.1f}",
            }
            rows.append({"run": name, "set": split, "n": committed.n} | rates | counts)
    show("ExpRate of committed weights, recognized here", rows)
    console.print(
        "Not every prediction is the same: committed weights are rounded to float16 after training, and sums round "
        "otherwise on another CPU, so near ties fall otherwise. A rate outside the committed one's 95 % interval "
        "(expected here) is a fault: make doctor, then make regress."
    )
