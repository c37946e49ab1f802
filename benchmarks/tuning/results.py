"""The results of a study: trials.csv, best.yaml, plots of its history and importances, and a printed summary."""

import textwrap
from collections import Counter
from pathlib import Path
from shlex import quote

import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import Sample, evenly, split_heldout
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.report.figures.write import DATES, rendered, style
from hmerbench.benchmarks.tuning.space import Problem
from hmerbench.benchmarks.tuning.trials import without_judges
from hmerbench.evaluation.scoring.metrics import printed_interval

LABEL = "token-match ExpRate, held-out (%)"
COMPLETE = (TrialState.COMPLETE,)  # neither pruned nor failed


def write_study(
    folder: Path, problem: Problem, study: optuna.Study, checked: optuna.Study | None, archive: Archive
) -> None:
    """Write the results of a study with at least one complete trial; print the default beside the best."""
    best, default = study.best_trial, default_trial(study)
    table = trial_table(study, problem)
    write_atomically(folder / "trials.csv", table.to_csv(index=False))
    recipe = problem.to_recipe(problem.values(best.params))
    write_atomically(folder / "best.yaml", _heading(study, problem, best, default) + recipe)
    with style():
        figures = {"history": history(table, default.value or 0)}
        if (shares := importances(study)) is not None:
            write_atomically(folder / "importance.csv", shares.to_csv(index=False, float_format="%.6g"))
            figures["importance"] = importance(shares)
        for name, figure in figures.items():
            for kind in DATES:
                write_atomically(folder / f"{name}.{kind}", rendered(figure, kind))
    _summarize(problem, study, checked, archive)
    crohme = "" if archive.name == "embedded" else " CROHME=…"
    recipe = quote(quote(f"{folder}/best.yaml"))  # for the shell, and in a list of recipes
    run = f"make reproduce-table2 RECIPES={recipe} PRESET={quote(problem.preset)}{crohme}"
    console.print(f"recipe   {folder}/best.yaml\nrun it   {run}\ntrials   {folder}/trials.csv")
    console.print(f"plots    {', '.join(f'{folder}/{name}.*' for name in figures)}")
    journal = folder / "journal.log"
    console.print(f"browse   optuna-dashboard {journal if journal.exists() else 'URL of --storage'}")


def trial_table(study: optuna.Study, problem: Problem) -> pd.DataFrame:
    """One row per trial, including failed trials and their retries."""
    table = []
    for trial in study.trials:
        row = {"trial": trial.number, "state": trial.state.name.lower(), "value": trial.value}
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


def importances(study: optuna.Study) -> pd.DataFrame | None:
    """PED-ANOVA importance of each setting for the best quarter of the trials (columns setting, importance); None if
    there are too few trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # takes scikit-learn along

    values = [trial.value for trial in study.get_trials(states=COMPLETE)]
    if len(values) < 8 or len(set(values)) < 2:
        return None
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25, region_quantile=1.0, evaluate_on_local=True)
    shares = get_param_importances(study, evaluator=evaluator)
    return pd.DataFrame(shares.items(), columns=["setting", "importance"])


def history(table: pd.DataFrame, default: float) -> Figure:
    """Plot the values of the trials of a table in order, with the best so far and the default."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for state, trials in table.dropna(subset="value").groupby("state"):
        axes.scatter(trials["trial"], trials["value"], marker="o" if state == "complete" else "x", s=22, label=state)
    complete = table[table["state"] == "complete"]
    best = np.maximum.accumulate(complete["value"])
    axes.step(complete["trial"], best, where="post", color="black", linewidth=1, label="best so far")
    axes.axhline(default, linestyle=":", color="gray", label="default")
    axes.set(xlabel="trial", ylabel=LABEL)
    axes.legend()
    return figure


def importance(shares: pd.DataFrame) -> Figure:
    """Plot the settings by importance, the largest on top."""
    shares = shares.sort_values("importance", kind="stable")
    figure = Figure(figsize=(6, 0.6 + 0.3 * len(shares)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(list(shares["setting"]), list(shares["importance"]), height=0.6)
    axes.set(xlabel="importance (PED-ANOVA, best quarter of trials)", xlim=(0, None))
    return figure


def _heading(study: optuna.Study, problem: Problem, best: FrozenTrial, default: FrozenTrial) -> str:
    text = (
        f"Trial {best.number} of the study {study.study_name}: {best.value:.2f} % of the held-out expressions right, "
        f"{default.value:.2f} % with the recipe '{problem.recipe}' as it is, in trials cut short. Found on held-out "
        f"training data of '{problem.base.data.name}'; no test set was looked at. "
        f"Run it: hmerbench reproduce --recipes THIS_FILE --preset {problem.preset}"
    )
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def _summarize(problem: Problem, study: optuna.Study, checked: optuna.Study | None, archive: Archive) -> None:
    """Print settings and results of default and best, also those of the check, which did not select the best."""
    best, settings = study.best_trial, problem.values(study.best_trial.params)
    columns = ("setting", "default", f"best (trial {best.number})")
    lines = [(name, str(problem.defaults[name]), str(value)) for name, value in settings.items()]
    values = default_trial(study).value or 0.0, best.value or 0.0
    pairs = [(LABEL, problem.base, *values, "where the best was picked")]
    if checked:
        other = problem.base.changed({"seed": problem.base.seed + 1})
        trials = [(problem.values(trial.params), trial.value or 0.0) for trial in checked.get_trials(states=COMPLETE)]
        default_rates, best_rates = (
            [rate for values, rate in trials if values == wanted] for wanted in (problem.defaults, settings)
        )
        if default_rates and best_rates:
            where = "on another held-out part, from another initialization"
            pairs.append((f"the same, seed {other.seed}", other, default_rates[-1], best_rates[-1], where))
    gains, apart = [], False
    for label, config, of_default, of_best, where in pairs:
        n = heldout_size(config, archive, checks=config is not problem.base)
        lines.append((label, _rate(of_default, n), _rate(of_best, n)))
        gains.append(f"{of_best - of_default:+.2f} points {where}")
        apart = printed_interval(of_best, n)[0] > printed_interval(of_default, n)[1]  # the check, if any, decides
    show(f"study {study.study_name}", [dict(zip(columns, line, strict=True)) for line in lines])
    states = Counter(trial.state for trial in study.trials)
    complete, pruned, failed = states[TrialState.COMPLETE], states[TrialState.PRUNED], states[TrialState.FAIL]
    console.print(f"trials   {complete} complete, {pruned} stopped early, {failed} interrupted")
    console.print("gain     " + "\n         ".join(gains))
    if not apart:
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
    return len(split_heldout(without_judges(samples, config) if checks else samples, config.heldout, config.seed)[1])
