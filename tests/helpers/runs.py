"""Made-up run folders, and the contents that a tracking store must have for them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient

from hmerbench.benchmarks.tracking import track as tracking
from tests.helpers.fork_server import forked
from tests.helpers.made_up import put_environment, put_history, put_score, put_state

PARENT = "mlflow.parentRunId"
METRICS = ("step", "loss", "lr", "seconds", "images_per_s")  # of training
ARTIFACTS = {"config.yaml", "environment.json", "history.jsonl"}
ARTIFACTS |= {"predictions", "predictions/2014.tsv", "scores", "scores/2014.json"}


def put_run(results: Path, recipe: str, epochs: int = 2, seed: int = 7, finished: bool = True) -> Path:
    folder = results / "runs" / recipe / f"smoke-seed{seed}-01234567"
    for part in ("scores", "predictions"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    data, training = {"name": "crohme", "digest": "ab" * 32}, {"optimizer": {"lr": 0.08}, "bf16": True}
    config = {"recipe": recipe, "preset": "smoke", "seed": seed, "data": data, "training": training, "select": "2014"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    put_environment(folder)
    (folder / "predictions/2014.tsv").write_text("id\ttokens\n")
    put_score(folder, "2014", 986, 100, exprate=10.0 + seed)
    put_epochs(folder, epochs)
    put_state(folder, finished)
    return folder


def put_epochs(folder: Path, epochs: int, scale: float = 4.0) -> None:
    put_history(folder, [{"loss": scale / epoch} for epoch in range(1, epochs + 1)])


def address_in(results: Path) -> str:
    """Of the store of a workspace."""
    return f"sqlite:///{results / 'mlflow.db'}"


def logged(folder: Path, **options: Any) -> str:
    run_id = tracking.track(folder, **options)
    assert run_id
    return run_id


def import_later(folder: Path, uri: str) -> None:
    """Assert that the folder can be imported in full once the failure of its store is over."""
    tracking._left_alone_until.clear()
    run_id = logged(folder)
    assert logged(folder) == run_id
    check_complete(MlflowClient(uri), run_id, folder)


def all_runs(client: MlflowClient) -> list[Any]:
    return list(client.search_runs([e.experiment_id for e in client.search_experiments()]))


def measured(client: MlflowClient, recipe: str) -> list[Any]:
    """The runs of a recipe that have a metric of the system."""
    runs = [run for run in all_runs(client) if run.data.tags.get("recipe") == recipe]
    return [run for run in runs if "system/cpu_utilization_percentage" in run.data.metrics]


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, and return what it found."""
    for _ in range(400):
        if found := condition():
            return found
        time.sleep(0.3)  # a question may cost a tenth of it
    raise AssertionError("the condition did not hold within two minutes")


def artifacts(client: MlflowClient, run_id: str, path: str | None = None) -> set[str]:
    found = set()
    for entry in client.list_artifacts(run_id, path):
        found |= {entry.path} | (artifacts(client, run_id, entry.path) if entry.is_dir else set())
    return found


def track_eight(results: Path, uri: str) -> None:
    """Track two seeds of four rows, each in a process of its own, and assert that all are complete in one tree."""
    folders = [put_run(results, f"row{k % 4}", epochs=60, seed=k) for k in range(8)]
    with forked().Pool(len(folders), _use, (uri,)) as pool:
        run_ids = pool.map(tracking.track, folders, chunksize=1)
    client = MlflowClient(uri)
    assert len(set(run_ids)) == 8
    for run_id, folder in zip(run_ids, folders, strict=True):
        check_complete(client, run_id, folder)
    runs = {run.info.run_id: run for run in all_runs(client)}
    rows = {runs[run_id].data.tags[PARENT] for run_id in run_ids}
    assert len(rows) == 4 and len({runs[row].data.tags[PARENT] for row in rows}) == 1


def _use(uri: str) -> None:
    """Set the address in the worker, as the fork server may have the environment of an earlier test."""
    os.environ["MLFLOW_TRACKING_URI"] = uri


def check_complete(client: MlflowClient, run_id: str, folder: Path) -> None:
    """Assert that the store has everything in the folder exactly once: points, parameters, inputs and files."""
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for name in METRICS:
        points = client.get_metric_history(run_id, f"training/{name}")
        assert sorted((p.step, p.value) for p in points) == [(line["epoch"], line[name]) for line in history]
    run, score = client.get_run(run_id), json.loads((folder / "scores/2014.json").read_text())
    rates = ("n", "exprate", "exprate_le1", "exprate_le2", "exprate_le3", "structure_rate")
    for name in rates:
        assert [p.value for p in client.get_metric_history(run_id, f"2014/{name}")] == [score[name]]
    own = {name for name in run.data.metrics if not name.startswith("system/")}
    assert own == {*(f"training/{name}" for name in METRICS), *(f"2014/{name}" for name in rates)}
    assert set(run.data.params) == {
        *("recipe", "preset", "seed", "data.name", "data.digest", "select"),
        *("training.optimizer.lr", "training.bf16"),
    }
    assert run.inputs and len(run.inputs.dataset_inputs) == 2
    assert {name for name in artifacts(client, run_id) if not name.startswith("model")} == ARTIFACTS
    assert run.info.status == "FINISHED"
