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
from tests.helpers.runs import check_complete, import_later, logged, measured, put_epochs, put_run, track_eight, until

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
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server, in place of a SQLite file."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    return server.uri


def test_a_run_with_its_model_goes_through_the_server(server: Server, client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3, finished=False)
    first = logged(folder)
    put_epochs(folder, 120)
    put_state(folder, True)
    (folder / "best.safetensors").write_bytes(b"weights")
    assert logged(folder) == logged(folder) == first
    check_complete(client, first, folder)
    (version,) = client.search_model_versions(f"run_id = '{first}'")
    files = {file.path for file in client.list_logged_model_artifacts(version.tags["model_id"])}
    assert version.name == "crohme-bttr-smoke" and {"MLmodel", "code", "data"} <= files
    (stored,) = server.files.rglob("best.safetensors")
    assert stored.read_bytes() == b"weights" and not (tmp_path / "mlflow.db").exists()


def test_eight_processes_at_once_lose_nothing(store: str, tmp_path: Path) -> None:
    track_eight(tmp_path, store)


def test_live_mirrors_and_measures_through_the_server(client: MlflowClient, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    folder = put_run(tmp_path, "comer-self", finished=False)
    with tracking.live(folder, seconds=0.1):
        (run,) = until(lambda: measured(client, "comer-self"))
        put_state(folder, True)
    run_id = logged(folder)
    assert run_id == run.info.run_id
    check_complete(client, run_id, folder)
    assert client.get_run(run_id).data.metrics["system/cpu_utilization_percentage"] >= 0


@contextmanager
def locked(server: Server) -> Iterator[None]:
    """Another connection holds locks on MLflow's tables."""
    engine = sqlalchemy.create_engine(server.database, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("LOCK TABLE runs, experiments IN ACCESS EXCLUSIVE MODE"))
        yield


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """A stopped server still accepts connections but answers none."""
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)


FAILURES = [(locked, "uri", "Max retries"), (locked, "database", "lock timeout"), (stopped, "uri", "timed out")]


@pytest.mark.parametrize(("failure", "address", "words"), FAILURES)
def test_a_failure_costs_one_warning_and_an_import_catches_up(
    failure, address: str, words: str, server: Server, tmp_path: Path, monkeypatch, capsys
) -> None:
    """The import goes through the server, which alone can reach the artifacts."""
    folder = put_run(tmp_path, f"{failure.__name__}-{address}")
    with monkeypatch.context() as patch, failure(server):
        patch.setattr(tracking_store, "ANSWER_SECONDS", 2)
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        patch.setenv("MLFLOW_TRACKING_URI", getattr(server, address))
        assert tracking.track(folder) is None
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and warning.count("\n") == 1 and words in warning
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 60)  # of a server that has just gone on
    import_later(folder, server.uri)
    assert not capsys.readouterr().err
