"""`hmerbench trial`: what a change of the recipe is worth, by training expressions alone; no test year is read.

A trial is a shortened training without the held-out expressions: about a sixth of the training set, split by writer's
sheet, of which those are read whose formula occurs nowhere in the rest (719 of CROHME). They are scored like a test
set, by symLG, in four classes of length. The split depends on the archive alone, so all trials, whatever their seed,
are judged by the same expressions. One training can be read in several ways.

A quarter of the data (data.limit), seen four times as often, stands for a training four times as long.

A change is judged by pairs of equal seeds, with and without it. It counts as harmless if, for held-out loss and word
accuracy alike, Student's 95 % interval of the mean difference lies within one standard deviation of the seeds without
it. A wider interval means "not shown", not "harmful".
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, HELD_OUT_SET, Sample, evenly, hold_out
from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.printing import show
from hmerbench.benchmarks.recognition.predict import recognize, write_predictions
from hmerbench.benchmarks.report.documents import read_frame, update_table
from hmerbench.benchmarks.resolve import refuse_filled_in, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import flat, merge, nested
from hmerbench.benchmarks.training.learner import loss_and_accuracy
from hmerbench.benchmarks.training.trainer import train
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.evaluation.scoring.stats import mean_interval
from hmerbench.evaluation.strict import parse_yaml
from hmerbench.models.network import Network
from hmerbench.models.weights import load_weights

CLASSES = {"1-5": range(1, 6), "6-10": range(6, 11), "11-20": range(11, 21), "21+": range(21, 10_000)}  # tokens
KEY = ["recipe", "trial", "reading", "preset", "epochs", "seed"]
PLAIN = "as it is"  # without a change
JUDGED = ("loss", "word_accuracy")

Row = dict[str, Any]


def trial(
    archive: Archive,
    results: Path,
    recipe: str,
    preset: str,
    seed: int,
    epochs: int,
    changes: Sequence[str] = (),
    readings: Sequence[str] = (),
) -> list[Row]:
    """Train a trial of `preset` with `changes`, unless that was done before, and read the held-out expressions.

    `changes` and the settings of each reading are given as KEY=VALUE with full names (training.optimizer.lr=0.002); a
    reading holds several, separated by blanks, and may change the search alone. Without `readings` there is one, the
    preset's own. Rows are printed and, on CROHME, replace their like in results/speed/recipe.csv. Raises UserError for
    settings that do not exist, and for a reading that would need another training.
    """
    given, fixed = nested(_values(changes)), {"training.epochs": epochs, "select": "last"}
    refuse_filled_in(given, "--set")
    if clash := [name for name in flat(given) if any(f"{key}.".startswith(f"{name}.") for key in fixed)]:
        raise UserError(f"--set {clash[0]}: a trial sets it itself; leave it out (--epochs gives the epochs)")
    changed = merge(given, nested(fixed))
    config = resolve(recipe, preset, seed, archive).changed(changed, "--set" if changes else "changed settings")
    kept, held = hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    ways = {reading: config.changed(_values(reading.split()), "--read") for reading in (readings or [""])}
    for reading, way in ways.items():
        if way.model_copy(update={"search": config.search}) != config:
            raise UserError(
                f"--read '{reading}': it changes more than the search; make it a trial of its own, with --set"
            )
    archive.ground_truth("train")  # judges the trial: refused before it is trained
    run = RunFolder(results / "local/trials" / config.run_name, config)
    train(run, archive, samples=evenly(kept, config.data.limit))
    model = load_weights(run.weights_file, config.model)
    longest = config.data.max_tokens
    learnable = [sample for sample in held if len(sample.tokens) <= longest and model.unfit(sample.tokens) is None]
    loss, accuracy = loss_and_accuracy(model, evaluation_batches(learnable, config, config.search.batch_size))
    rows = []
    for reading, way in ways.items():
        row: Row = {"recipe": config.recipe, "trial": " ".join(changes) or PLAIN}
        row |= {"reading": reading or PLAIN, "preset": preset, "epochs": epochs, "seed": seed}
        row |= _read(run, model, way, archive, held)
        row |= {"loss": round(loss, 4), "word_accuracy": round(accuracy, 2)}
        minutes = round(run.core_minutes, 1) or None
        row |= {"core_minutes": minutes, "device": run.hardware, "revision": run.environment.get("revision")}
        rows.append(row)
    show("held-out training expressions", [{k: v for k, v in row.items() if k != "revision"} for row in rows])
    if archive.name == "crohme" and (verdicts := judge(_record(rows, results), rows[0])):
        show("the change, pairs of equal seeds, 95 % interval", verdicts)
    return rows


def judge(trials: pd.DataFrame, of: Row) -> list[Row]:
    """A verdict on each of `JUDGED` for the change of a trial, from all recorded seeds, if there are two pairs."""
    alike = [name for name in KEY if name not in ("trial", "seed")]
    same = (trials[alike] == [of[name] for name in alike]).all(axis=1)
    changed, plain = (trials.loc[same & (trials["trial"] == name)].set_index("seed") for name in (of["trial"], PLAIN))
    seeds = changed.index.intersection(plain.index)
    if of["trial"] == PLAIN or len(seeds) < 2:
        return []
    rows = []
    for metric in JUDGED:
        before, after = plain.loc[seeds, metric], changed.loc[seeds, metric]
        (low, high), spread = mean_interval((after - before).tolist()), float(before.std())
        verdict = "different" if low > spread or high < -spread else "not shown"
        if -spread <= low and high <= spread:
            verdict = "harmless"
        row: Row = {"metric": metric, "n": len(seeds), PLAIN: before.mean(), of["trial"]: after.mean()}
        row |= {"seed_sd": spread, "difference": (after - before).mean(), "low": low, "high": high}
        rows.append(row | {"verdict": verdict})
    return rows


def _values(settings: Sequence[str]) -> dict[str, Any]:
    """{"training.epochs": 8} from ["training.epochs=8"]; values are YAML."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"'{setting}': a setting is given as KEY=VALUE, such as training.optimizer.lr=0.002")
        try:
            values[key] = parse_yaml(value)
        except (yaml.YAMLError, ValueError):
            raise UserError(f"'{setting}': its value is not YAML; correct it") from None
    return values


def _read(run: RunFolder, model: Network, config: Config, archive: Archive, held: list[Sample]) -> Row:
    """Recognize the held-out expressions as `config` says, and count the exact ones by class of length.

    What another search finds is named by its settings.
    """
    device = best_device()
    predictions = recognize(model.to(device).eval(), config, held, device, "held-out expressions")
    name = HELD_OUT_SET if config == run.settings else f"read-{config.digest}"
    write_predictions(run, name, predictions, model.vocabulary)
    truth = archive.truth_of("train", [sample.id for sample in held])
    result = evaluate(run.path / f"predictions/{name}.tsv", truth, NO_FIELDS)
    score = result.score
    row: Row = {"n": score.n, "exact": score.exact, "exprate": score.exprate, "token_exact": score.token_exact}
    for name, lengths in CLASSES.items():
        of_class = [each.exact for each in result.expressions if each.length in lengths]
        row[name] = f"{sum(of_class)}/{len(of_class)}"
    return row


def _record(rows: list[Row], results: Path) -> pd.DataFrame:
    """Add rows to speed/recipe.csv, in place of earlier ones of the same trial and reading; return all."""
    path = results / "speed/recipe.csv"
    with locked(results / "local", ".recorded", seconds=60):  # another trial may end at the same time
        update_table(path, rows, KEY)
        return read_frame(path)
