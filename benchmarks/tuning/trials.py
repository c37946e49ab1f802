"""A study's workers: each takes one trial after another until the study is complete.

A trial is a short training with a run folder of its own, named by its configuration: so one that is tried again after
its worker was killed goes on from its checkpoint, and one whose result got lost on its way is known at once.
"""

import math
import os
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import optuna
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from benchmarks.data.archive import Archive
from benchmarks.errors import Diverged, UserError
from benchmarks.files import only_one
from benchmarks.jobs.place import Place
from benchmarks.runs.folder import RunFolder
from benchmarks.tuning.space import Problem

METRIC = "val_token_exprate"  # of the held-out part of the training data
RETRIES = 3  # of a trial whose worker went away
POLL = 1.0  # seconds between two looks at a study
PATIENCE = 900.0  # seconds for which workers outlive their storage
FINISHED_STATES = (TrialState.COMPLETE, TrialState.PRUNED)
STORAGE_ERRORS = (StorageInternalError, sqlalchemy.exc.DBAPIError)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """A study as workers get it: what is tuned, where the study lies, how many trials there shall be."""

    problem: Problem
    storage: str  # a database URL, or the path of a journal
    trials: int
    owner: str  # the study's folder on the driver's machine
    heartbeat: int = 20  # seconds between two signs of life, for machines that do not see each other; 3 missed: dead
    check: bool = False

    @property
    def name(self) -> str:
        """The study's name in its storage."""
        return self.problem.name + ("-check" if self.check else "")

    @property
    def local(self) -> bool:
        """Whether the storage is a journal file, for this machine alone."""
        return "://" not in self.storage

    def on_other_data(self) -> "Job":
        """The same settings at the next seed: another held-out part, another initialization; nothing is pruned."""
        base = self.problem.base.changed({"seed": self.problem.base.seed + 1})
        return replace(self, problem=replace(self.problem, base=base), check=True)

    def opened(self) -> optuna.Study:
        """The study, made where there is none. The sampler and the pruner are pinned, every option spelled out."""
        pruning = self.problem.space.pruning
        median = optuna.pruners.MedianPruner(
            n_startup_trials=pruning.trials, n_warmup_steps=pruning.epochs + 1, interval_steps=1, n_min_trials=3
        )
        if self.local:
            storage = JournalStorage(JournalFileBackend(self.storage))
        else:
            storage = PatientStorage(
                self.storage,
                engine_kwargs={"pool_pre_ping": True},
                heartbeat_interval=self.heartbeat,
                grace_period=3 * self.heartbeat,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
            )
        return optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction="maximize",
            sampler=KeyedTPE(self.problem.base.seed, self.problem.space.startup),
            pruner=optuna.pruners.NopPruner() if self.check else median,
            load_if_exists=True,
        )


class PatientStorage(RDBStorage):
    """A sign of life that could not be given is no reason to end the thread that gives them."""

    def record_heartbeat(self, trial_id: int) -> None:
        """Gives a sign of life, if the storage can be reached."""
        with suppress(*STORAGE_ERRORS):
            super().record_heartbeat(trial_id)


class KeyedTPE(TPESampler):
    """Optuna's TPE, its random numbers keyed by (seed, trial): what is drawn depends on the trials before, and not on
    which worker draws, or how often a study was stopped."""

    def __init__(self, seed: int, startup: int, trial: int = 0):
        self.key = seed, startup
        super().__init__(
            n_startup_trials=startup,
            n_ei_candidates=24,
            multivariate=True,
            group=False,
            constant_liar=True,  # workers side by side do not try the same
            seed=(1_000_003 * seed + trial) % 2**32,
        )

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Optuna's hook: keys the random numbers by the trial."""
        self.__init__(*self.key, trial.number)
        super().before_trial(study, trial)


def patiently(action: Callable[[], Result]) -> Result:
    """The action's result, once the storage can be reached."""
    began = time.monotonic()
    while True:
        try:
            return action()
        except STORAGE_ERRORS as error:
            if time.monotonic() - began > PATIENCE:
                why, minutes = str(error).splitlines()[0], PATIENCE / 60
                raise UserError(
                    f"the study's storage has been out of reach for {minutes:.0f} minutes ({why}); "
                    "run the same command again to resume"
                ) from None
            time.sleep(POLL)


def quiet_optuna() -> None:
    """Leaves out what Optuna says of every trial, and of the experimental parts that are pinned here."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def work(place: Place, job: Job, worker: str) -> None:
    """Trials, one after another, until the study is complete and none is under way that could fail yet."""
    quiet_optuna()
    study, archive = patiently(job.opened), place.archive()
    while (turn := patiently(partial(_turn, study, job.trials))) != "over":
        if turn == "try":
            trial = Trial(place, job, worker, archive)
            try:
                study.optimize(trial.run, n_trials=1)
                continue
            except STORAGE_ERRORS:  # the trial's result lies in its folder: it will be tried again and known at once
                pass
            except (UpdateFinishedTrialError, ValueError, AssertionError, UnboundLocalError):
                # it was given to another worker while this one was out of reach, or Optuna stumbled (the last of these
                # errors is its own) over a storage that went away between a trial's end and its report
                if not trial.over:
                    raise
        time.sleep(POLL)


def _turn(study: optuna.Study, trials: int) -> str:
    """Whether to try, to wait, as a trial under way may fail yet, or the study is over."""
    fail_stale_trials(study)
    states = Counter(trial.state for trial in study.get_trials(deepcopy=False))
    finished = sum(states[state] for state in FINISHED_STATES)
    if states[TrialState.WAITING] or finished + states[TrialState.RUNNING] < trials:
        return "try"
    return "wait" if states[TrialState.RUNNING] else "over"


class Trial:
    """The objective: a short training, its token-match ExpRate on held-out training data, the best epoch's."""

    def __init__(self, place: Place, job: Job, worker: str, archive: Archive):
        self.place, self.job, self.worker, self.archive = place, job, worker, archive
        self.reported: set[int] = set()
        self.over = False  # whatever goes wrong from here on is not the training's fault

    def run(self, trial: optuna.Trial) -> float:
        """Trains with the settings that the study suggests; returns ExpRate in percent, 0 for a loss that diverged."""
        from benchmarks.training.trainer import train

        where = f"{socket.gethostname()}, process {os.getpid()}"
        for name, value in {"worker": self.worker, "owner": self.job.owner, "where": where}.items():
            trial.set_user_attr(name, value)
        config = self.job.problem.config(self.job.problem.suggest(trial))
        name = f"tuning/{Path(self.job.owner).name}/{config.preset}-seed{config.seed}-{config.digest}"
        trial.set_user_attr("folder", Path(name).name)
        folder = self.place.pull(name)

        def on_epoch(line: dict[str, Any]) -> None:
            self.place.push(name)
            self._report(trial, folder)
            if METRIC in line and not trial.user_attrs.get("default"):
                with suppress(*STORAGE_ERRORS):
                    if trial.should_prune():
                        self.over = True
                        raise optuna.TrialPruned

        with only_one(folder, ".lock", math.inf):  # two trials of the same settings, or one that was taken for dead
            state = RunFolder(folder).state
            if state is None or not state["finished"]:
                self._report(trial, folder)
                try:
                    train(RunFolder(folder, config), self.archive, on_epoch)
                except Diverged:
                    self.over = True
                    trial.set_user_attr("diverged", True)
                    return 0.0
                finally:
                    self.place.push(name)
            self._report(trial, folder)
        value = max(_validated(folder).values())
        self.over = True
        return value

    def _report(self, trial: optuna.Trial, folder: Path) -> None:
        """Tells the storage of the epochs it does not know; where it is out of reach, with the next ones."""
        try:
            for epoch, rate in _validated(folder).items():
                if epoch not in self.reported:
                    trial.report(rate, epoch)
                    self.reported.add(epoch)
        except UpdateFinishedTrialError:
            self.over = True
            raise
        except STORAGE_ERRORS:
            pass


def _validated(folder: Path) -> dict[int, float]:
    """The epochs of a run after which it was validated, and what came of it."""
    return {line["epoch"]: line[METRIC] for line in RunFolder(folder).history if METRIC in line}
