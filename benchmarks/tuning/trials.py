"""The workers of a study: each runs one trial after another until the study is complete.

A trial is a short training in a run folder named after its configuration. A retry after a worker was killed therefore
resumes from its checkpoint, and a retry of a finished trial whose result was lost reads it from there.
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
from typing import Any, Literal, TypeVar

import optuna
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import Sample, hold_out
from hmerbench.benchmarks.errors import Diverged, UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.place import Place
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.tuning.space import Problem

METRIC = "val_token_exprate"  # on held-out training data
RETRIES = 3  # of a trial whose worker died
POLL = 1.0  # seconds between two queries of a study
PATIENCE = 900.0  # seconds to wait for a storage that is out of reach
COMPLETE = (TrialState.COMPLETE,)  # neither pruned nor failed
FINISHED_STATES = (*COMPLETE, TrialState.PRUNED)
STORAGE_ERRORS = (StorageInternalError, sqlalchemy.exc.DBAPIError)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """A study as passed to its workers: the problem, the storage, and the number of trials wanted."""

    problem: Problem
    storage: str  # a database URL, or the path of a journal
    trials: int
    folder: str  # the study's folder on the driver's machine
    owner: str  # who started a trial: this folder on this machine
    heartbeat: int = 20  # seconds between heartbeats in a shared storage; a worker that misses 3 is dead
    check: bool = False

    @property
    def name(self) -> str:
        return self.problem.name + ("-check" if self.check else "")

    @property
    def local(self) -> bool:
        """Whether the storage is a journal file, used by this machine only."""
        return "://" not in self.storage

    def on_other_data(self) -> "Job":
        """The check of the result at the next seed: another held-out part, none of it of the study's, and another
        initialization; no pruning."""
        base = self.problem.base.changed({"seed": self.problem.base.seed + 1})
        return replace(self, problem=replace(self.problem, base=base), check=True)

    def samples(self, archive: Archive) -> list[Sample] | None:
        """The expressions of a check: those that judged the study's trials are not among them. None: all."""
        base = self.problem.base
        limits = base.data.max_area, base.data.limit  # as a trial asks for them
        return without_judges(archive.samples("train", *limits), base) if self.check else None

    def opened(self) -> optuna.Study:
        """Open the study, creating it if missing, with every option of the sampler and pruner given explicitly."""
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
                heartbeat_stale_trial_callback=Retry(),
            )
        return optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction="maximize",
            sampler=KeyedTPE(self.problem.base.seed, self.problem.space.startup),
            pruner=optuna.pruners.NopPruner() if self.check else median,
            load_if_exists=True,
        )


class Retry(RetryHeartbeatStaleTrialCallback):
    """Queues a trial again whose worker died, RETRIES times without getting further than before; if it is `excused`, as
    the whole study or another worker was stopped, its attempts so far count for nothing."""

    def __init__(self, excused: bool = False):
        super().__init__()
        self.excused = excused

    def __call__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Optuna's hook: queue a failed trial again, unless it failed too often."""
        if self.excused:
            trial.user_attrs = trial.user_attrs | {"excused": _fruitless(study, trial)}
        if not given_up(study, trial):
            super().__call__(study, trial)


def given_up(study: optuna.Study, trial: FrozenTrial) -> bool:
    """Whether the workers of a failed trial died too often for another attempt."""
    return _fruitless(study, trial) - trial.user_attrs.get("excused", 0) > RETRIES


def _fruitless(study: optuna.Study, trial: FrozenTrial) -> int:
    """How many attempts at a trial got no further than those before: one whose machine was lost, did, as a rule."""
    trials, furthest, count = study.get_trials(deepcopy=False), 0, 0
    for number in [*RetryHeartbeatStaleTrialCallback.retry_history(trial), trial.number]:
        reached = trials[number].last_step or 0
        count += reached <= furthest
        furthest = max(furthest, reached)
    return count


class PatientStorage(RDBStorage):
    """Keeps the heartbeat thread alive when a heartbeat cannot be recorded."""

    def record_heartbeat(self, trial_id: int) -> None:
        with suppress(*STORAGE_ERRORS):
            super().record_heartbeat(trial_id)


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


def patiently(action: Callable[[], Result]) -> Result:
    """Retry an action until the storage can be reached; return its result. Raises UserError after PATIENCE."""
    started = time.monotonic()
    while True:
        try:
            return action()
        except STORAGE_ERRORS as error:
            if time.monotonic() - started > PATIENCE:
                why, minutes = str(error).splitlines()[0], PATIENCE / 60
                raise UserError(
                    f"the study's storage has been out of reach for {minutes:.0f} minutes ({why}); "
                    "run the same command again to resume"
                ) from None
            time.sleep(POLL)


def quiet_optuna() -> None:
    """Silence Optuna's messages on every trial, and its warnings on experimental features used here."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def work(place: Place, job: Job, worker: str) -> None:
    """Run trials until the study is complete and no running trial can still fail."""
    quiet_optuna()
    study, archive = patiently(job.opened), place.archive()
    while (action := patiently(partial(_next_action, study, job.trials))) != "end":
        if action == "try":
            trial = Trial(place, job, worker, archive)
            try:
                study.optimize(trial.run, n_trials=1)
                continue
            except STORAGE_ERRORS:  # the result is in the trial's folder, where the retry will find it
                pass
            except (UpdateFinishedTrialError, ValueError, AssertionError, UnboundLocalError):
                # the trial was given to another worker while this one was out of reach, or the storage vanished between
                # the trial's end and its report (on which Optuna raises UnboundLocalError, for example)
                if not trial.over:
                    raise
        time.sleep(POLL)


def _next_action(study: optuna.Study, trials: int) -> Literal["try", "wait", "end"]:
    """What a worker should do next: `wait` means that a running trial may still fail."""
    fail_stale_trials(study)
    states = Counter(trial.state for trial in study.get_trials(deepcopy=False))
    finished = sum(states[state] for state in FINISHED_STATES)
    if states[TrialState.WAITING] or finished + states[TrialState.RUNNING] < trials:
        return "try"
    return "wait" if states[TrialState.RUNNING] else "end"


class Trial:
    """The objective: the best epoch's token-match ExpRate on held-out training data in a short training."""

    def __init__(self, place: Place, job: Job, worker: str, archive: Archive):
        self.place, self.job, self.worker, self.archive = place, job, worker, archive
        self.reported: set[int] = set()
        self.over = False  # whether the training has ended, so that later errors are the storage's

    def run(self, trial: optuna.Trial) -> float:
        """Train with the suggested settings; return ExpRate in percent, 0 if the loss diverged."""
        from hmerbench.benchmarks.training.trainer import train

        where = f"{socket.gethostname()}, process {os.getpid()}"
        for name, value in {"worker": self.worker, "owner": self.job.owner, "where": where}.items():
            trial.set_user_attr(name, value)
        config = self.job.problem.base.changed(self.job.problem.suggest(trial), "this trial")
        name = f"tuning/{Path(self.job.folder).name}/{config.preset}-seed{config.seed}-{config.digest}"
        trial.set_user_attr("folder", Path(name).name)
        folder = self.place.pull(name)

        def on_epoch(entry: dict[str, Any]) -> None:
            self.place.push(name)
            self._report(trial, folder)
            if METRIC in entry and not trial.user_attrs.get("default"):
                with suppress(*STORAGE_ERRORS):
                    if trial.should_prune():
                        self.over = True
                        raise optuna.TrialPruned

        with locked(folder, ".lock", math.inf):  # the same settings may be on trial twice, or wrongly taken for dead
            state = RunFolder(folder).state
            if state is None or not state["finished"]:
                self._report(trial, folder)
                try:
                    train(RunFolder(folder, config), self.archive, on_epoch, self.job.samples(self.archive))
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
        """Report the epochs the storage does not have; if it is out of reach, they go with the next report."""
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


def best_epoch(trial: FrozenTrial) -> float | None:
    """A trial's value, which of one that was stopped is its best epoch's, too, where Optuna's is its last's."""
    if trial.state == TrialState.PRUNED:
        return max(trial.intermediate_values.values(), default=None)
    return trial.value


def without_judges(samples: list[Sample], checking: Config) -> list[Sample]:
    """Samples without those held out at the seed before that of `checking`, a study's check."""
    return hold_out(samples, checking.heldout, checking.seed - 1)[0]


def _validated(folder: Path) -> dict[int, float]:
    """METRIC by epoch, for the epochs of a run that were validated."""
    return {entry["epoch"]: entry[METRIC] for entry in RunFolder(folder).history if METRIC in entry}
