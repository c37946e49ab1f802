"""What a study leaves: trials.csv, best.yaml, plots of its history and of what mattered, and a printed summary."""

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from benchmarks.config import Config
from benchmarks.data.archive import Archive
from benchmarks.data.samples import Sample, evenly, split_heldout
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.tuning.space import Problem
from evaluation.scoring.interval import proportion_interval

LABEL = "token-match ExpRate, held-out (%)"


def write(
    folder: Path,
    problem: Problem,
    study: optuna.Study,
    checked: optuna.Study | None,
    archive: Archive,
    console: Console,
) -> None:
    """Writes the files of a study that has a complete trial and prints default against best."""
    best, default = study.best_trial, default_trial(study)
    write_atomically(folder / "trials.csv", rows(study, problem).to_csv(index=False))
    recipe = problem.to_recipe(problem.values(best.params))
    write_atomically(folder / "best.yaml", _heading(study, problem, best, default) + recipe)
    _save(_history(study, default), folder / "history")
    if (importance := importances(study)) is not None:
        table = pd.DataFrame(importance.items(), columns=["setting", "importance"])
        write_atomically(folder / "importance.csv", table.to_csv(index=False, float_format="%.6g"))
        _save(_bars(importance), folder / "importance")
    _tell(problem, study, checked, archive, folder, console)
    console.print(f"plots    {folder}/history.*" + (", importance.*" if importance else ""), markup=False)


def rows(study: optuna.Study, problem: Problem) -> pd.DataFrame:
    """A row for each trial, those that were given up and tried again included."""
    table = []
    for trial in study.trials:
        row = {"trial": trial.number, "state": trial.state.name.lower(), "value": trial.value}
        row |= {"epochs": trial.last_step, "seconds": trial.duration.total_seconds() if trial.duration else None}
        row |= {name: str(value) for name, value in problem.values(trial.params).items()}
        attributes = trial.user_attrs
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
        row |= {"default": attributes.get("default", False), "diverged": attributes.get("diverged", False)}
        table.append(row | {"retry_of": retry, "folder": attributes.get("folder"), "where": attributes.get("where")})
    return pd.DataFrame(table).astype({"retry_of": "Int64", "epochs": "Int64"})


def default_trial(study: optuna.Study) -> FrozenTrial:
    """The finished trial that changed nothing. Raises UserError where it was given up."""
    found = [t for t in study.trials if t.user_attrs.get("default") and t.state == TrialState.COMPLETE]
    if not found:
        raise UserError(f"{study.study_name}: the trial of the default was given up; see worker-*.log, and fix that")
    return found[0]


def importances(study: optuna.Study) -> dict[str, float] | None:
    """Share of each setting in what makes the best quarter of the trials differ from all; None for too few trials."""
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    if len(complete) < 8 or len({trial.value for trial in complete}) < 2:
        return None
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25, region_quantile=1.0, evaluate_on_local=True)
    return get_param_importances(study, evaluator=evaluator)


def _heading(study: optuna.Study, problem: Problem, best: FrozenTrial, default: FrozenTrial) -> str:
    text = (
        f"Trial {best.number} of the study {study.study_name}: {best.value:.2f} % of the held-out expressions right, "
        f"{default.value:.2f} % with the recipe '{problem.recipe}' as it is, in trials cut short. Found on held-out "
        f"training data of '{problem.base.data.name}'; no test set was looked at. "
        f"Run it: python -m benchmarks reproduce --recipes THIS_FILE --preset {problem.preset}"
    )
    return textwrap.fill(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def _history(study: optuna.Study, default: FrozenTrial) -> Figure:
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    done = [t for t in study.trials if t.value is not None]
    for state, marker in ((TrialState.COMPLETE, "o"), (TrialState.PRUNED, "x")):
        some = [t for t in done if t.state == state]
        axes.scatter(
            [t.number for t in some], [t.value or 0 for t in some], marker=marker, s=22, label=state.name.lower()
        )
    complete = [t for t in done if t.state == TrialState.COMPLETE]
    best = np.maximum.accumulate([t.value or 0 for t in complete])
    axes.step([t.number for t in complete], best, where="post", linewidth=1, color="black", label="best so far")
    axes.axhline(default.value or 0, linestyle=":", color="gray", label="default")
    axes.set(xlabel="trial", ylabel=LABEL)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _bars(importance: dict[str, float]) -> Figure:
    figure = Figure(figsize=(6, 0.6 + 0.3 * len(importance)), layout="constrained")
    axes = figure.add_subplot()
    names = sorted(importance, key=lambda name: importance[name])
    axes.barh(names, [importance[name] for name in names], height=0.6)
    axes.set(xlabel="importance (PED-ANOVA, best quarter)", xlim=(0, None))
    return figure


def _save(figure: Figure, stem: Path) -> None:
    paths = [stem.with_suffix(f".{kind}") for kind in ("pdf", "svg", "png")]
    for path in paths:
        content, kind = io.BytesIO(), path.suffix[1:]
        dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
        with matplotlib.rc_context({"svg.hashsalt": "hmerbench"}):  # the same study, the same bytes
            figure.savefig(content, format=kind, dpi=150, metadata=dates)
        write_atomically(path, content.getvalue())


def _tell(
    problem: Problem,
    study: optuna.Study,
    checked: optuna.Study | None,
    archive: Archive,
    folder: Path,
    console: Console,
) -> None:
    best, default = study.best_trial, default_trial(study)
    states = [trial.state for trial in study.trials]
    table = Table(title=f"study {study.study_name}", title_justify="left")
    for heading in ("setting", "default", f"best (trial {best.number})"):
        table.add_column(heading)
    for name, value in problem.values(best.params).items():
        table.add_row(name, str(problem.defaults[name]), str(value))
    table.add_section()
    n = heldout_size(problem.base, archive)
    table.add_row(LABEL, _rate(default.value, n), _rate(best.value, n))
    pair = _pair(problem, checked, best) if checked else None
    if pair:
        n = heldout_size(problem.base.model_copy(update={"seed": problem.base.seed + 1}), archive)
        table.add_row(f"the same, seed {problem.base.seed + 1}", *(_rate(value, n) for value in pair))
    console.print(table)
    console.print(
        f"trials   {states.count(TrialState.COMPLETE)} complete, {states.count(TrialState.PRUNED)} stopped early, "
        f"{states.count(TrialState.FAIL)} interrupted"
    )
    console.print(f"gain     {(best.value or 0) - (default.value or 0):+.2f} points where the best was picked")
    if pair:
        console.print(f"         {pair[1] - pair[0]:+.2f} points on another held-out part, from another initialisation")
    console.print(f"recipe   {folder}/best.yaml", markup=False)
    run = f"make reproduce-table2 RECIPES={folder}/best.yaml PRESET={problem.preset}"
    console.print("run it   " + run + (" CROHME=…" if archive.name != "embedded" else ""), markup=False)
    console.print(f"trials   {folder}/trials.csv", markup=False)


def _pair(problem: Problem, checked: optuna.Study, best: FrozenTrial) -> tuple[float, float] | None:
    """(default, best) at the check's seed."""
    found = {repr(problem.values(t.params)): t.value for t in checked.trials if t.state == TrialState.COMPLETE}
    default, other = found.get(repr(dict(problem.defaults))), found.get(repr(problem.values(best.params)))
    return None if default is None or other is None else (default, other)


def _rate(value: float | None, n: int) -> str:
    low, high = proportion_interval(round((value or 0) * n / 100), n)
    return f"{value:.2f} ({100 * low:.1f}–{100 * high:.1f}) of {n}"


def heldout_size(config: Config, archive: Archive) -> int:
    """Expressions in the held-out part; which those are is decided by ids alone."""
    empty = np.empty((0, 0), np.uint8)
    samples = [Sample(id_, tuple(tokens), empty) for id_, tokens in archive.captions("train").items()]
    return len(split_heldout(evenly(samples, config.data.limit), config.heldout, config.seed)[1])
