"""Tune the settings of a recipe with Optuna, on several processes, machines, or the nodes of a cluster.

The study is stored in a journal file in its folder, or in a database that all machines can reach. Workers (trials.py)
run trials; the driver starts them, requeues the trials of dead workers, reports progress, mirrors trials to MLflow and
writes the results (results.py).
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import UserError, reason, without_secrets
from hmerbench.benchmarks.files import locked, write_atomically
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.place import Bystander, Died
from hmerbench.benchmarks.printing import console
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import announce, workspace
from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tuning.space import Problem
from hmerbench.benchmarks.tuning.trials import (
    COMPLETE,
    FINISHED_STATES,
    POLL,
    RETRIES,
    STORAGE_ERRORS,
    Job,
    Retry,
    best_epoch,
    given_up,
    patiently,
    quiet_optuna,
    work,
)

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.engine import Engine

DRIVER = "give a URL with an installed driver, such as postgresql+psycopg2://USER:PASSWORD@HOST/NAME"
MIRROR_SECONDS = 60  # how long the end of tuning waits for MLflow


def tune(problem: Problem, archive: Archive, results: Path, trials: int, placing: Placing, storage: str = "") -> Path:
    """Run the study until it has `trials` finished trials in total; write its results to the folder returned.

    The same command resumes a stopped study and, with a `storage` URL, joins in from another machine. Raises UserError
    for a storage that cannot be opened, or if this machine already works on the study.
    """
    from hmerbench.benchmarks.tuning.results import default_trial, write_study

    quiet_optuna()
    space = workspace(archive, results)
    folder = space / "tuning" / problem.name
    announce(archive)
    for name in problem.left_out:
        console.print(f"{name} stays as it is: the recipe sets it, or its network has no such setting")
    with locked(folder, ".tuning"):
        _repair(folder / "journal.log")
        journal = str(folder.resolve() / "journal.log")
        job = Job(problem, storage or journal, trials, os.path.abspath(folder), _owner(folder))
        jobs = placing.jobs or 1
        engine, logger = placing.open(archive.path, space, folder, jobs), TrialLogger()
        try:
            study = _complete(job, engine, jobs, [problem.defaults], logger)
            default_trial(study)
            best, checked = problem.values(study.best_trial.params), None
            if best != problem.defaults:  # the best of many was also lucky: check both on data that did not select it
                pair = [problem.defaults, best]
                checked = _complete(job.on_other_data(), engine, min(jobs, 2), pair, logger)
        finally:
            engine.stop()
            logger.end()
        write_study(folder, problem, study, checked, archive)
    return folder


def refuse_storage(engine: str, storage: str) -> None:
    """Raise UserError for a storage that cannot be one for this engine."""
    if engine == "ray" and not storage:
        raise UserError("the engine 'ray' needs a storage that all nodes reach: --storage postgresql://...")
    if storage and "://" not in storage:  # not shown, as it may be a URL with a password, misspelt
        raise UserError(f"--storage: this is not a URL; {DRIVER}")


def _complete(job: Job, engine: "Engine", workers: int, first: list[Any], logger: "TrialLogger") -> optuna.Study:
    """Run workers until the study is complete, starting with the settings in `first`."""
    study = _open(job)
    folders = {trial.number: _folder(job, trial) for trial in study.trials if trial.state in FINISHED_STATES}
    # not those that ended just before a kill, or in a version that wrote no trial.json
    reported = {number for number, folder in folders.items() if not folder.is_dir() or (folder / "trial.json").exists()}

    def ours(trial: FrozenTrial) -> bool:
        return job.local or trial.user_attrs.get("owner") == job.owner

    _requeue(study, ours, stopped=True)
    for values in first if not study.trials or job.check else []:
        stored = {name: job.problem.parameters[name].stored(value) for name, value in values.items()}
        study.enqueue_trial(stored, user_attrs={"default": values == job.problem.defaults}, skip_if_exists=True)
    if job.check:  # only the trials ever queued
        job = replace(job, trials=sum(trial.state != TrialState.FAIL for trial in study.trials))
    names = {f"worker-{k}": uuid.uuid4().hex[:8] for k in range(workers)}
    for name, worker in names.items():
        engine.start(name, work, job, worker)
    deaths, status = 0, "KILLED"
    try:
        while names:
            for name, error in engine.ended(POLL).items():
                worker = names.pop(name)
                if isinstance(error, Died):
                    deaths += not (excused := isinstance(error, Bystander))
                    console.print(f"{name} exited ({error}); its trial is tried again")
                    if deaths > RETRIES * workers:
                        raise UserError(f"the workers keep dying ({error}); lower --workers if memory is short")
                    of_it = partial(_requeue, study, lambda trial, w=worker: trial.user_attrs.get("worker") == w)
                    patiently(partial(of_it, excused=excused))
                    names[name] = uuid.uuid4().hex[:8]
                    engine.start(name, work, job, names[name])
                elif error is not None:
                    raise error
            with suppress(*STORAGE_ERRORS):
                _report(job, study, reported, logger)
        patiently(partial(_report, job, study, reported, logger))
        status = "FINISHED"
    except KeyboardInterrupt:
        engine.stop()  # first: a trial that is queued again is any worker's
        with suppress(*STORAGE_ERRORS):
            _requeue(study, ours, stopped=True)
        raise
    finally:
        logger.set_status(job, status)
    return study


def _open(job: Job) -> optuna.Study:
    """Open the study. Raises UserError, without the password, if its storage is unusable."""
    shown = without_secrets(job.storage)
    try:
        return job.opened()
    except (ImportError, sqlalchemy.exc.ArgumentError) as error:
        raise UserError(f"{shown}: this storage cannot be used ({reason(error, job.storage)}); {DRIVER}") from None
    except (*STORAGE_ERRORS, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        why = f"the study's storage cannot be reached ({reason(cause, job.storage)})"
        raise UserError(f"{shown}: {why}; start it, or check --storage") from None
    except (OSError, ValueError, KeyError) as error:
        if not job.local:  # not even the port is a number
            raise UserError(f"{shown}: this storage cannot be used; {DRIVER}") from None
        raise UserError(f"{shown}: the journal is damaged ({error}); move it away to begin the study again") from None


def _owner(folder: Path) -> str:
    """A name for the study's folder on this machine. Another machine may have the same path and, in containers, the
    same host name, so a random part is kept in the folder."""
    path = folder / "owner"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex)
    return f"{socket.gethostname()}:{folder.resolve()}:{path.read_text()}"


def _requeue(
    study: optuna.Study, ours: Callable[[FrozenTrial], bool], stopped: bool = False, excused: bool = False
) -> None:
    """Requeue the trials that our workers started and did not finish, because they died, for no fault of theirs if
    `excused`, or were `stopped` with all; then also those that were given up anywhere, such as on machines that are
    lost."""
    retry = Retry(excused=stopped or excused)
    retried = {number for trial in study.trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    for trial in study.trials:
        failed = trial.state == TrialState.FAIL and trial.number not in retried
        if trial.state == TrialState.RUNNING and ours(trial):
            with suppress(UpdateFinishedTrialError, ValueError):  # another process was faster
                study.tell(trial.number, state=TrialState.FAIL)
                retry(study, trial)
        elif failed and (ours(trial) or (stopped and given_up(study, trial))):
            retry(study, trial)


def _report(job: Job, study: optuna.Study, reported: set[int], logger: "TrialLogger") -> None:
    """Print and log the finished trials that are not yet in `reported`."""
    trials = study.trials  # read once: a storage out of reach in between would cost the report of a trial
    for trial in trials:
        if trial.state in FINISHED_STATES and trial.number not in reported:
            reported.add(trial.number)
            pruned = f", stopped after epoch {trial.last_step}" if trial.state == TrialState.PRUNED else ""
            value = best_epoch(trial) or 0.0
            settings = job.problem.values(trial.params)
            values = ", ".join(f"{setting.split('.')[-1]} {chosen}" for setting, chosen in settings.items())
            name = f"{'check' if job.check else 'trial'} {trial.number}"
            console.print(f"{name}: {value:.2f}{pruned} ({values})")
            folder = _folder(job, trial)
            if folder.is_dir():
                for file in ("checkpoint.safetensors", "best.safetensors"):  # of no use after a short training
                    (folder / file).unlink(missing_ok=True)
                complete = (other for other in trials if other.state in COMPLETE and other.number in reported)
                best = max((other.value or 0.0 for other in complete), default=0.0)  # as a stopped one is never chosen
                outcome = {"name": name, "number": trial.number, "state": trial.state.name.lower(), "value": value}
                RunFolder(folder).write("trial.json", outcome | {"ended": len(reported), "best": best})
                logger.queue.put(partial(tracking.track, folder))
                logger.set_status(job, "RUNNING")


def _folder(job: Job, trial: FrozenTrial) -> Path:
    return Path(job.folder, trial.user_attrs.get("folder", "-"))


class TrialLogger(threading.Thread):
    """Logs finished trials to MLflow as children of their study's run. A hanging store delays nothing, a failing one
    costs a warning: `hmerbench track` can log the trials' folders later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        """Log what is queued, until `end`."""
        while (log := self.queue.get()) is not None:
            try:
                log()
            except Exception as error:
                why = " ".join(str(error).split())[:300]
                console.print(f"warning: tuning is not logged in full ({why})")

    def set_status(self, job: Job, status: str) -> None:
        """Queue the status of a study: RUNNING, and in the end FINISHED or KILLED."""
        base = job.problem.base
        trial = Path(job.folder, Path(base.run_name).name)
        self.queue.put(partial(tracking.set_status, trial, base.data.name, status))

    def end(self) -> None:
        """Wait for the queue to be logged, for at most MIRROR_SECONDS."""
        self.queue.put(None)
        self.join(MIRROR_SECONDS)
        if self.is_alive():
            console.print("warning: MLflow hangs; `hmerbench track` can log the trials later")


def _repair(journal: Path) -> None:
    """Remove what a process killed while writing leaves: a partial line and a stale lock."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
