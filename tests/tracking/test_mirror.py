"""Runs are one tree in MLflow, each of them once, whatever is resumed, repeated, copied or removed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking.mirror import study_of
from tests.helpers.made_up import put, put_environment, put_score, put_state
from tests.helpers.runs import PARENT, all_runs, artifacts, check_complete, logged, put_epochs, put_run, track_eight


def test_five_rows_of_one_seed_are_one_table_and_five_runs(client: MlflowClient, tmp_path: Path) -> None:
    recipes = ["bttr", "bttr-baseline", "comer-cross", "comer-fusion", "comer-self"]
    folders = [put_run(tmp_path, recipe) for recipe in recipes]
    put(tmp_path / "local/table2.csv", "dataset\n")
    first = [logged(folder) for folder in folders]
    again = [logged(folder, tables=tmp_path / "local") for folder in folders]
    assert first == again
    runs = all_runs(client)
    (table,) = [run for run in runs if PARENT not in run.data.tags]
    children = [run for run in runs if run.info.run_id != table.info.run_id]
    assert len(runs) == 6 and {run.data.tags[PARENT] for run in children} == {table.info.run_id}
    assert sorted(run.data.params["recipe"] for run in children) == recipes
    assert [a.path for a in client.list_artifacts(table.info.run_id, "tables")] == ["tables/table2.csv"]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_second_seed_creates_the_row_in_between(client: MlflowClient, folder: Path, tmp_path: Path) -> None:
    other = logged(folder)
    seeds = [logged(put_run(tmp_path, "comer-fusion", seed=seed)) for seed in (7, 8)]
    assert len(all_runs(client)) == 5
    above = {client.get_run(run_id).data.tags[PARENT] for run_id in seeds}
    row = client.get_run(above.pop())
    assert not above and row.info.run_name == "comer-fusion"
    table = client.get_run(row.data.tags[PARENT])
    assert PARENT not in table.data.tags and client.get_run(other).data.tags[PARENT] == table.info.run_id
    summary = {"2014/exprate": 17.5, "2014/exprate_std": 0.5**0.5, "2014/exprate_runs": 2}
    assert row.data.metrics == pytest.approx(summary)
    assert table.data.metrics == {"2014/exprate": 17.5}  # the mean of its best row
    points = client.get_metric_history(table.info.run_id, "2014/exprate")
    assert [point.value for point in points] == [17.0, 17.5]
    logged(put_run(tmp_path, "comer-fusion", seed=8))  # changes nothing
    assert len(all_runs(client)) == 5 and len(client.get_metric_history(row.info.run_id, "2014/exprate")) == 1


LR = "lr-smoke-seed7-01234567"  # a study


def put_trial(folder: Path, number: int, state: str = "complete") -> Path:
    """trial.json of a trial of the value 12, after one of 50."""
    outcome = {"name": f"trial {number}", "number": number, "state": state, "value": 12.0, "ended": 2, "best": 50.0}
    put(folder / "trial.json", json.dumps(outcome))
    return folder


def test_trials_are_children_of_their_study(client: MlflowClient, tmp_path: Path) -> None:
    trials = [put_run(tmp_path, "trial", seed=seed) for seed in range(2)]
    folders = [shutil.copytree(trial, tmp_path / "tuning" / LR / f"smoke-seed7-{n}") for n, trial in enumerate(trials)]
    run_ids = [logged(put_trial(folder, n)) for n, folder in enumerate(folders)]
    below = [client.get_run(run_id) for run_id in run_ids]
    (above,) = {run.data.tags[PARENT] for run in below}
    assert len(all_runs(client)) == 3 and [run.info.run_name for run in below] == ["trial 0", "trial 1"]
    assert (client.get_run(above).info.run_name, client.get_run(above).info.status) == (f"tuning/{LR}", "FINISHED")
    tracking.set_status(folders[0], "crohme", "KILLED")
    tracking.set_status(tmp_path / "tuning/other-smoke-seed7-0/smoke-seed7-0", "crohme", "FINISHED")  # never logged
    for running in (True, False):  # by hand, when the study does not run
        logged(folders[0], running=running)
    assert len(all_runs(client)) == 3 and client.get_run(above).info.status == "KILLED"


def test_a_stopped_trial_is_logged_in_full_and_once(client: MlflowClient, tmp_path: Path) -> None:
    """By `track`, which the study calls, too."""
    folder = put_trial(tmp_path / "tuning" / LR / "smoke-seed7-1", 1, "pruned")
    shutil.copytree(put_run(tmp_path, "trial", finished=False), folder, dirs_exist_ok=True)
    for _ in range(2):
        run = client.get_run(logged(folder))
        assert (run.info.run_name, run.info.status) == ("trial 1", "FINISHED")
        assert (run.data.tags["trial"], run.data.tags["trial_state"]) == ("1", "pruned")
        for id_, expected in ((run.info.run_id, (0, 12.0)), (run.data.tags[PARENT], (2, 50.0))):
            points = client.get_metric_history(id_, "trial_value")
            assert [(point.step, point.value) for point in points] == [expected]


def test_studies_of_several_spaces_each_have_their_default_trial(client: MlflowClient, tmp_path: Path) -> None:
    """Which is the same training, to the same losses."""
    trial, studies = put_run(tmp_path, "trial"), (f"first-{LR}", f"second-{LR}")
    folders = [shutil.copytree(trial, tmp_path / "tuning" / study / trial.name) for study in studies]
    first, second = (logged(put_trial(folder, 0)) for folder in folders)
    assert first != second and [logged(folder) for folder in folders] == [first, second]
    above = [client.get_run(client.get_run(id_).data.tags[PARENT]).info.run_name for id_ in (first, second)]
    assert above == [f"tuning/{study}" for study in studies]


def test_a_trial_belongs_to_its_study_and_to_no_table(tmp_path: Path) -> None:
    """Where the folder of all studies is a link, too."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "tuning").symlink_to(tmp_path / "disk")
    study = tmp_path / "tuning/comer-fusion-smoke-seed7-01234567"
    assert study_of(study / "smoke-seed7-89abcdef") == f"tuning/{study.name}"
    assert study_of(study / "smoke-seed8-89abcdef") == f"tuning/{study.name}-check"
    assert study_of(Path("results/runs/bttr/smoke-seed7-01234567")) == ""


def test_a_run_is_placed_without_reading_all_other_rows(client: MlflowClient, tmp_path: Path, monkeypatch) -> None:
    """Else a table takes a time that grows with the square of its rows."""
    for number in range(5):
        logged(put_run(tmp_path, f"row{number}"))
    read, search = list[int](), MlflowClient.search_runs

    def counting(*arguments: Any, **options: Any) -> Any:
        found = search(*arguments, **options)
        read.append(len(found))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "search_runs", counting)
        logged(put_run(tmp_path, "bttr", seed=99))
    assert 0 < max(read) <= 3
    (table,) = [run for run in all_runs(client) if PARENT not in run.data.tags]
    assert table.data.metrics["2014/exprate"] == 109.0  # of its best row


@pytest.mark.long
def test_eight_processes_at_once_lose_nothing(store: str, tmp_path: Path) -> None:
    """The workspace has no database, so that all eight try to create it and the table."""
    (tmp_path / "mlflow.db").unlink()
    track_eight(tmp_path, store)
    assert len(all_runs(MlflowClient(store))) == 1 + 4 + 8


def test_a_resumed_run_is_updated(client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=2, finished=False)
    run_id = logged(folder)

    def statuses() -> set[str]:  # of the run and of its table
        return {run.info.status for run in all_runs(client)}

    assert statuses() == {"KILLED"}
    assert logged(folder, running=True) == run_id and statuses() == {"RUNNING"}
    put_epochs(folder, 4)
    put_state(folder, True)
    assert logged(folder) == logged(folder) == run_id and statuses() == {"FINISHED"}
    check_complete(client, run_id, folder)


def test_a_copy_from_another_machine_is_the_same_run(folder: Path, client: MlflowClient, tmp_path: Path) -> None:
    run_id = logged(folder)
    copy = shutil.copytree(folder, tmp_path / "reproduced/bttr/smoke-seed7")
    (copy / "checkpoint.json").unlink()  # as committed runs are
    assert logged(copy) == logged(copy) == run_id
    check_complete(client, run_id, folder)


def test_a_retraining_is_the_same_run_only_with_the_same_losses(folder: Path, client: MlflowClient) -> None:
    run_id = logged(folder)
    put_epochs(folder, 1)  # forced, with the same loss so far
    assert logged(folder, running=True) == run_id
    put_epochs(folder, 3, scale=5.0)
    other = logged(folder)
    assert other != run_id and logged(folder) == other
    check_complete(client, other, folder)
    put_epochs(folder, 3)
    assert logged(folder) == run_id
    check_complete(client, run_id, folder)


@pytest.fixture
def before(folder: Path, tmp_path: Path) -> tuple[str, Path]:
    """What a retraining begins to replace: the id and a copy of the run that was logged."""
    earlier = logged(folder), shutil.copytree(folder, tmp_path / "before")
    (folder / "checkpoint.json").unlink()  # as --force does
    put_epochs(folder, 0)
    put_environment(folder, revision="another")
    return earlier


def test_a_retraining_leaves_the_earlier_run_alone_and_logs_no_results_of_it(before, folder: Path, client) -> None:
    assert tracking.track(folder, running=True) is None  # there is no epoch yet
    process = subprocess.Popen([sys.executable, "-m", tracking.__name__, folder, "60"], stdin=subprocess.PIPE)
    process.communicate(timeout=60)  # stdin closes, as if the training was killed
    put_epochs(folder, 1, scale=5.0)
    assert tracking.track(folder, running=True) is None  # the checkpoint is written after the history
    put_state(folder, False)
    other = logged(folder, running=True)
    assert client.get_run(before[0]).data.tags["git_revision"] == "0123abcd+89abcdef"
    check_complete(client, *before)
    assert artifacts(client, other) == {"config.yaml", "environment.json", "history.jsonl"}
    (half_done,) = [run for run in all_runs(client) if run.info.run_id == other]
    assert half_done.info.status == "RUNNING" and not any("2014" in name for name in half_done.data.metrics)
    assert not any("2014" in name for name in half_done.data.tags) and len(half_done.inputs.dataset_inputs) == 1
    put_state(folder, True)
    put_epochs(folder, 3, scale=5.0)
    assert logged(folder) == other
    check_complete(client, other, folder)


def test_a_retraining_with_the_same_losses_leaves_the_finished_run_alone(before, folder: Path, client) -> None:
    put_epochs(folder, 1)
    put_state(folder, False)
    for running in (True, False):
        assert logged(folder, running=running) == before[0]
        check_complete(client, *before)


def row(client: MlflowClient) -> dict[str, float]:
    (found,) = (run for run in all_runs(client) if "2014/exprate_runs" in run.data.metrics)
    return {name: found.data.metrics[f"2014/exprate{name}"] for name in ("", "_runs")}


def test_a_row_counts_the_newest_scored_training_of_each_seed(client: MlflowClient, tmp_path: Path) -> None:
    folders = [put_run(tmp_path, "bttr", seed=seed) for seed in (0, 10)]  # of ExpRate 10 and 20
    for folder in folders:
        logged(folder)
    put_environment(folders[0], started="2026-01-02T00:00:00+00:00")
    put_epochs(folders[0], 2, scale=5.0)
    (folders[0] / "scores/2014.json").unlink()
    assert logged(folders[0]) and row(client) == {"": 15.0, "_runs": 2}
    put_score(folders[0], "2014", 986, 100, exprate=30.0)
    for folder in folders:
        assert logged(folder) and row(client) == {"": 25.0, "_runs": 2}


def test_a_removed_run_no_longer_counts_in_its_row(client: MlflowClient, tmp_path: Path) -> None:
    folders = [put_run(tmp_path, "bttr", seed=seed) for seed in (0, 10, 50)]  # of ExpRate 10, 20 and 60
    run_ids = [logged(folder) for folder in folders]
    assert row(client) == {"": 30.0, "_runs": 3}
    tracking.remove(folders[2])
    assert row(client) == {"": 15.0, "_runs": 2}
    assert logged(folders[0]) and row(client) == {"": 15.0, "_runs": 2}
    client.delete_run(run_ids[1])  # as the user interface does
    assert logged(folders[1]) and row(client) == {"": 15.0, "_runs": 2}
