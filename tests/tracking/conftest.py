"""A run folder, and a store that no other test has."""

import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.store.db import utils

from hmerbench.benchmarks.tracking import logged_model, track
from tests.helpers.runs import address_in, put_run

newest_schema = cache(utils._get_latest_schema_revision)  # of the installed MLflow: reads all its migrations


@pytest.fixture(autouse=True)
def no_earlier_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "_warned", set())
    monkeypatch.setattr(track, "_left_alone_until", {})


@pytest.fixture(autouse=True)
def store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the store in use, a SQLite file; a model in it holds one empty file, not the whole program."""
    program = tmp_path / "program/__init__.py"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setattr(logged_model, "hmerbench", SimpleNamespace(__file__=str(program)))
    monkeypatch.setattr(utils, "_get_latest_schema_revision", newest_schema)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return address_in(tmp_path)


@pytest.fixture
def client(store: str) -> MlflowClient:
    return MlflowClient(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run."""
    return put_run(tmp_path, "bttr", epochs=3)
