"""`benchmarks timings`: time to accuracy of runs, as their own files tell it: results/speed/training.csv.

All seconds are measured (history.jsonl). Two measures are kept apart: token equality, which a training validates on
CROHME 2014, and ExpRate on symLG, which is scored once, after the training. So `token_55_s` is the time of the first
validation at 55 % or more, and `exprate_55_s` that of the whole training where its ExpRate is 55 % or more.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks import printing
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.runs.folder import RunFolder

GOALS = (55.0, 57.0, 59.33)  # % on CROHME 2014; the last is what the paper reports
KEYS = ["recipe", "preset", "config", "hardware"]
NUMBERS = ["epochs", "total_s", "epoch_s", "train_epoch_s", "validation_s", "validations", "images_per_s"]
NUMBERS += [f"token_{goal:g}_s" for goal in GOALS] + [f"exprate_{goal:g}_s" for goal in GOALS]
NUMBERS += ["best_token_exprate_2014", "exprate_2014"]


def timings(results: Path, folders: Sequence[Path] = ()) -> pd.DataFrame:
    """One row per run, and where a row of runs has several seeds their mean and standard deviation.

    Without folders: the committed runs. UserError for a folder that is no trained run, or where there is none.
    """
    runs = [RunFolder(folder) for folder in folders] or RunFolder.under(results / "reproduced")
    if not runs:
        raise UserError(f"{results / 'reproduced'}: no runs; name run folders")
    return with_seeds(pd.DataFrame([row(run) for run in runs]).sort_values([*KEYS, "seed"], kind="stable"))


def row(run: RunFolder) -> dict[str, object]:
    """What one run took. A training that was killed and went on counts the parts of an epoch that its lines tell."""
    config, history = run.config, run.history
    if not history or not run.finished:
        raise UserError(f"{run.path}: not trained to its end; there is no time to accuracy yet")
    training, checks = 0.0, 0.0
    reached: dict[str, float] = {}
    for line in history:
        training += line["seconds"]
        checks += line.get("val_seconds", 0.0)
        for goal in GOALS if config["select"] == "2014" else ():
            if line.get("val_token_exprate", -1.0) >= goal:
                reached.setdefault(f"token_{goal:g}_s", training + checks)
    images = sum(line["images_per_s"] * line["seconds"] for line in history)
    validated = [line["val_token_exprate"] for line in history if "val_token_exprate" in line]
    total, device = training + checks, run.environment.get("device", "unknown")
    found: dict[str, object] = {
        "recipe": config["recipe"], "preset": config["preset"], "config": run.recipe_hash, "hardware": device,
        "threads": run.environment.get("threads"), "seed": str(config["seed"]), "n": 1, "epochs": len(history),
        "total_s": total, "epoch_s": total / len(history), "train_epoch_s": training / len(history),
        "validation_s": checks / len(validated) if validated else None, "validations": len(validated),
        "images_per_s": images / training if training else None, **dict.fromkeys(NUMBERS[7:13]), **reached,
    }  # fmt: skip
    rate = run.scores.get("2014", {}).get("exprate")
    for goal in GOALS:
        found[f"exprate_{goal:g}_s"] = total if rate is not None and rate >= goal else None
    found["best_token_exprate_2014"] = max(validated) if validated and config["select"] == "2014" else None
    return found | {"exprate_2014": rate}


def with_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Adds, under the seeds of a row of runs on one kind of machine, their mean and standard deviation; a number that
    not all of them have is left empty."""
    parts: list[pd.DataFrame] = []
    for _, some in runs.groupby(KEYS, sort=False):
        parts.append(some)
        if len(some) > 1:
            table = some[NUMBERS].astype(float)
            for name, numbers in (("mean", table.mean(skipna=False)), ("sd", table.std(ddof=1, skipna=False))):
                first = some.iloc[0].to_dict() | {"seed": name, "n": len(some)}
                parts.append(pd.DataFrame([first | dict(numbers.items())]))  # pyright: ignore[reportAttributeAccessIssue]
    whole = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    return pd.DataFrame(whole, columns=[*KEYS, "threads", "seed", "n", *NUMBERS])


def write(table: pd.DataFrame, path: Path) -> None:
    rounded = table.map(lambda value: float(f"{value:.6g}") if isinstance(value, float) else value)
    write_atomically(path, rounded.to_csv(index=False, lineterminator="\n"))


def show(table: pd.DataFrame) -> None:
    """Prints it without what says nothing here."""
    shown = table.dropna(axis="columns", how="all").drop(columns=["config", "threads"], errors="ignore")
    printing.show("time to accuracy", shown.to_dict("records"))  # pyright: ignore[reportArgumentType]
