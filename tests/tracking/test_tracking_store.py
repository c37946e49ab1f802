"""The store in use: its artifacts are found again, its user interface opens, and its address keeps its secrets."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

from hmerbench.benchmarks import errors
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking import tracking_store
from tests.helpers.runs import address_in, logged, put_run, until


def moved_and_its_place_taken(results: Path, to: Path) -> None:
    results.rename(to)
    results.write_text("not a folder")


@pytest.mark.parametrize("change", [Path.rename, moved_and_its_place_taken, shutil.copytree])
@pytest.mark.parametrize("name", ["B", "C# für später 100%"])
def test_artifacts_lie_beside_a_database_that_was_moved_or_copied(change, name: str, empty_store, tmp_path) -> None:
    old, new = tmp_path / "A", tmp_path / name
    folder = put_run(old, "bttr")
    shutil.copy(empty_store, old)
    (folder / "best.safetensors").write_bytes(b"weights")
    first = logged(folder)
    change(old, new)
    _artifact_repos_cache.clear()  # as in another process
    before = sorted(old.rglob("*")) if old.is_dir() else None
    again, second = logged(new / folder.relative_to(old)), logged(put_run(new, "comer-self"))
    client = MlflowClient(address_in(new))
    assert again == first and (sorted(old.rglob("*")) if old.is_dir() else None) == before
    for run_id in (first, second):
        place = Path(unquote(urlparse(client.get_run(run_id).info.artifact_uri).path))
        assert place.is_relative_to(new / "mlartifacts") and (place / "scores/2014.json").exists()
    (version,) = client.search_model_versions()
    uri = client.get_model_version_download_uri(version.name, version.version)
    assert (Path(download_artifacts(uri, tracking_uri=address_in(new))) / "MLmodel").exists()


def test_artifacts_stay_where_they_are_if_the_database_alone_was_moved(
    empty_store, tmp_path, monkeypatch, capsys
) -> None:
    """One line says so, until they follow it."""
    a, b = tmp_path / "A", tmp_path / "B"
    folder = put_run(a, "bttr")
    shutil.copy(empty_store, a)
    logged(folder)
    b.mkdir()
    (a / "mlflow.db").rename(b / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address_in(b))
    for recipe in ("comer-self", "comer-cross"):
        logged(put_run(a, recipe))
    assert not (b / "mlartifacts").exists() and len(list((a / "mlartifacts").rglob("2014.json"))) == 3
    (line,) = capsys.readouterr().err.splitlines()
    place = (a / "mlartifacts").as_uri()
    assert line == f"warning: {b / 'mlflow.db'}: artifacts go to {place}; move that folder beside it"
    (a / "mlartifacts").rename(b / "mlartifacts")
    _artifact_repos_cache.clear()  # as in another process
    tracking._warned.clear()
    logged(folder)
    assert not (a / "mlartifacts").exists() and not capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who listens where on Linux only")
def test_the_user_interface_is_on_the_loopback_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "hmerbench", "mlflow-ui", "--results", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.stdout and f"http://127.0.0.1:{port}".encode() in process.stdout.readline()
        assert until(lambda: listening(port)) == {"0100007F"}  # 127.0.0.1, as /proc writes it
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listening(port: int) -> set[str]:
    """The local addresses on which this machine listens on a port."""
    rows = [row.split() for file in ("tcp", "tcp6") for row in Path("/proc/net", file).read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


@pytest.fixture
def became(store: str, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that this process became, were it not for the test."""
    lines: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, line: lines.append([program, *line]))
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    return lines


def test_the_user_interface_opens_the_store_in_use(became, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@db/mlflow")
    tracking_store.browse(tmp_path, 5000)
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == "postgresql://me:secret@db/mlflow"
    assert "secret" not in str(became) + capsys.readouterr().out


def test_the_user_interface_finds_the_embedded_set_and_reports_an_empty_workspace(
    became, tmp_path, monkeypatch, capsys
) -> None:
    embedded = tmp_path / "local/embedded"
    embedded.mkdir(parents=True)
    (tmp_path / "mlflow.db").rename(embedded / "mlflow.db")
    tracking_store.browse(tmp_path, 5000)
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == address_in(embedded)
    assert "http://127.0.0.1:5000 " in capsys.readouterr().out
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address_in(embedded))
    logged(put_run(tmp_path, "bttr"))
    tracking_store.browse(tmp_path, 5000)
    assert "/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=" in capsys.readouterr().out
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UserError, match="nothing was logged yet"):
        tracking_store.browse(tmp_path / "local", 5000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    with pytest.raises(UserError, match=r"open https://mlflow\.example"):
        tracking_store.browse(tmp_path, 5000)


def test_a_folder_with_a_short_path_has_a_workspace() -> None:
    """A mount in a container, say."""
    assert tracking_store.tracking_uri(Path("/mnt/run")) == "sqlite:////mlflow.db"


SECRET = {  # address: what is shown of it
    "postgresql://me:secret@db:5432/runs": "postgresql://db:5432/runs",
    "postgresql://db/runs?password=secret": "postgresql://db/runs",
    "http://secret@mlflow.example/x": "http://mlflow.example/x",
    "https://mlflow.example/?token=se@secret": "https://…",
    "postgresql://me:se/secret@t?e@db/x": "postgresql://…",
    "postgresql://me:se#secret@db/x": "postgresql://…",
    "postgresql://me:secret": "postgresql://…",
    "postgresql:me:secret@db/x": "…",
    "http://[secret/": "http://…",
    "nosuch://me:secret@db/x": "nosuch://db/x",
}


@pytest.mark.parametrize("uri", SECRET)
def test_no_secret_of_an_address_is_printed(uri: str, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    def unusable(_: str) -> None:
        raise ValueError(f"{uri}: port 'secret' is no number")

    monkeypatch.setattr(tracking, "reach", unusable)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking_store.store(tmp_path) == SECRET[uri]
    assert errors.reason(ValueError("connection refused"), uri) == "connection refused"
    assert tracking.track(folder) is None
    printed = capsys.readouterr().err
    assert "is not usable (ValueError)" in printed and "secret" not in printed


@pytest.mark.parametrize("uri", SECRET)
def test_the_user_interface_prints_no_secret(uri: str, became, tmp_path: Path, monkeypatch, capsys) -> None:
    """MLflow would print an address that it does not understand, so it never gets that."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    said = ""
    try:
        tracking_store.browse(tmp_path, 5000)
    except UserError as error:
        said = str(error)
    assert bool(became) == SECRET[uri].startswith("postgresql://db")
    assert SECRET[uri] in (printed := said + capsys.readouterr().out) and "secret" not in printed
