"""Tracking through a real `mlflow server` with an artifact folder, on a real PostgreSQL server."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
import sqlalchemy
from mlflow import MlflowClient

from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking import tracking_store
from tests.helpers.database import Postgres
from tests.helpers.made_up import put_state
from tests.helpers.runs import all_runs, check_complete, put_epochs, put_run, track_eight

pytestmark = pytest.mark.long


@dataclass
class Server:
    uri: str
    database: str
    files: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = tmp_path_factory.mktemp("artifacts")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    database = postgres.url("mlflow")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(files / "store")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(files / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, files / "log")
        yield Server(f"http://127.0.0.1:{port}", database, files / "store", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            return urlopen(url, timeout=1).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    raise AssertionError(f"the server did not come up: {log.read_text()}")


@pytest.fixture(autouse=True)
def to_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setattr(tracking, "_warned", set())
    monkeypatch.setattr(tracking, "_left_alone_until", {})
    return MlflowClient(server.uri)


def test_a_run_with_its_model_goes_through_the_server(server: Server, to_server: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3, finished=False)
    first = tracking.track(folder)
    put_epochs(folder, 120)
    put_state(folder, True)
    (folder / "best.safetensors").write_bytes(b"weights")
    run_id = tracking.track(folder)
    assert run_id and run_id == first == tracking.track(folder)
    check_complete(to_server, run_id, folder)
    (version,) = to_server.search_model_versions(f"run_id = '{run_id}'")
    files = {file.path for file in to_server.list_logged_model_artifacts(version.tags["model_id"])}
    assert version.name == "crohme-bttr-smoke" and {"MLmodel", "code", "data"} <= files
    (stored,) = server.files.rglob("best.safetensors")
    assert stored.read_bytes() == b"weights" and not (tmp_path / "mlflow.db").exists()


def test_eight_processes_at_once_lose_nothing(server: Server, tmp_path: Path) -> None:
    track_eight(tmp_path, server.uri)


def test_live_mirrors_and_measures_through_the_server(to_server: MlflowClient, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    folder = put_run(tmp_path, "comer-self", finished=False)
    with tracking.live(folder, seconds=0.1):
        for _ in range(400):
            found = [run for run in all_runs(to_server) if run.data.tags.get("recipe") == "comer-self"]
            if found and "system/cpu_utilization_percentage" in found[0].data.metrics:
                break
            time.sleep(0.3)
        put_state(folder, True)
    run_id = tracking.track(folder)
    assert run_id and run_id == found[0].info.run_id
    check_complete(to_server, run_id, folder)
    assert to_server.get_run(run_id).data.metrics["system/cpu_utilization_percentage"] >= 0


def test_a_database_locked_behind_the_server_is_one_warning(
    server: Server, to_server: MlflowClient, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = put_run(tmp_path, "comer-cross")
    with locked(server.database):
        assert tracking.track(folder) is None
    import_later(folder, to_server, monkeypatch, capsys, "Max retries")


def test_a_database_locked_is_one_warning_without_a_server(
    server: Server, to_server: MlflowClient, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.database)
    folder = put_run(tmp_path, "bttr-baseline")
    with locked(server.database):
        assert tracking.track(folder) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)  # only the server can reach the artifacts
    import_later(folder, to_server, monkeypatch, capsys, "lock timeout")


def test_a_server_stopped_and_gone_is_one_warning(
    server: Server, to_server: MlflowClient, tmp_path: Path, monkeypatch, capsys
) -> None:
    """A stopped server still accepts connections but answers none."""
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.5)
    folder = put_run(tmp_path, "comer-fusion")
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        assert tracking.track(folder) is None
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 60)
    import_later(folder, to_server, monkeypatch, capsys, "timed out")


@contextmanager
def locked(database: str) -> Iterator[None]:
    """Another connection holds locks on MLflow's tables."""
    engine = sqlalchemy.create_engine(database, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("LOCK TABLE runs, experiments IN ACCESS EXCLUSIVE MODE"))
        yield


def import_later(folder: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, capsys, words: str) -> None:
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and warning.count("\n") == 1 and words in warning
    monkeypatch.setattr(tracking, "_left_alone_until", {})
    run_id = tracking.track(folder)
    assert run_id and run_id == tracking.track(folder)
    check_complete(client, run_id, folder)
    assert not capsys.readouterr().err
