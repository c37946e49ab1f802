"""Published systems in the report's browser: their predictions, which lie outside of the project, scored anew."""

from pathlib import Path

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.report.page.browser import Scored
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoreboard.card import read_cards
from hmerbench.evaluation.scoring.inputs import GroundTruth, read_predictions
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate


def read_systems(archive: Archive, folder: Path, notes: list[str]) -> dict[str, tuple[str, dict[str, Scored]]]:
    """By key, a system's displayed name and its verdicts and predictions by test set. Our own runs are left out, which
    the page has as runs; a system that is not at hand becomes a note."""
    truths = {name: GroundTruth(archive.ground_truth(name), archive.captions(name)) for name in archive.test_splits}
    found = {}
    for system in read_cards():
        if system.card.url is None or system.card.status == "reported":
            continue
        scored: dict[str, Scored] = {}
        try:
            for name, path in system.files(folder):
                if name in truths:
                    split = system.card.tokenize
                    result = evaluate(path, truths[name], NO_FIELDS, split=split)
                    scored[name] = {row.id: row for row in result.expressions}, read_predictions(path, split)
        except InputError as error:
            notes.append(f"{error}; this system is left out")
            continue
        found[f"system/{system.key}"] = f"{system.card.name} ({system.card.year})", scored
    return found
