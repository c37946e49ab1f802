"""Tuning the settings of a recipe with Optuna: by several processes, machines, or the nodes of a cluster.

The study lies in a journal file of its folder, or in any database that several machines reach. Workers (trials.py)
try settings; the driver starts them, has what a dead one left tried again, tells, mirrors to MLflow and writes the
results (results.py).
"""

import queue
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from benchmarks.data.archive import Archive
from benchmarks.errors import UserError
from benchmarks.files import only_one
from benchmarks.jobs.engine import Placing
from benchmarks.jobs.place import Died
from benchmarks.printing import console
from benchmarks.runs.workspace import announce, workspace
from benchmarks.tuning.space import Problem
from benchmarks.tuning.trials import FINISHED_STATES, POLL, RETRIES, STORAGE_ERRORS, Job, patiently, quiet_optuna, work

if TYPE_CHECKING:
    from benchmarks.jobs.engine import Engine

MIRROR_SECONDS = 60  # the end of tuning waits so long for MLflow


def tune(problem: Problem, archive: Archive, results: Path, trials: int, placing: Placing, storage: str = "") -> Path:
    """Brings the study to `trials` finished trials in all, then writes its results into the folder returned.

    The same command resumes a study that was stopped, and, with a `storage` URL, joins in from another machine.
    Raises UserError for a storage that cannot be used, or a study already worked on here.
    """
    from benchmarks.tuning.results import default_trial, write

    quiet_optuna()
    if placing.engine == "ray" and not storage:
        raise UserError("the engine 'ray' needs a storage that all nodes reach: --storage postgresql://...")
    place = workspace(archive, results)
    folder = place / "tuning" / problem.name
    announce(archive)
    for name in problem.left_out:
        console.print(f"left as it is: {name}, which the recipe sets", markup=False)
    with only_one(folder, ".tuning"):
        _repair(folder / "journal.log")
        job = Job(problem, storage or str(folder.resolve() / "journal.log"), trials, str(folder.resolve()))
        engine, logger = placing.open(archive, place, folder), TrialLogger()
        try:
            study = _complete(job, engine, placing.jobs, [problem.defaults], logger)
            default_trial(study)
            best, checked = problem.values(study.best_trial.params), None
            if best != problem.defaults:  # the best of many was lucky, too: how do both do where it was not picked?
                pair = [problem.defaults, best]
                checked = _complete(job.on_other_data(), engine, min(placing.jobs, 2), pair, logger)
        finally:
            engine.stop()
            logger.end()
        write(folder, problem, study, checked, archive)
    return folder


def _complete(job: Job, engine: "Engine", workers: int, first: list[Any], logger: "TrialLogger") -> optuna.Study:
    """Has workers finish the study's trials; those of `first` come first."""
    study = _open(job)
    told = {trial.number for trial in study.trials if trial.state in FINISHED_STATES}
    _try_again(study, lambda trial: job.local or trial.user_attrs.get("owner") == job.owner)
    for values in first if not study.trials or job.check else []:
        stored = {name: job.problem.parameters[name].stored(value) for name, value in values.items()}
        study.enqueue_trial(stored, user_attrs={"default": values == job.problem.defaults}, skip_if_exists=True)
    if job.check:  # all that were ever queued, and none besides
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
                    deaths += 1
                    console.print(f"{name} exited ({error}); its trial is tried again", markup=False)
                    if deaths > RETRIES * workers:
                        raise UserError(f"workers keep going away ({error}); too little memory for {workers}?")
                    patiently(partial(_try_again, study, lambda t, w=worker: t.user_attrs.get("worker") == w))
                    names[name] = uuid.uuid4().hex[:8]
                    engine.start(name, work, job, names[name])
                elif error is not None:
                    raise error
            with suppress(*STORAGE_ERRORS):
                _tell(job, study, told, logger)
        patiently(partial(_tell, job, study, told, logger))
        status = "FINISHED"
    finally:
        logger.conclude(job, status)
    return study


def _open(job: Job) -> optuna.Study:
    """The study. Raises UserError, without the password, where its storage is of no use."""
    shown = job.storage
    try:
        if not job.local:
            shown = sqlalchemy.make_url(job.storage).render_as_string(hide_password=True)
        return job.opened()
    except (ImportError, sqlalchemy.exc.ArgumentError) as error:
        raise UserError(f"{shown}: not a storage that can be used ({error}); give a URL that names a driver "
                        "which is installed, as postgresql+psycopg2://USER:PASSWORD@HOST/NAME") from None  # fmt: skip
    except (*STORAGE_ERRORS, RuntimeError) as error:
        why = str(error.__cause__ or error).splitlines()[0].replace(job.storage, shown)
        raise UserError(
            f"{shown}: the study's storage cannot be reached ({why}); start it, or check --storage"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{shown}: damaged ({error}); move it away to begin the study again") from None


def _try_again(study: optuna.Study, ours: Callable[[FrozenTrial], bool]) -> None:
    """Queues again what our workers began and did not finish."""
    again = RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
    retried = {n for t in study.trials for n in RetryHeartbeatStaleTrialCallback.retry_history(t)}
    for trial in study.trials:
        if trial.state == TrialState.RUNNING and ours(trial):
            with suppress(UpdateFinishedTrialError, ValueError):  # another was faster
                study.tell(trial.number, state=TrialState.FAIL)
                again(study, trial)
        elif trial.state == TrialState.FAIL and ours(trial) and trial.number not in retried:
            again(study, trial)


def _tell(job: Job, study: optuna.Study, told: set[int], logger: "TrialLogger") -> None:
    """Prints and has logged what was finished and not `told` yet."""
    for trial in study.trials:
        if trial.state in FINISHED_STATES and trial.number not in told:
            told.add(trial.number)
            pruned = f" after epoch {trial.last_step}, stopped" if trial.state == TrialState.PRUNED else ""
            values = ", ".join(f"{n.split('.')[-1]} {v}" for n, v in job.problem.values(trial.params).items())
            name = f"{'check' if job.check else 'trial'} {trial.number}"
            console.print(f"{name}: {trial.value or 0:.2f}{pruned} ({values})", markup=False)
            folder = Path(job.owner, trial.user_attrs.get("folder", "-"))
            if folder.is_dir():
                for file in ("checkpoint.safetensors", "best.safetensors"):  # of a training cut short: no use
                    (folder / file).unlink(missing_ok=True)
                best = max(t.value or 0.0 for t in study.trials if t.number in told)
                logger.waiting.put(partial(_log, folder, job, name, trial, best))


class TrialLogger(threading.Thread):
    """Has finished trials logged to MLflow, each below its study's run. A store that hangs holds nothing up, and one
    that fails costs a warning: `python -m benchmarks track` can log the trials' folders later."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Logs what waits, until it is told to end."""
        while (log := self.waiting.get()) is not None:
            try:
                log()
            except Exception as error:
                words = " ".join(str(error).split())[:300]
                console.print(f"warning: tuning is not logged in full ({words})", markup=False)

    def conclude(self, job: Job, status: str) -> None:
        """Has it logged how a study ended: FINISHED or KILLED."""
        from benchmarks.tracking.track import conclude

        data, folder = job.problem.base.data.name, Path(job.owner, "trial")
        self.waiting.put(partial(conclude, folder, data, f"tuning/{job.name}", status))

    def end(self) -> None:
        """Waits for what is still to be logged, for MIRROR_SECONDS at most."""
        self.waiting.put(None)
        self.join(MIRROR_SECONDS)
        if self.is_alive():
            console.print("warning: MLflow hangs; `python -m benchmarks track` can log the trials later", markup=False)


def _log(folder: Path, job: Job, name: str, trial: FrozenTrial, best: float) -> None:
    """A trial that is through, and beside it the best so far as the study's own curve."""
    from benchmarks.tracking.mirror import PARENT
    from benchmarks.tracking.track import track
    from benchmarks.tracking.tracking_store import tracking_uri

    if run_id := track(folder, under=f"tuning/{job.name}", name=name):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri(folder))
        client.set_tag(run_id, "trial", str(trial.number))
        client.set_tag(run_id, "trial_state", trial.state.name.lower())
        client.log_metric(run_id, "trial_value", trial.value or 0.0)
        client.set_terminated(run_id, "FINISHED")  # one that was stopped is through, too
        client.log_metric(client.get_run(run_id).data.tags[PARENT], "trial_value", best, step=trial.number)


def _repair(journal: Path) -> None:
    """Takes what a kill in the middle of a write left: half a line, a lock that nobody holds."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
