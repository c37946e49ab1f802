"""Search for better settings of a recipe with Optuna: by several processes, machines, or the nodes of a cluster.

The study lies in a journal file of its folder, or in any database that several machines reach. Workers (trials.py)
try settings; the driver starts them, has what a dead one left tried again, tells, mirrors to MLflow and writes the
results (results.py).
"""

import fcntl
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from benchmarks.errors import UserError
from benchmarks.jobs.place import Died, Engine
from benchmarks.jobs.processes import Processes
from benchmarks.jobs.ray_cluster import Ray
from benchmarks.printing import console
from benchmarks.runs.workspace import announce, open_data, workspace
from benchmarks.tuning.space import pose
from benchmarks.tuning.trials import DONE, POLL, RETRIES, STORAGE_ERRORS, Job, patiently, quiet_optuna, work

MIRROR_SECONDS = 60  # the end of a search waits so long for MLflow


def search(
    *,
    recipe: str,
    preset: str,
    seed: int,
    crohme: Path | None,
    results: Path,
    trials: int,
    workers: int,
    space: str = "",
    storage: str = "",
    engine: str = "local",
    cpus: float = 1,
    gpus: float | None = None,
    heartbeat: int = 20,
) -> Path:
    """Brings the study to `trials` finished trials in all, then writes its results into the folder returned.

    The same command goes on with a study that was stopped, and, with a `storage` URL, joins in from another machine.
    Raises UserError for a space that does not fit, a storage that cannot be used, or a study already worked on here.
    """
    from benchmarks.tuning.results import default_trial, write

    quiet_optuna()
    archive = open_data(crohme, results)
    problem = pose(recipe, preset, seed, archive, space)
    place = workspace(archive, results)
    folder = place / "search" / problem.name
    if engine == "ray" and not storage:
        raise UserError("the engine 'ray' needs a storage that all nodes reach: --storage postgresql://...")
    announce(archive)
    for name in problem.left_out:
        console.print(f"left as it is: {name}, which the recipe sets", markup=False)
    with _alone(folder):
        _repair(folder / "journal.log")
        job = Job(problem, storage or str(folder.resolve() / "journal.log"), trials, str(folder.resolve()), heartbeat)
        where: Engine = (
            Ray(archive, place, cpus, gpus) if engine == "ray" else Processes(archive.path, place, folder, workers)
        )
        mirror = Mirror()
        try:
            study = _complete(job, where, workers, [problem.defaults], folder, mirror)
            default_trial(study)
            best, checked = problem.values(study.best_trial.params), None
            if best != problem.defaults:  # the best of many was lucky, too: how do both do where it was not picked?
                pair = [problem.defaults, best]
                checked = _complete(job.on_other_data(), where, min(workers, 2), pair, folder, mirror)
        finally:
            where.stop()
            mirror.end()
        write(folder, problem, study, checked, archive, console)
    return folder


def _complete(job: Job, engine: Engine, workers: int, first: list[Any], folder: Path, mirror: "Mirror") -> optuna.Study:
    """Has workers finish the study's trials; those of `first` come first."""
    study = _open(job)
    _try_again(study, lambda trial: job.local or trial.user_attrs.get("owner") == job.owner)
    for values in first if not study.trials or job.check else []:
        stored = {name: job.problem.parameters[name].stored(value) for name, value in values.items()}
        study.enqueue_trial(stored, user_attrs={"default": values == job.problem.defaults}, skip_if_exists=True)
    if job.check:  # all that were ever queued, and none besides
        job = replace(job, trials=sum(trial.state != TrialState.FAIL for trial in study.trials))
    names = {f"worker-{k}": uuid.uuid4().hex[:8] for k in range(workers)}
    for name, worker in names.items():
        engine.start(name, work, job, worker)
    deaths = 0
    with News(job, folder, study, mirror) as news:
        while names:
            for ended in engine.ended(POLL):
                worker = names.pop(ended.name)
                if isinstance(ended.error, Died):
                    deaths += 1
                    console.print(f"{ended.name} went away ({ended.error}); its trial is tried again", markup=False)
                    if deaths > RETRIES * workers:
                        raise UserError(f"workers keep going away ({ended.error}); too little memory for {workers}?")
                    patiently(partial(_try_again, study, lambda t, w=worker: t.user_attrs.get("worker") == w))
                    names[ended.name] = uuid.uuid4().hex[:8]
                    engine.start(ended.name, work, job, names[ended.name])
                elif ended.error is not None:
                    raise ended.error
            with suppress(*STORAGE_ERRORS):
                news.tell(study)
        patiently(partial(news.tell, study))
    return study


def _open(job: Job) -> optuna.Study:
    """The study. Raises UserError, without the password, where its storage is of no use."""
    shown = job.storage
    try:
        if not job.local:
            shown = sqlalchemy.make_url(job.storage).render_as_string(hide_password=True)
        return job.opened()
    except (ImportError, sqlalchemy.exc.ArgumentError) as error:
        raise UserError(f"{shown}: no storage that can be used ({error}); give a URL that names a driver "
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


class News:
    """Tells once of each trial that was finished, and has it mirrored; in the end, how the study ended."""

    def __init__(self, job: Job, folder: Path, study: optuna.Study, mirror: "Mirror"):
        self.job, self.folder, self.mirror = job, folder, mirror
        self.told = {trial.number for trial in study.trials if trial.state in DONE}

    def tell(self, study: optuna.Study) -> None:
        """Prints and has logged what was finished since."""
        for trial in study.trials:
            if trial.state in DONE and trial.number not in self.told:
                self.told.add(trial.number)
                pruned = f" after epoch {trial.last_step}, stopped" if trial.state == TrialState.PRUNED else ""
                values = ", ".join(f"{n.split('.')[-1]} {v}" for n, v in self.job.problem.values(trial.params).items())
                name = f"{'check' if self.job.check else 'trial'} {trial.number}"
                console.print(f"{name}: {trial.value or 0:.2f}{pruned} ({values})", markup=False)
                if (place := self.folder / trial.user_attrs.get("folder", "-")).is_dir():
                    for file in ("checkpoint.safetensors", "best.safetensors"):  # of a training cut short: no use
                        (place / file).unlink(missing_ok=True)
                    best = max(t.value or 0.0 for t in study.trials if t.number in self.told)
                    self.mirror.waiting.put(partial(_log, place, self.job.name, name, trial, best))

    def __enter__(self) -> "News":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        from benchmarks.tracking.track import conclude

        data, study = self.job.problem.base.data.name, f"search/{self.job.name}"
        status = "FINISHED" if error is None else "KILLED"
        self.mirror.waiting.put(partial(conclude, self.folder / "trial", data, study, status))


class Mirror(threading.Thread):
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
                words = " ".join(str(error).split())[:160]
                console.print(f"warning: the search is not logged in full ({words})", markup=False)

    def end(self) -> None:
        """Waits for what is still to be logged, for MIRROR_SECONDS at most."""
        self.waiting.put(None)
        self.join(MIRROR_SECONDS)
        if self.is_alive():
            console.print("warning: MLflow hangs; `python -m benchmarks track` can log the trials later", markup=False)


def _log(folder: Path, study: str, name: str, trial: FrozenTrial, best: float) -> None:
    """A trial that is through, and beside it the best so far as the study's own curve."""
    from benchmarks.tracking.mirror import PARENT
    from benchmarks.tracking.store import tracking_uri
    from benchmarks.tracking.track import track

    if run_id := track(folder, under=f"search/{study}", name=name):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri(folder))
        client.set_tag(run_id, "trial", str(trial.number))
        client.set_tag(run_id, "trial_state", trial.state.name.lower())
        client.log_metric(run_id, "trial_value", trial.value or 0.0)
        client.set_terminated(run_id, "FINISHED")  # one that was stopped is through, too
        client.log_metric(client.get_run(run_id).data.tags[PARENT], "trial_value", best, step=trial.number)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One driver a study and machine: then whatever is left running there is left over."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: this study is being worked on by another process; wait for it") from None
        yield


def _repair(journal: Path) -> None:
    """Takes what a kill in the middle of a write left: half a line, a lock that nobody holds."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
