"""Scoring of a run's predictions with the LgEval-compatible scorer: JSON and CSV files for each split."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from hmerbench.benchmarks.config import Data, digest_of_keys
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.new_expressions import seen
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import zipped
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.datasets import TRAIN
from hmerbench.evaluation.scoring import analysis
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.score import Evaluation, Score, Training, evaluate, read_training, told, unseen


def score(run: RunFolder, archive: Archive, splits: Iterable[str]) -> dict[str, Score]:
    """Write scores/<split>.json (counts, rates, interval, signature), .csv (one row per expression), .txt (LgEval's
    Summary.txt), symlg/<split>.zip (the converted predictions) and errors/<split>.json (confusions and their counts).

    If the preset recognizes only n evenly spaced expressions of a split, only these are scored; n in the score says so.
    Raises UserError if nothing was recognized yet, evaluation.InputError for predictions that cannot be scored.
    """
    scores = {}
    for split in splits:
        if not (run.path / f"predictions/{split}.tsv").exists():
            raise UserError(
                f"{run.path}/predictions/{split}.tsv: there is nothing to score; run hmerbench predict first"
            )
        scored = run.file_digest(f"predictions/{split}.tsv")
        with tempfile.TemporaryDirectory() as workdir:
            folder = Path(workdir)
            result = evaluated(run, archive, split, folder)
            for note in result.notes:
                err_console.print(f"{split}: note: {note}")
            rows = [asdict(row) for row in result.expressions]
            converted = {path.name: path.read_text(encoding="utf-8") for path in (folder / "pred_symlg").glob("*.lg")}
            run.write(f"symlg/{split}.zip", zipped(converted))
            run.write(f"errors/{split}.json", _errors(result, folder))
            summary = folder / "Results_pred_symlg/Summary.txt"
            run.write(f"scores/{split}.txt", summary.read_text(encoding="utf-8"))
            run.write(f"scores/{split}.csv", csv_text(list(rows[0]), rows))
            run.write(f"scores/{split}.json", asdict(result.score))  # last, since it marks the split as scored
        run.record_source(f"scores/{split}.json", scored)
        scores[split] = result.score
    return scores


def evaluated(run: RunFolder, archive: Archive, split: str, workdir: Path | None = None) -> Evaluation:
    """Score a run's predictions by the scripts, whose files stay in `workdir`; without one in this process, with the
    same result. Raises evaluation.InputError for predictions that cannot be scored."""
    config = run.settings
    captions = dict(evenly(list(archive.captions(split).items()), config.search.limit))
    fields = {"set": f"{archive.name}{split}", "search": config.search.name, "select": config.select}
    truth = {id_: text for id_, text in sorted(archive.ground_truth(split).items()) if id_ in captions}
    return evaluate(run.path / f"predictions/{split}.tsv", GroundTruth(truth, captions), fields, workdir)


def unseen_of(run: RunFolder, archive: Archive, split: str, training: str = "") -> str:
    """The score without the expressions whose captions the run was trained on, as a line. They are those of its own
    archive, with what it generated from them; of a run that reads other data, those named by `training`."""
    captions, data = archive.captions(split), run.settings.data
    if training:
        trained = read_training(training)
    elif archive.holds(data.digest):
        how = {key: getattr(data, key) for key in ("limit", "max_tokens", "sub_expressions", "exchanged")}
        plain = how == {key: getattr(Data(), key) for key in how}  # the archive's captions and no others
        name = archive.caption_md5(TRAIN)[:8] + f"+{digest_of_keys(how)}" * (not plain)
        trained = Training(seen(archive, data, {tuple(tokens) for tokens in captions.values()}), name)
    else:
        raise UserError(f"{archive.path}: not what {run.path} was trained on; name those captions with --training")
    return told(*unseen(evaluated(run, archive, split), trained))


def _errors(result: Evaluation, folder: Path) -> str:
    """The error tables as JSON, one row per line. Counts over a set may be published where its ground truth may not.

    Symbol confusions that occur in a single expression and only at a shifted position are left out.
    """
    tables = analysis.tables(analysis.compared_pairs(result.expressions, folder))
    tables["symbols"] = [row for row in tables["symbols"] if row["aligned"] or row["expressions"] != 1]
    parts = [f'"n": {result.score.n}', f'"signature": {json.dumps(result.score.signature)}']
    for name, rows in tables.items():
        parts.append(f'"{name}": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n ]")
    return "{\n " + ",\n ".join(parts) + "\n}\n"
