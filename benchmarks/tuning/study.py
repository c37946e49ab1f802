"""Tune the settings of a recipe with Optuna, by several processes.

The study is stored in a journal file in its folder. Workers (trials.py) run trials; the driver starts them, queues the
trials of dead workers again, reports progress, mirrors trials to MLflow and writes the results (results.py).
"""

import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.engine import Processes
from hmerbench.benchmarks.jobs.place import Died
from hmerbench.benchmarks.printing import console
from hmerbench.benchmarks.runs.workspace import announce, workspace
from hmerbench.benchmarks.tuning.space import Problem
from hmerbench.benchmarks.tuning.trials import FINISHED_STATES, POLL, Job, quiet_optuna, work

RETRIES = 3  # of a trial whose worker died, without getting further than before


def tune(problem: Problem, archive: Archive, results: Path, trials: int, workers: int) -> Path:
    """Run the study, `workers` trials at a time, until it has `trials` finished trials in total; write its results to
    the folder returned.

    The same command resumes a stopped study. Raises UserError for a damaged one, if workers keep dying, or if another
    process works on the study.
    """
    from hmerbench.benchmarks.tuning.results import default_trial, write_study

    quiet_optuna()
    space = workspace(archive, results)
    folder = space / "tuning" / problem.name
    announce(archive)
    for name in problem.left_out:
        console.print(f"{name} stays as it is: the recipe sets it, or its network has no such setting")
    with locked(folder, ".tuning"):
        job = Job(problem, trials, folder.resolve())
        _repair(job.journal)
        engine = Processes(archive.path, space, folder, workers)
        try:
            study = _complete(job, engine, workers, [problem.defaults])
            default_trial(study)
            best, checked = problem.values(study.best_trial.params), None
            if best != problem.defaults:  # the best of many was also lucky: check both on data that did not select it
                pair = [problem.defaults, best]
                checked = _complete(job.on_other_data(), engine, min(workers, 2), pair)
        finally:
            engine.stop()
        write_study(folder, problem, study, checked, archive)
    return folder


def _complete(job: Job, engine: Processes, workers: int, first: list[Any]) -> optuna.Study:
    """Run workers until the study is complete, starting with the settings in `first`."""
    from hmerbench.benchmarks.tracking.track import conclude

    study = _open(job)
    reported = {trial.number for trial in study.trials if trial.state in FINISHED_STATES}
    retried = {number for trial in study.trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    for trial in study.trials:  # of a command that was stopped
        if trial.state in (TrialState.RUNNING, TrialState.FAIL) and trial.number not in retried:
            _try_again(study, trial)
    for values in first if not study.trials or job.check else []:
        stored = {name: job.problem.parameters[name].stored(value) for name, value in values.items()}
        study.enqueue_trial(stored, user_attrs={"default": values == job.problem.defaults}, skip_if_exists=True)
    if job.check:  # only the trials ever queued
        job = replace(job, trials=sum(trial.state != TrialState.FAIL for trial in study.trials))
    alive = {f"worker-{k}": uuid.uuid4().hex[:8] for k in range(workers)}
    for name, worker in alive.items():
        engine.start(name, work, job, worker)
    deaths, status = Counter[object](), "KILLED"  # of workers, by their trial and how far it was
    try:
        while alive:
            for name, error in engine.ended(POLL).items():
                worker = alive.pop(name)
                if isinstance(error, Died):
                    console.print(f"{name} exited ({error}); its trial is tried again")
                    running = study.get_trials(states=(TrialState.RUNNING,))
                    trial = next((trial for trial in running if trial.user_attrs.get("worker") == worker), None)
                    reached = trial and (trial.user_attrs.get("folder"), trial.last_step)
                    deaths[reached] += 1
                    if deaths.total() > RETRIES * workers:
                        raise UserError(f"the workers keep dying ({error}); lower --workers if memory is short")
                    if trial:
                        _try_again(study, trial, gives_up=deaths[reached] > RETRIES)
                    alive[name] = uuid.uuid4().hex[:8]
                    engine.start(name, work, job, alive[name])
                elif error is not None:
                    raise error
            _report(job, study, reported)
        status = "FINISHED"
    finally:
        if status == "KILLED":
            engine.stop()  # at once, not after MLflow
        conclude(job.folder / "trial", job.problem.base.data.name, f"tuning/{job.name}", status)
    return study


def _open(job: Job) -> optuna.Study:
    try:
        return job.opened()
    except (ValueError, KeyError) as error:
        fix = "move it away to begin the study again"
        raise UserError(f"{job.journal}: the journal is damaged ({error}); {fix}") from None


def _try_again(study: optuna.Study, trial: FrozenTrial, gives_up: bool = False) -> None:
    """Queue a trial again that was not finished, to be resumed in its folder; only end it, if one `gives_up`."""
    if trial.state == TrialState.RUNNING:
        study.tell(trial.number, state=TrialState.FAIL)
    if not gives_up:
        RetryHeartbeatStaleTrialCallback()(study, trial)


def _report(job: Job, study: optuna.Study, reported: set[int]) -> None:
    """Print and log the finished trials that are not yet in `reported`."""
    for trial in study.trials:
        if trial.state in FINISHED_STATES and trial.number not in reported:
            reported.add(trial.number)
            pruned = f" after epoch {trial.last_step}, stopped" if trial.state == TrialState.PRUNED else ""
            settings = job.problem.values(trial.params)
            values = ", ".join(f"{setting.split('.')[-1]} {value}" for setting, value in settings.items())
            name = f"{'check' if job.check else 'trial'} {trial.number}"
            console.print(f"{name}: {trial.value or 0:.2f}{pruned} ({values})")
            folder = job.folder / trial.user_attrs.get("folder", "-")
            if folder.is_dir():
                for file in ("checkpoint.safetensors", "best.safetensors"):  # of no use after a short training
                    (folder / file).unlink(missing_ok=True)
                best = max(other.value or 0.0 for other in study.trials if other.number in reported)
                _log(folder, job, name, trial, best)


def _log(folder: Path, job: Job, name: str, trial: FrozenTrial, best: float) -> None:
    """Log a finished trial to MLflow, as a child of its study's run, which gets the best value so far as a metric."""
    from hmerbench.benchmarks.tracking.track import track, with_store

    def add_values(mirror: Any) -> None:
        from hmerbench.benchmarks.tracking.mirror import PARENT

        client = mirror.client
        client.set_tag(run_id, "trial", str(trial.number))
        client.set_tag(run_id, "trial_state", trial.state.name.lower())
        client.log_metric(run_id, "trial_value", trial.value or 0.0)
        client.set_terminated(run_id, "FINISHED")  # pruned ones, too
        study = client.get_run(run_id).data.tags[PARENT]
        client.update_run(study, "RUNNING")  # until `conclude`
        client.log_metric(study, "trial_value", best, step=trial.number)

    with suppress(UserError):  # a folder that somebody damaged ends no study
        if run_id := track(folder, under=f"tuning/{job.name}", name=name):
            with_store(folder, job.problem.base.data.name, add_values)


def _repair(journal: Path) -> None:
    """Remove what a process killed while writing leaves: a partial line and a stale lock."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):
        with open(journal, "r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
