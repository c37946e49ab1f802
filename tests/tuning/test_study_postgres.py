"""A study on a PostgreSQL server: a killed worker, a server outage, a vanished machine."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.trial import FrozenTrial, TrialState

from hmerbench.benchmarks.jobs.engine import Processes
from hmerbench.benchmarks.jobs.place import Place
from hmerbench.benchmarks.tuning import study as driver
from hmerbench.benchmarks.tuning import trials
from hmerbench.benchmarks.tuning.trials import FINISHED_STATES, Job
from tests.helpers.database import Postgres
from tests.helpers.studies import fake_train, posed, with_


def numbers(found: list[FrozenTrial], *states: TrialState) -> list[int]:
    return [trial.number for trial in found if trial.state in states]


@pytest.mark.long
def test_a_killed_worker_and_a_server_outage_lose_no_trial(postgres: Postgres, given, monkeypatch, capfd) -> None:
    space = with_(budget={"training": {"epochs": 16, "validate_every": 8}})
    Path(given["space"]).write_text(yaml.safe_dump(space))
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)
    url, killed = postgres.url("study"), []

    def trouble() -> None:
        while not killed:  # once a running trial's folder has its first epochs
            for path in given["results"].glob("tuning/*/*/history.jsonl"):
                if 2 <= len(path.read_text().splitlines()) < 10:
                    study = optuna.load_study(study_name=path.parents[1].name, storage=url)
                    running = [t for t in study.trials if t.state == TrialState.RUNNING]
                    trial = next((t for t in running if t.user_attrs.get("folder") == path.parent.name), None)
                    if trial is not None:
                        os.kill(int(re.sub(r".*process ", "", trial.user_attrs["where"])), signal.SIGKILL)
                        killed.append(trial.number)
                        break
            time.sleep(0.02)
        postgres.stop()
        time.sleep(2)
        postgres.start()

    problem = posed(given)
    folder = given["results"] / "tuning" / problem.name
    job = Job(problem, url, 5, str(folder), "here", heartbeat=3)
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.RECOVERY", 0)
    processes = Processes(given["crohme"], given["results"], folder, 4)
    watcher = threading.Thread(target=trouble, daemon=True)
    watcher.start()
    driver._complete(job, processes, 4, [problem.defaults], driver.TrialLogger())
    watcher.join()
    found = optuna.load_study(study_name=folder.name, storage=url).trials
    assert len(numbers(found, *FINISHED_STATES)) >= 5 and not numbers(found, TrialState.RUNNING, TrialState.WAITING)
    failed = numbers(found, TrialState.FAIL)
    again = {trial.system_attrs["retry_history"][-1]: trial for trial in found if "retry_history" in trial.system_attrs}
    assert killed[0] in failed and sorted(again) == failed, "a trial was lost"
    assert all(again[number].params == found[number].params for number in failed)
    assert again[killed[0]].user_attrs["folder"] == found[killed[0]].user_attrs["folder"]
    assert "killed by SIGKILL" in capfd.readouterr().out
    assert any("resuming" in log.read_text() for log in folder.glob("worker-*.log"))


def test_a_machine_vanishes(postgres: Postgres, given, monkeypatch) -> None:
    """Once its trials have missed their heartbeats, and not before, another machine's workers retry them."""
    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", fake_train)
    monkeypatch.setattr(trials, "POLL", 0.1)
    problem = posed(given)
    here = Job(problem, postgres.url("machines"), 3, str(given["results"] / "here"), "here", heartbeat=1)
    there = here.opened()
    lost = there.ask()  # on the other machine, whose last heartbeat this is
    problem.suggest(lost)
    there._storage.record_heartbeat(lost._trial_id)  # type: ignore[attr-defined]
    driver._requeue(there, lambda trial: trial.user_attrs.get("owner") == here.owner)
    assert there.trials[0].state == TrialState.RUNNING
    began = time.monotonic()
    trials.work(Place(given["crohme"], given["results"]), here, "worker")
    found = there.trials
    assert found[0].state == TrialState.FAIL and time.monotonic() - began > 2
    (again,) = [trial for trial in found if trial.system_attrs.get("failed_trial") == 0]
    assert again.params == found[0].params and again.state in FINISHED_STATES
    assert len(numbers(found, *FINISHED_STATES)) == 3 and not numbers(found, TrialState.RUNNING, TrialState.WAITING)


def test_a_trial_given_away_is_left_to_the_other_worker(postgres: Postgres, given, monkeypatch) -> None:
    """A worker that was out of reach finds in the end that its trial was requeued, and takes the next one."""
    job = Job(posed(given), postgres.url("given_away"), 2, str(given["results"] / "here"), "here")
    taken: list[int] = []

    def slow(run, archive, on_epoch, samples) -> None:
        fake_train(run, archive, on_epoch, samples)
        if not taken:
            (running,) = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
            driver._requeue(study, lambda trial: trial.number == running.number)
            taken.append(running.number)

    study = job.opened()
    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", slow)
    trials.work(Place(given["crohme"], given["results"]), job, "worker")
    assert numbers(study.trials, TrialState.FAIL) == taken == [0] and len(numbers(study.trials, *FINISHED_STATES)) == 2
    assert study.trials[1].params == study.trials[0].params and study.trials[1].value is not None
