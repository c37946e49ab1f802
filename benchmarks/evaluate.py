"""`evaluate --weights`: any weights on any archive in CoMER's layout, without training.

The weights are a run folder, its weights file, or a checkpoint of CoMER's authors. The archive needs no training set,
and no symLG for test sets of one's own. Results on other data than CROHME lie apart and are called so.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.data.archive import Archive
from benchmarks.errors import UserError
from benchmarks.printing import console, show
from benchmarks.recognition.predict import predict
from benchmarks.recognition.recognizer import Recognizer
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.workspace import announce, open_data, test_splits, workspace
from benchmarks.score import score
from evaluation.scoring.interval import interval_text
from evaluation.scoring.score import Score
from models.weights import pack_weights


def evaluate_weights(weights: Path, crohme: Path | None, years: Sequence[str], results: Path) -> Path:
    """Recognize and score the test sets of an archive (by default the embedded set) and print their scores.

    Predictions and scores go to local/evaluated/<weights>/ under `results`, or under the folder of the archive's other
    runs if it is not CROHME. Raises UserError or CheckpointError before anything is recognized.
    """
    archive = open_data(crohme, results, trains=False)
    splits = test_splits(archive, years)
    if not splits:
        raise UserError(f"{archive.path}: has no test set; put its captions into data/NAME/caption.txt")
    announce(archive)
    for split in splits:
        archive.ground_truth(split)  # a caption that does not convert is reported now, not after the recognition
    recognizer = Recognizer.load(weights)
    run = RunFolder(_folder(weights, archive, results), recognizer.config)
    run.write("config.yaml", recognizer.config.to_yaml())
    run.write("best.safetensors", pack_weights(recognizer.model))
    predict(run, archive, splits)
    scores = score(run, archive, splits)
    data = "CROHME" if archive.name == "crohme" else f"{archive.name} data, not CROHME"
    show(f"{weights} on {data}", [_row(split, scores[split]) for split in splits])
    console.print(f"predictions, scores and errors: {run.path}")
    return run.path


def _folder(weights: Path, archive: Archive, results: Path) -> Path:
    """Where the results go: named after the run, or the checkpoint."""
    place = weights.resolve()
    run = place if place.is_dir() else place.parent
    name = place.stem if place.suffix == ".ckpt" else f"{run.parent.name}/{run.name}"
    apart = results / "local" if archive.name == "crohme" else workspace(archive, results)
    return apart / "evaluated" / name


def _row(split: str, score: Score) -> dict[str, str | int]:
    tokens = "–" if score.token_exprate is None else f"{score.token_exprate:.2f}"
    rates = {"ExpRate": f"{score.exprate:.2f}", "interval": interval_text(score.exact, score.n)}
    rates |= {"≤ 1": f"{score.exprate_le1:.2f}", "≤ 2": f"{score.exprate_le2:.2f}", "token match": tokens}
    return {"set": split, "n": score.n, **rates, "missing": score.missing, "signature": score.signature}
