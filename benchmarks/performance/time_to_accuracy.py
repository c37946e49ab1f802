"""`benchmarks timings`: time to accuracy, from the files in run folders; write results/speed/training.csv.

All times are in measured seconds (history.jsonl). Two metrics are distinguished: the token-match ExpRate, validated
during training on CROHME 2014, and the ExpRate on symLG, scored once afterwards. `token_55_s` is the time of the first
validation that reaches 55 %; `exprate_55_s` is the whole training time, if its ExpRate reaches 55 %.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from hmerbench.benchmarks import printing
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.report.paper import reference
from hmerbench.benchmarks.runs.folder import RunFolder

GOALS = (55.0, 57.0, 59.33)  # % on CROHME 2014; the last is the paper's
KEYS = ["recipe", "preset", "config", "hardware", "threads"]


def timings(results: Path, folders: Sequence[Path] = ()) -> pd.DataFrame:
    """Print one row per run and, for several seeds, their mean and standard deviation. Without `folders`, use the
    committed runs and write results/speed/training.csv. Raises UserError for unfinished runs, or if there are none."""
    runs = [RunFolder(folder) for folder in folders] or [
        run for run in RunFolder.under(results / "reproduced") if "trained_in" not in run.environment
    ]
    if not runs:
        raise UserError(f"{results / 'reproduced'}: it holds no runs; give run folders")
    rows = pd.DataFrame([row(run) for run in sorted(runs, key=lambda run: run.seed)]).sort_values(KEYS, kind="stable")
    table = pd.concat(
        [with_spread(seeds) for _, seeds in rows.groupby(KEYS, sort=False, dropna=False)], ignore_index=True
    )
    known = table.dropna(axis="columns", how="all")
    printing.show("time to accuracy", known.drop(columns="config").to_dict("records"))  # pyright: ignore
    if not folders:
        path = results / "speed/training.csv"
        rounded = known.map(lambda value: float(f"{value:.6g}") if isinstance(value, float) else value)
        write_atomically(path, rounded.to_csv(index=False, lineterminator="\n"))
        print(path)
    return table


def row(run: RunFolder) -> dict[str, object]:
    """Times of one run. Raises UserError if unfinished."""
    history, scored = run.history, run.scores.get("2014")
    if scored and scored.n != reference()["test_sets"]["2014"]:  # a part of it
        scored = None
    if not history or not run.finished:
        raise UserError(f"{run.path}: it is not trained to its end, so there is no time to accuracy yet")
    training, checks = (sum(line.get(key, 0.0) for line in history) for key in ("seconds", "val_seconds"))
    images = sum(line["images_per_s"] * line["seconds"] for line in history)
    validated = [
        (line["val_token_exprate"], passed)
        for line, passed in zip(history, run.seconds, strict=True)
        if "val_token_exprate" in line
    ]
    on_2014 = validated if run.settings.select == "2014" else []
    values: dict[str, object] = {"recipe": run.recipe, "preset": run.preset, "config": run.recipe_hash}
    values |= {"hardware": run.hardware, "threads": run.environment.get("threads")}
    values |= {"seed": str(run.seed), "n": 1, "epochs": len(history), "total_s": training + checks}
    values |= {"epoch_s": (training + checks) / len(history), "train_epoch_s": training / len(history)}
    values |= {"validation_s": checks / len(validated) if validated else None, "validations": len(validated)}
    values |= {"images_per_s": images / training if training else None}
    for goal in GOALS:
        values[f"token_{goal:g}_s"] = next((passed for token_rate, passed in on_2014 if token_rate >= goal), None)
    for goal in GOALS:
        values[f"exprate_{goal:g}_s"] = training + checks if scored and scored.exprate >= goal else None
    best = max((token_rate for token_rate, _ in on_2014), default=None)
    return values | {"best_token_exprate_2014": best, "exprate_2014": scored.exprate if scored else None}


def with_spread(seeds: pd.DataFrame) -> pd.DataFrame:
    """Seeds of one configuration, then mean and standard deviation, which are empty if any seed lacks a value."""
    parts = [seeds.astype(object)]
    if len(seeds) > 1:
        numbers = seeds.loc[:, "epochs":].astype(float)
        for name, values in (("mean", numbers.mean(skipna=False)), ("sd", numbers.std(skipna=False))):
            line = seeds.iloc[0].to_dict() | {"seed": name, "n": len(seeds)} | values.to_dict()
            parts.append(pd.DataFrame([line]).astype(object))
    return pd.concat(parts)
