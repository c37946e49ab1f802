"""The results of a study: trials.csv, best.yaml and a printed summary; optuna-dashboard plots the rest."""

import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import Sample, evenly, hold_out
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.tuning.space import Problem
from hmerbench.benchmarks.tuning.trials import COMPLETE, best_epoch, without_judges
from hmerbench.evaluation.scoring.metrics import printed_interval

LABEL = "token-match ExpRate, held-out (%)"


def write_study(
    folder: Path, problem: Problem, study: optuna.Study, checked: optuna.Study | None, archive: Archive
) -> None:
    """Write the results of a study with at least one complete trial; print the default beside the best."""
    values = problem.values(study.best_trial.params)
    pair = _checked(problem, values, checked) if checked else None
    write_atomically(folder / "trials.csv", trial_table(study, problem).to_csv(index=False))
    write_atomically(folder / "best.yaml", _heading(study, problem, pair, archive) + problem.to_recipe(values))
    _summarize(problem, study, pair, archive)
    crohme = "" if archive.name == "embedded" else " CROHME=…"
    recipe = quote(quote(f"{folder}/best.yaml"))  # for the shell, and in a list of recipes
    run = f"make reproduce-table2 RECIPES={recipe} PRESET={quote(problem.preset)}{crohme}"
    console.print(f"recipe   {folder}/best.yaml\nrun it   {run}\ntrials   {folder}/trials.csv")
    journal = folder / "journal.log"
    console.print(f"browse   optuna-dashboard {journal if journal.exists() else 'URL of --storage'}")


def trial_table(study: optuna.Study, problem: Problem) -> pd.DataFrame:
    """One row per trial, including failed trials and their retries."""
    table = []
    for trial in study.trials:
        row = {"trial": trial.number, "state": trial.state.name.lower(), "value": best_epoch(trial)}
        row |= {"epochs": trial.last_step, "seconds": trial.duration.total_seconds() if trial.duration else None}
        row |= {name: str(value) for name, value in problem.values(trial.params).items()}
        row |= {name: trial.user_attrs.get(name, False) for name in ("default", "diverged")}
        row |= {"retry_of": RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)}
        table.append(row | {name: trial.user_attrs.get(name) for name in ("folder", "where")})
    return pd.DataFrame(table).astype({"retry_of": "Int64", "epochs": "Int64"})


def default_trial(study: optuna.Study) -> FrozenTrial:
    """The complete trial of the default settings. Raises UserError if it failed for good."""
    for trial in study.get_trials(states=COMPLETE):
        if trial.user_attrs.get("default"):
            return trial
    raise UserError(
        f"{study.study_name}: the trial of the default failed; fix what worker-*.log reports and run it again"
    )


def _checked(problem: Problem, best: Mapping[str, Any], checked: optuna.Study) -> tuple[float, float] | None:
    """The values of default and best in the check, which did not select the best; None if a trial of it failed."""
    trials, both = checked.get_trials(states=COMPLETE), (problem.defaults, best)
    found = [[trial.value or 0.0 for trial in trials if problem.values(trial.params) == each] for each in both]
    return (found[0][-1], found[1][-1]) if all(found) else None


def _heading(study: optuna.Study, problem: Problem, pair: tuple[float, float] | None, archive: Archive) -> str:
    best, default = study.best_trial, default_trial(study)
    check = f"; on another held-out part, which did not select it, {pair[1]:.2f} and {pair[0]:.2f} %" if pair else ""
    crohme = "" if archive.name == "embedded" else " --crohme ARCHIVE"
    text = (
        f"Trial {best.number} of the study {study.study_name}: {best.value:.2f} % of the held-out expressions right, "
        f"{default.value:.2f} % with the recipe '{problem.recipe}' as it is, in trials cut short{check}. Found on "
        f"held-out training data of '{problem.base.data.name}'; no test set was looked at. "
        f"Run it: hmerbench reproduce --recipes THIS_FILE --preset {problem.preset}{crohme}"
    )
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def _summarize(problem: Problem, study: optuna.Study, pair: tuple[float, float] | None, archive: Archive) -> None:
    """Print settings and results of default and best, also the `pair` of the check."""
    best, settings = study.best_trial, problem.values(study.best_trial.params)
    columns = ("setting", "default", f"best (trial {best.number})")
    lines = [(name, str(problem.defaults[name]), str(value)) for name, value in settings.items()]
    values = default_trial(study).value or 0.0, best.value or 0.0
    pairs = [(LABEL, problem.base, *values, "where the best was picked")]
    if pair:
        other = problem.base.changed({"seed": problem.base.seed + 1})
        where = "on another held-out part, from another initialization"
        pairs.append((f"the same, seed {other.seed}", other, *pair, where))
    gains, distinct = [], False
    for label, config, of_default, of_best, where in pairs:
        n = heldout_size(config, archive, checks=config is not problem.base)
        lines.append((label, _rate(of_default, n), _rate(of_best, n)))
        gains.append(f"{of_best - of_default:+.2f} points {where}")
        distinct = printed_interval(of_best, n)[0] > printed_interval(of_default, n)[1]  # the check, if any, decides
    show(f"study {study.study_name}", [dict(zip(columns, line, strict=True)) for line in lines])
    states = Counter(trial.state for trial in study.trials)
    complete, pruned, failed = states[TrialState.COMPLETE], states[TrialState.PRUNED], states[TrialState.FAIL]
    console.print(f"trials   {complete} complete, {pruned} stopped early, {failed} interrupted")
    console.print("gain     " + "\n         ".join(gains))
    if not distinct:
        console.print(
            "note     the intervals of default and best overlap: on these few expressions best.yaml is not shown to be "
            "better; compare both at full length over several seeds (SEEDS='7 8 9', then hmerbench compare)"
        )


def _rate(value: float, n: int) -> str:
    low, high = printed_interval(value, n)
    return f"{value:.2f} ({low:.1f}–{high:.1f}) of {n}"


def heldout_size(config: Config, archive: Archive, checks: bool = False) -> int:
    """Number of held-out expressions, of a study or its check; the split depends on ids and tokens, so no image is
    read."""
    empty = np.empty((0, 0), np.uint8)
    samples = [Sample(id_, tuple(tokens), empty) for id_, tokens in archive.captions("train").items()]
    samples = evenly(samples, config.data.limit)
    return len(hold_out(without_judges(samples, config) if checks else samples, config.heldout, config.seed)[1])
