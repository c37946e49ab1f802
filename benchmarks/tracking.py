"""MLflow as a mirror of run folders. The folder is the truth: trouble with MLflow costs a warning, no work.

One parent run stands for a table (an archive at a preset), one child for every recipe and seed. A child is
found again by its tag `run_key`, so mirroring a folder twice, or a run that went on, brings the same MLflow
run up to date.
"""

import json
import logging
import math
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml
from rich.console import Console

from benchmarks.errors import UserError

# Nothing leaves this machine but to the tracking server asked for, and that may not hold the work up.
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}
ARTIFACTS = ("config.yaml", "environment.json", "history.jsonl", "predictions", "scores")
SCORE_METRICS = (
    "exprate",
    "exprate_le1",
    "exprate_le2",
    "exprate_le3",
    "structure_rate",
    "token_exprate",
    "n",
)
LOCK_SECONDS = 5

console = Console(stderr=True)
_warned: set[str] = set()


def track(folder: Path, tables: Path | None = None) -> str | None:
    """Mirrors a run folder (and its tables); returns the MLflow run id, None where MLflow was no help.

    Raises UserError when `folder` is not a run folder.
    """
    run = _read(folder)
    uri = tracking_uri(folder)
    try:
        return Mirror(uri, _workspace(folder)).put(run, tables)
    except ImportError:
        _warn("mlflow is not installed, so runs are not logged (the run folders hold everything)")
    except Exception as error:  # a mirror must never stop the work
        words = " ".join(str(error).split())[:160] or type(error).__name__
        _warn(f"MLflow at {uri} is not usable ({words}); `python -m benchmarks track` can log this run later")
    return None


@contextmanager
def live(folder: Path, seconds: float = 30) -> Iterator[None]:
    """Mirrors a run folder now and then, in the background, while its training goes on."""
    over = threading.Event()

    def mirror() -> None:
        while not over.wait(seconds):
            if (folder / "history.jsonl").exists():
                with suppress(UserError):  # told when the run is mirrored in the end
                    track(folder)

    thread = threading.Thread(target=mirror, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=30)


def tracking_uri(folder: Path) -> str:
    """MLFLOW_TRACKING_URI, else the SQLite file of the workspace the run folder lies in."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_workspace(folder).resolve() / 'mlflow.db'}"


def _workspace(folder: Path) -> Path:
    """WORKSPACE/{runs,reproduced}/recipe/name is where run folders lie."""
    return folder.resolve().parents[2]


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        console.print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _read(folder: Path) -> dict[str, Any]:
    """A run folder as plain data. What a later stage has yet to write is left out."""
    run: dict[str, Any] = {"folder": folder}
    try:
        run["config"] = yaml.safe_load((folder / "config.yaml").read_text())
        _ = [run["config"][key] for key in ("recipe", "preset", "seed")], run["config"]["data"]["name"]
    except (OSError, TypeError, KeyError, yaml.YAMLError):
        raise UserError(f"{folder}: not a run folder (no readable config.yaml in it)") from None
    path = folder
    try:
        path = folder / "history.jsonl"
        run["history"] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        path = folder / "environment.json"
        run["environment"] = json.loads(path.read_text()) if path.exists() else {}
        path = folder / "checkpoint.json"  # absent from a committed run, which is finished
        run["finished"] = not path.exists() or bool(json.loads(path.read_text()).get("finished"))
        run["scores"] = {}
        for path in sorted(folder.glob("scores/*.json")):
            run["scores"][path.stem] = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); delete it and run that stage again") from None
    return run


class Mirror:
    """An MLflow tracking store, opened."""

    def __init__(self, uri: str, workspace: Path):
        _check_reachable(uri)
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # slow to import, and not needed to train

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)

        self.client = MlflowClient(tracking_uri=uri)
        self.uri, self.workspace = uri, workspace

    def put(self, run: Mapping[str, Any], tables: Path | None) -> str:
        config, folder = run["config"], run["folder"]
        data = config["data"]["name"]
        experiment = self._experiment("hmerbench" if data == "crohme" else f"hmerbench {data} (not CROHME)")
        table_key = f"table/{data}-{config['data'].get('digest', '')[:8]}/{config['preset']}"
        parent = self._run(experiment, table_key, f"table 2, {data}, {config['preset']}", {})
        key = f"{config['recipe']}/{folder.name}"
        child = self._run(experiment, key, key, {"mlflow.parentRunId": parent.info.run_id})
        self._log(child, run)
        if tables is not None and tables.is_dir():
            for path in sorted(tables.glob("table*.*")):
                self.client.log_artifact(parent.info.run_id, str(path), "tables")
        for mlrun in (child, parent):
            self.client.update_run(mlrun.info.run_id, "FINISHED" if run["finished"] else "RUNNING")
        return child.info.run_id

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        local = self.uri.startswith("sqlite:")  # a server knows where its artifacts belong
        return self.client.create_experiment(name, (self.workspace / "mlartifacts").as_uri() if local else None)

    def _run(self, experiment: str, key: str, name: str, tags: dict[str, str]) -> Any:
        found = self.client.search_runs([experiment], f"tags.run_key = '{key}'", max_results=1)
        if found:
            return found[0]
        return self.client.create_run(experiment, run_name=name, tags={"run_key": key, **tags})

    def _log(self, mlrun: Any, run: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag

        run_id, known = mlrun.info.run_id, mlrun.data
        params = {name: str(value) for name, value in _flat(run["config"]) if name not in known.params}
        facts = dict(_flat(run["environment"], "env."))
        tags = {name: str(value) for name, value in facts.items()} | {"run_folder": str(run["folder"])}
        tags["mlflow.source.git.commit"] = str(run["environment"].get("revision"))
        history = [entry for entry in run["history"] if entry["epoch"] > int(known.tags.get("epochs_logged", 0))]
        metrics = [
            Metric(name, float(value), _milliseconds(run, entry), entry["epoch"])
            for entry in history
            for name, value in entry.items()
            if name != "epoch" and isinstance(value, int | float) and math.isfinite(value)
        ]
        if history:
            tags["epochs_logged"] = str(history[-1]["epoch"])
        for split, score in run["scores"].items():
            tags[f"signature.{split}"] = str(score.get("signature"))
            new = {f"{split}.{name}": score[name] for name in SCORE_METRICS if score.get(name) is not None}
            metrics += [Metric(k, float(v), _milliseconds(run), 0) for k, v in new.items() if known.metrics.get(k) != v]
        self.client.log_batch(run_id, params=[Param(k, v[:6000]) for k, v in params.items()])
        self.client.log_batch(run_id, tags=[RunTag(k, v[:5000]) for k, v in tags.items()])
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics=metrics[start : start + 1000])
        data = run["config"]["data"]
        source = json.dumps({"digest": data.get("digest", "")})
        dataset = Dataset(data["name"] or "unknown", data.get("digest", "")[:32] or "unknown", "local", source)
        self.client.log_inputs(run_id, [DatasetInput(dataset)])
        for name in ARTIFACTS:
            path = run["folder"] / name
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), name)
            elif path.exists():
                self.client.log_artifact(run_id, str(path))


def _check_reachable(uri: str) -> None:
    """Fails at once where MLflow would retry for minutes: a database broken or locked, a dead host."""
    parsed = urlparse(uri)
    if parsed.scheme == "sqlite" and len(parsed.path) > 1:
        path = Path(parsed.path[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("PRAGMA schema_version").fetchone()
            database.execute("ROLLBACK")
    elif parsed.scheme in ("http", "https"):
        port = parsed.port or {"http": 80, "https": 443}[parsed.scheme]
        socket.create_connection((parsed.hostname or "", port), timeout=LOCK_SECONDS).close()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """training: {lr: 1} -> training.lr = 1"""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _milliseconds(run: Mapping[str, Any], entry: Mapping[str, Any] | None = None) -> int:
    """The time of a metric: of its file, as history has none; the same whenever it is mirrored."""
    path = run["folder"] / ("history.jsonl" if entry else "config.yaml")
    return int(path.stat().st_mtime * 1000)
