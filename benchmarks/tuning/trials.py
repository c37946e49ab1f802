"""The workers of a study: each runs one trial after another until the study is complete.

A trial is a short training in a run folder named after its configuration. A retry after a worker was killed therefore
resumes from its checkpoint, and a retry of a finished trial whose result was lost reads it from there.
"""

import math
import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import Sample, evenly, split_heldout
from hmerbench.benchmarks.errors import Diverged
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.place import Place
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.tuning.space import Problem

METRIC = "val_token_exprate"  # on held-out training data
POLL = 1.0  # seconds between two queries of a study
FINISHED_STATES = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Job:
    """A study as passed to its workers: the problem, the number of trials wanted, and the study's folder."""

    problem: Problem
    trials: int
    folder: Path
    check: bool = False

    @property
    def name(self) -> str:
        return self.problem.name + ("-check" if self.check else "")

    @property
    def journal(self) -> Path:
        """The file in which the study is stored."""
        return self.folder / "journal.log"

    def on_other_data(self) -> "Job":
        """The check of the result at the next seed: another held-out part, none of it of the study's, and another
        initialization; no pruning."""
        base = self.problem.base.changed({"seed": self.problem.base.seed + 1})
        return replace(self, problem=replace(self.problem, base=base), check=True)

    def samples(self, archive: Archive) -> list[Sample] | None:
        """The expressions of a check: those that judged the study's trials are not among them. None: all."""
        base = self.problem.base
        return without_judges(evenly(archive.samples("train"), base.data.limit), base) if self.check else None

    def opened(self) -> optuna.Study:
        """Open the study, creating it if missing, with every option of the sampler and pruner given explicitly."""
        pruning = self.problem.space.pruning
        median = optuna.pruners.MedianPruner(
            n_startup_trials=pruning.trials, n_warmup_steps=pruning.epochs + 1, interval_steps=1, n_min_trials=3
        )
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.journal))),
            study_name=self.name,
            direction="maximize",
            sampler=KeyedTPE(self.problem.base.seed, self.problem.space.startup),
            pruner=optuna.pruners.NopPruner() if self.check else median,
            load_if_exists=True,
        )


class KeyedTPE(TPESampler):
    """Optuna's TPE with random numbers keyed by (seed, trial): a sample depends on the earlier trials, but not on which
    worker draws it or how often the study was stopped."""

    def __init__(self, seed: int, startup: int, trial: int = 0):
        self.key = seed, startup
        super().__init__(
            n_startup_trials=startup,
            n_ei_candidates=24,
            multivariate=True,
            group=False,
            constant_liar=True,  # concurrent workers should not sample the same settings
            seed=(1_000_003 * seed + trial) % 2**32,
        )

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.__init__(*self.key, trial.number)
        super().before_trial(study, trial)


def quiet_optuna() -> None:
    """Silence Optuna's messages on every trial, and its warnings on experimental features used here."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def work(place: Place, job: Job, worker: str) -> None:
    """Run trials until the study is complete and no running trial can still fail."""
    quiet_optuna()
    study, archive = job.opened(), place.archive()
    while (action := _next_action(study, job.trials)) != "end":
        if action == "try":
            study.optimize(partial(_try, job=job, worker=worker, archive=archive), n_trials=1)
        else:
            time.sleep(POLL)


def _next_action(study: optuna.Study, trials: int) -> Literal["try", "wait", "end"]:
    """What a worker should do next: `wait` means that a running trial may still fail."""
    states = Counter(trial.state for trial in study.get_trials(deepcopy=False))
    finished = sum(states[state] for state in FINISHED_STATES)
    if states[TrialState.WAITING] or finished + states[TrialState.RUNNING] < trials:
        return "try"
    return "wait" if states[TrialState.RUNNING] else "end"


def _try(trial: optuna.Trial, job: Job, worker: str, archive: Archive) -> float:
    """The objective: train with the suggested settings for a short time; return the best epoch's token-match ExpRate on
    held-out training data in percent, 0 if the loss diverged."""
    from hmerbench.benchmarks.training.trainer import train

    trial.set_user_attr("worker", worker)
    config = job.problem.base.changed(job.problem.suggest(trial), "this trial")
    run = RunFolder(job.folder / f"{config.preset}-seed{config.seed}-{config.digest}", config)
    trial.set_user_attr("folder", run.path.name)

    def on_epoch(entry: dict[str, Any]) -> None:
        if METRIC in entry:
            trial.report(entry[METRIC], entry["epoch"])
            if not trial.user_attrs.get("default") and trial.should_prune():
                raise optuna.TrialPruned

    with locked(run.path, ".lock", math.inf):  # the same settings may be on trial twice
        for epoch, rate in _validated(run).items():  # by an earlier attempt
            trial.report(rate, epoch)
        if not run.state or not run.state["finished"]:
            try:
                train(run, archive, on_epoch, job.samples(archive))
            except Diverged:
                trial.set_user_attr("diverged", True)
                return 0.0
    return max(_validated(run).values())


def _validated(run: RunFolder) -> dict[int, float]:
    """METRIC by epoch, for the epochs of a run that were validated."""
    return {entry["epoch"]: entry[METRIC] for entry in run.history if METRIC in entry}


def without_judges(samples: list[Sample], checking: Config) -> list[Sample]:
    """Samples without those held out at the seed before that of `checking`, a study's check."""
    return split_heldout(samples, checking.heldout, checking.seed - 1)[0]
