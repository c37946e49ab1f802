"""MLflow mirrors run folders: one parent, a child a run, never twice, and no harm when it is broken."""

import json
import logging
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import tracking
from benchmarks.errors import UserError

RECIPES = ("bttr", "bttr-baseline", "comer-self", "comer-cross", "comer-fusion")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables; making one takes seconds, copying it none."""
    results = tmp_path_factory.mktemp("empty")
    assert tracking.track(put_run(results, "bttr"))
    client_of(results).rename_experiment("1", "of the empty store")
    client_of(results).delete_experiment("1")
    return results / "mlflow.db"


@pytest.fixture(autouse=True)
def own_store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "_warned", set())
    shutil.copy(empty_store, tmp_path / "mlflow.db")


def put_run(results: Path, recipe: str, epochs: int = 2) -> Path:
    folder = results / "runs" / recipe / "smoke-seed7-01234567"
    for part in ("scores", "predictions"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    data, training = {"name": "crohme", "digest": "ab" * 32}, {"optimizer": {"lr": 0.08}, "bf16": True}
    config = {"recipe": recipe, "preset": "smoke", "seed": 7, "data": data, "training": training}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    put_history(folder, epochs)
    environment = {"device": "cpu", "versions": {"torch": "2.13.0"}, "revision": "0123abcd"}
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "predictions/2014.zip").write_bytes(b"PK")
    score = {"n": 986, "exact": 100, "exprate": 10.14, "exprate_le1": 12.0, "signature": "ExpRate|set:crohme2014"}
    (folder / "scores/2014.json").write_text(json.dumps(score))
    return folder


def put_history(folder: Path, epochs: int) -> None:
    lines = [{"epoch": e, "step": 10 * e, "loss": 4 / e, "lr": 0.08, "seconds": 1.5} for e in range(1, epochs + 1)]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def client_of(results: Path):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{results / 'mlflow.db'}")


def all_runs(results: Path) -> list:
    client = client_of(results)
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def test_one_parent_and_a_child_a_row_however_often(tmp_path: Path) -> None:
    folders = [put_run(tmp_path, recipe) for recipe in RECIPES]
    (tmp_path / "local").mkdir()
    (tmp_path / "local/table2.csv").write_text("dataset\n")
    first = [tracking.track(folder) for folder in folders]
    again = [tracking.track(folder, tables=tmp_path / "local") for folder in folders]
    assert first == again and None not in first
    runs = all_runs(tmp_path)
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert len(runs) == 6 and {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.params["recipe"] for run in children) == sorted(RECIPES)
    assert [a.path for a in client_of(tmp_path).list_artifacts(parent.info.run_id, "tables")] == ["tables/table2.csv"]


def test_what_a_child_holds(tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3)
    run_id = tracking.track(folder)
    assert run_id
    client = client_of(tmp_path)
    run = client.get_run(run_id)
    assert run.data.params["training.optimizer.lr"] == "0.08" and run.data.params["seed"] == "7"
    assert run.data.metrics["2014.exprate"] == 10.14 and run.data.tags["signature.2014"].startswith("ExpRate|")
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "loss")] == [(1, 4), (2, 2), (3, 4 / 3)]
    assert run.data.tags["env.versions.torch"] == "2.13.0"
    assert run.data.tags["mlflow.source.git.commit"] == "0123abcd" and run.info.status == "FINISHED"
    assert run.inputs and run.inputs.dataset_inputs[0].dataset.digest == "ab" * 16
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert names == {"config.yaml", "environment.json", "history.jsonl", "predictions", "scores"}
    assert (tmp_path / "mlartifacts").is_dir()


def test_a_run_that_goes_on_is_brought_up_to_date(tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=2)
    (folder / "checkpoint.json").write_text('{"finished": false}')
    run_id = tracking.track(folder)
    assert run_id and client_of(tmp_path).get_run(run_id).info.status == "RUNNING"
    put_history(folder, 4)
    (folder / "checkpoint.json").write_text('{"finished": true}')
    assert tracking.track(folder) == tracking.track(folder) == run_id
    client = client_of(tmp_path)
    assert [m.step for m in client.get_metric_history(run_id, "loss")] == [1, 2, 3, 4]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_live_mirrors_while_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    mirrored = threading.Event()
    monkeypatch.setattr(tracking, "track", lambda folder: mirrored.set())
    with tracking.live(put_run(tmp_path, "bttr"), seconds=0.01):
        assert mirrored.wait(10)


def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database" * 100)


def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


def foreign_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuch://store")


def not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)


@pytest.mark.parametrize("trouble", [broken, unreachable, foreign_scheme, not_installed])
def test_trouble_costs_one_warning(trouble, tmp_path: Path, monkeypatch, capsys) -> None:
    folder = put_run(tmp_path, "bttr")
    trouble(tmp_path, monkeypatch)
    assert tracking.track(folder) is None and tracking.track(folder) is None
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and warning.count("\n") == 1


def test_a_locked_database_does_not_hold_the_work_up(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tracking, "LOCK_SECONDS", 0.1)
    folder = put_run(tmp_path, "bttr")
    holder = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert tracking.track(folder) is None and "locked" in capsys.readouterr().err
    holder.close()
    assert tracking.track(folder)


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        tracking.track(tmp_path / "runs/bttr/nothing")
    folder = put_run(tmp_path, "bttr")
    (folder / "history.jsonl").write_text('{"epoch": 1')
    with pytest.raises(UserError, match=r"history\.jsonl: damaged"):
        tracking.track(folder)


def test_mlflow_is_quiet(tmp_path: Path) -> None:
    tracking.track(put_run(tmp_path, "bttr"))
    assert logging.getLogger("mlflow").level >= logging.WARNING
