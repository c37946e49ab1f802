"""MLflow mirrors run folders: one tree, each run once, and failures are harmless."""

import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.data import get_source
from mlflow.store.db import utils
from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

import hmerbench
from hmerbench.benchmarks import errors, files
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.tracking import logged_model, tracking_store
from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking.mirror import study_of
from tests.helpers.made_up import put_environment, put_score, put_state
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.runs import PARENT, all_runs, artifacts, check_complete, client_of, put_epochs, put_run, track_eight

RECIPES = ("bttr", "bttr-baseline", "comer-self", "comer-cross", "comer-fusion")
pytestmark = pytest.mark.long
newest_schema = cache(utils._get_latest_schema_revision)  # of the installed MLflow: reads all its migrations


@pytest.fixture(autouse=True)
def own_store(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And models whose copy of the program is one empty file in place of hundreds."""
    program = tmp_path / "program/__init__.py"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setattr(logged_model, "hmerbench", SimpleNamespace(__file__=str(program)))
    monkeypatch.setattr(utils, "_get_latest_schema_revision", newest_schema)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "_warned", set())
    monkeypatch.setattr(tracking, "_left_alone_until", {})
    shutil.copy(empty_store, tmp_path / "mlflow.db")


@pytest.fixture
def client(own_store: None, tmp_path: Path) -> MlflowClient:
    return client_of(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run."""
    return put_run(tmp_path, "bttr")


def logged(folder: Path, **options) -> str:
    run_id = tracking.track(folder, **options)
    assert run_id
    return run_id


# ------------------------------------------------------------------------------------------------------- the tree


def test_five_rows_of_one_seed_are_one_table_and_five_runs(client: MlflowClient, tmp_path: Path) -> None:
    folders = [put_run(tmp_path, recipe) for recipe in RECIPES]
    (tmp_path / "local").mkdir()
    (tmp_path / "local/table2.csv").write_text("dataset\n")
    first = [logged(folder) for folder in folders]
    again = [logged(folder, tables=tmp_path / "local") for folder in folders]
    assert first == again
    runs = all_runs(client)
    (table,) = [run for run in runs if PARENT not in run.data.tags]
    children = [run for run in runs if run.info.run_id != table.info.run_id]
    assert len(runs) == 6 and {run.data.tags[PARENT] for run in children} == {table.info.run_id}
    assert sorted(run.data.params["recipe"] for run in children) == sorted(RECIPES)
    assert [a.path for a in client.list_artifacts(table.info.run_id, "tables")] == ["tables/table2.csv"]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_second_seed_creates_the_row_in_between(client: MlflowClient, tmp_path: Path) -> None:
    other = logged(put_run(tmp_path, "bttr"))
    seeds = [logged(put_run(tmp_path, "comer-fusion", seed=seed)) for seed in (7, 8)]
    assert len(all_runs(client)) == 5
    above = {client.get_run(run_id).data.tags[PARENT] for run_id in seeds}
    row = client.get_run(above.pop())
    assert not above and row.info.run_name == "comer-fusion"
    table = client.get_run(row.data.tags[PARENT])
    assert PARENT not in table.data.tags and client.get_run(other).data.tags[PARENT] == table.info.run_id
    assert row.data.metrics == pytest.approx(
        {"2014/exprate": 17.5, "2014/exprate_std": 0.5**0.5, "2014/exprate_runs": 2}
    )
    assert table.data.metrics == {"2014/exprate": 17.5}  # the mean of its best row
    points = client.get_metric_history(table.info.run_id, "2014/exprate")
    assert [point.value for point in points] == [17.0, 17.5]
    logged(put_run(tmp_path, "comer-fusion", seed=8))  # changes nothing
    assert len(all_runs(client)) == 5 and len(client.get_metric_history(row.info.run_id, "2014/exprate")) == 1


LR = "lr-smoke-seed7-01234567"  # a study


def test_trials_are_children_of_their_study(client: MlflowClient, tmp_path: Path) -> None:
    folders = [tmp_path / "tuning" / LR / f"smoke-seed7-{number}" for number in range(2)]
    for seed, folder in enumerate(folders):
        shutil.copytree(put_run(tmp_path, "trial", seed=seed), folder)
    run_ids = [logged(folder, name=f"trial {n}") for n, folder in enumerate(folders)]
    below = [client.get_run(run_id) for run_id in run_ids]
    (above,) = {run.data.tags[PARENT] for run in below}
    assert len(all_runs(client)) == 3 and [run.info.run_name for run in below] == ["trial 0", "trial 1"]
    assert (client.get_run(above).info.run_name, client.get_run(above).info.status) == (f"tuning/{LR}", "FINISHED")
    tracking.conclude(folders[0], "crohme", "KILLED")
    tracking.conclude(tmp_path / "tuning/other-smoke-seed7-0/smoke-seed7-0", "crohme", "FINISHED")  # never logged
    logged(folders[0])  # by hand, when nothing runs
    assert len(all_runs(client)) == 3 and client.get_run(above).info.status == "KILLED"


def test_studies_of_several_spaces_each_have_their_default_trial(client: MlflowClient, tmp_path: Path) -> None:
    """Which is the same training, to the same losses."""
    trial, studies = put_run(tmp_path, "trial"), (f"first-{LR}", f"second-{LR}")
    folders = [shutil.copytree(trial, tmp_path / "tuning" / study / trial.name) for study in studies]
    first, second = (logged(folder, name="trial 0") for folder in folders)
    assert first != second and [logged(folder) for folder in folders] == [first, second]
    above = [client.get_run(client.get_run(id_).data.tags[PARENT]).info.run_name for id_ in (first, second)]
    assert above == [f"tuning/{study}" for study in studies]


# ------------------------------------------------------------------------------------------------- what a run holds


def test_the_contents_of_a_run(client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=120)  # more than one batch
    run_id = logged(folder)
    check_complete(client, run_id, folder)
    run = client.get_run(run_id)
    assert run.info.end_time
    assert run.data.params["training.optimizer.lr"] == "0.08" and run.data.metrics["2014/exprate"] == 17
    tags = run.data.tags
    assert tags["git_revision"] == "0123abcd+89abcdef" and tags["mlflow.source.git.commit"] == "0123abcd"
    assert tags["mlflow.source.git.dirty"] == "true"
    assert tags["preset"] == "smoke" and tags["signature.2014"].startswith("ExpRate|")
    assert tags["env.versions.torch"] == "2.13.0" and run.info.end_time - run.info.start_time == 180_000
    assert (tmp_path / "mlartifacts").is_dir()


def test_datasets_are_inputs_with_their_contexts(folder: Path, client: MlflowClient) -> None:
    run = client.get_run(logged(folder))
    assert run.inputs
    inputs = {i.dataset.name: {t.key: t.value for t in i.tags} for i in run.inputs.dataset_inputs}
    assert inputs == {
        "crohme-train": {"mlflow.data.context": "training"},
        "crohme-2014": {"mlflow.data.context": "testing", "expressions": "986", "selects_epoch": "true"},
    }
    digests = {i.dataset.digest for i in run.inputs.dataset_inputs}
    assert len(digests) == 2  # of other expressions, another one
    for given in run.inputs.dataset_inputs:
        assert get_source(given.dataset).to_dict()["url"].startswith("https://")  # MLflow understands where from


def test_the_hashes_are_those_of_the_configuration(tmp_path: Path) -> None:
    hashes = set()
    for seed in (7, 8):
        config = resolve("comer-fusion", "small", seed)
        run = RunFolder(tmp_path / str(seed), config)
        run.write("config.yaml", config.to_yaml())
        assert run.digest == config.digest
        hashes.add(run.recipe_hash)
    assert len(hashes) == 1


def test_weights_are_an_immutable_model_version(client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", finished=False)
    (folder / "best.safetensors").write_bytes(b"the first weights")
    run_id = logged(folder)
    assert not client.search_registered_models()  # they may still change
    put_state(folder, True)
    assert logged(folder) == logged(folder) == run_id
    (folder / "best.safetensors").write_bytes(b"others")
    logged(folder)
    versions = sorted(client.search_model_versions("name = 'crohme-bttr-smoke'"), key=lambda v: int(v.version))
    assert len(versions) == 2 and {v.run_id for v in versions} == {run_id}
    contents = []
    for version in versions:
        uri = client.get_model_version_download_uri(version.name, version.version)
        place = Path(download_artifacts(uri, tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}"))
        contents.append((place / "data/run/best.safetensors").read_bytes())
        assert not [path for path in place.rglob("*") if path.suffix == ".pkl"]
    assert contents == [b"the first weights", b"others"]
    tags = versions[0].tags
    assert tags["best_epoch"] == "2" and tags["seed"] == "7" and tags["signature.2014"].startswith("ExpRate|")
    assert len(tags["sha256"]) == 64 and tags["config_digest"] == client.get_run(run_id).data.tags["config_digest"]


ALONE = """
import sys, mlflow, numpy, pandas, PIL.Image
mlflow.set_tracking_uri(sys.argv[1])
model, path = mlflow.pyfunc.load_model("models:/crohme-comer-fusion-medium/1"), sys.argv[2]
gray = numpy.asarray(PIL.Image.open(path).convert("L"))
forms = path, [path, path], pandas.DataFrame({"image": [path]}), gray, [gray]
print(*{latex for form in forms for latex in model.predict(form).latex}, sys.modules["hmerbench"].__file__, sep="\\n")
"""


def test_mlflow_alone_loads_a_logged_model_and_reads_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, by the program that was stored with the model, not by this one."""
    monkeypatch.setattr(logged_model, "hmerbench", hmerbench)  # the whole
    folder = shutil.copytree(MEDIUM, tmp_path / "runs/comer-fusion/medium-seed7")
    run_id = logged(folder)
    (tmp_path / "elsewhere").mkdir()
    line = [sys.executable, "-c", ALONE, f"sqlite:///{tmp_path / 'mlflow.db'}", ROOT / "results/figures/circle.png"]
    done = subprocess.run(line, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=300)
    latex, program = done.stdout.splitlines()
    assert latex == "x ^ { 2 } + y ^ { 2 } = r ^ { 2 }" and tmp_path / "mlartifacts" in Path(program).parents
    client = client_of(tmp_path)
    outputs = client.get_run(run_id).outputs
    assert outputs
    (output,) = outputs.model_outputs
    model, scores = client.get_logged_model(output.model_id), RunFolder(folder).scores
    rates = {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics or []}
    for split, score in scores.items():
        assert rates[f"{split}/exprate"] == (score.exprate, f"crohme-{split}")
    assert model.source_run_id == run_id and model.params["d_model"] == "128" and model.tags["seed"] == "7"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["recognize"]]
    (requirements,) = (tmp_path / "mlartifacts/models").rglob("requirements.txt")
    pinned = {line.partition("==")[0] for line in requirements.read_text().splitlines() if "==" in line}
    assert pinned >= {re.split("[^\\w-]", line)[0] for line in needed} | {"mlflow"}
    assert logged(folder) == run_id and len(client.search_logged_models([model.experiment_id])) == 1


def test_a_model_whose_files_are_lost_is_logged_again(folder: Path, tmp_path: Path) -> None:
    (folder / "best.safetensors").write_bytes(b"weights")
    logged(folder)
    shutil.rmtree(tmp_path / "mlartifacts/models")
    logged(folder)
    (kept,) = (tmp_path / "mlartifacts/models").rglob("best.safetensors")
    assert kept.read_bytes() == b"weights" and len(client_of(tmp_path).search_model_versions()) == 1


def test_what_the_user_interface_shows_of_a_run(folder: Path, client: MlflowClient) -> None:
    run = client.get_run(logged(folder))
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(experiment.tags["mlflow.sharedViewState.hmerbench"])
    assert view["selectedColumns"] == ["metrics.`2014/exprate`"]
    tags = run.data.tags
    assert tags["mlflow.user"] and tags["mlflow.source.git.dirty"] == "true"
    assert tags["mlflow.source.name"] == "hmerbench train --recipe bttr --preset smoke --seed 7"
    score = RunFolder(folder).scores["2014"]
    note = tags["mlflow.note.content"]
    assert f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/scores/2014.json" in note
    assert f"`{score}`" in note
    client.set_tag(run.info.run_id, "mlflow.note.content", "my own words")
    logged(folder)
    assert client.get_run(run.info.run_id).data.tags["mlflow.note.content"] == "my own words"


def test_a_run_is_placed_without_reading_all_other_rows(tmp_path: Path, monkeypatch) -> None:
    """Else a table takes a time that grows with the square of its rows."""
    for number in range(5):
        logged(put_run(tmp_path, f"row{number}"))
    read, search = list[int](), MlflowClient.search_runs

    def counting(*arguments: Any, **options: Any) -> Any:
        found = search(*arguments, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(MlflowClient, "search_runs", counting)
    logged(put_run(tmp_path, "bttr", seed=99))
    assert 0 < max(read) <= 3
    monkeypatch.undo()
    (table,) = [run for run in all_runs(client_of(tmp_path)) if PARENT not in run.data.tags]
    assert table.data.metrics["2014/exprate"] == 109.0  # of its best row


# ------------------------------------------------------------------------------------------------- moved folders


def moved_and_its_place_taken(results: Path, to: Path) -> None:
    results.rename(to)
    results.write_text("not a folder")


@pytest.mark.parametrize("change", [Path.rename, moved_and_its_place_taken, shutil.copytree])
@pytest.mark.parametrize("name", ["B", "C# für später 100%"])
def test_artifacts_lie_beside_a_database_that_was_moved_or_copied(change, name: str, empty_store, tmp_path) -> None:
    old, new = tmp_path / "A", tmp_path / name
    old.mkdir()
    shutil.copy(empty_store, old / "mlflow.db")
    folder = put_run(old, "bttr")
    (folder / "best.safetensors").write_bytes(b"weights")
    first = logged(folder)
    change(old, new)
    _artifact_repos_cache.clear()  # as in another process
    before = sorted(old.rglob("*")) if old.is_dir() else None
    again, second = logged(new / folder.relative_to(old)), logged(put_run(new, "comer-self"))
    client = client_of(new)
    assert again == first and (sorted(old.rglob("*")) if old.is_dir() else None) == before
    for run_id in (first, second):
        place = Path(unquote(urlparse(client.get_run(run_id).info.artifact_uri).path))
        assert place.is_relative_to(new / "mlartifacts") and (place / "scores/2014.json").exists()
    (version,) = client.search_model_versions()
    uri = client.get_model_version_download_uri(version.name, version.version)
    assert (Path(download_artifacts(uri, tracking_uri=f"sqlite:///{new / 'mlflow.db'}")) / "MLmodel").exists()


def test_artifacts_stay_where_they_are_if_the_database_alone_was_moved(
    empty_store, tmp_path, monkeypatch, capsys
) -> None:
    """One line says so, until they follow it."""
    folder = put_run(tmp_path / "A", "bttr")
    shutil.copy(empty_store, tmp_path / "A/mlflow.db")
    logged(folder)
    (tmp_path / "B").mkdir()
    (tmp_path / "A/mlflow.db").rename(tmp_path / "B/mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'B/mlflow.db'}")
    logged(put_run(tmp_path / "A", "comer-self"))
    logged(put_run(tmp_path / "A", "comer-cross"))
    assert not (tmp_path / "B/mlartifacts").exists()
    assert len(list((tmp_path / "A/mlartifacts").rglob("2014.json"))) == 3
    place = (tmp_path / "A/mlartifacts").as_uri()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"warning: {tmp_path / 'B/mlflow.db'}: artifacts go to {place}; move that folder beside it"
    (tmp_path / "A/mlartifacts").rename(tmp_path / "B/mlartifacts")
    _artifact_repos_cache.clear()  # as in another process
    tracking._warned.clear()
    logged(folder)
    assert not (tmp_path / "A/mlartifacts").exists() and not capsys.readouterr().err


# ------------------------------------------------------------------------------------------- repeated and resumed


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
    copy = tmp_path / "reproduced/bttr/smoke-seed7"
    shutil.copytree(folder, copy)
    (copy / "checkpoint.json").unlink()  # as committed runs are
    assert logged(copy) == logged(copy) == run_id
    check_complete(client, run_id, folder)


def test_a_retraining_is_the_same_run_only_with_the_same_losses(client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3)
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


def test_a_retraining_leaves_the_earlier_run_alone_and_logs_no_results_of_it(tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3)
    before = shutil.copytree(folder, tmp_path / "before")
    run_id = logged(folder)
    (folder / "checkpoint.json").unlink()  # as --force does
    put_epochs(folder, 0)
    put_environment(folder, revision="another")
    assert tracking.track(folder, running=True) is None  # there is no epoch yet
    process = subprocess.Popen([sys.executable, "-m", tracking.__name__, folder, "60"], stdin=subprocess.PIPE)
    process.communicate(timeout=60)  # stdin closes, as if the training was killed
    put_epochs(folder, 1, scale=5.0)
    assert tracking.track(folder, running=True) is None  # the checkpoint is written after the history
    put_state(folder, False)
    other, client = logged(folder, running=True), client_of(tmp_path)
    assert client.get_run(run_id).data.tags["git_revision"] == "0123abcd+89abcdef"
    check_complete(client, run_id, before)
    assert artifacts(client, other) == {"config.yaml", "environment.json", "history.jsonl"}
    (half_done,) = [run for run in all_runs(client) if run.info.run_id == other]
    assert half_done.info.status == "RUNNING" and not any("2014" in name for name in half_done.data.metrics)
    assert not any("2014" in name for name in half_done.data.tags) and len(half_done.inputs.dataset_inputs) == 1
    put_state(folder, True)
    put_epochs(folder, 3, scale=5.0)
    assert logged(folder) == other
    check_complete(client, other, folder)


def test_a_retraining_with_the_same_losses_leaves_the_finished_run_alone(tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=3)
    before = shutil.copytree(folder, tmp_path / "before")
    run_id = logged(folder)
    (folder / "checkpoint.json").unlink()  # as --force does
    put_epochs(folder, 0)
    put_epochs(folder, 1)
    put_state(folder, False)
    put_environment(folder, revision="another")
    for running in (True, False):
        assert logged(folder, running=running) == run_id
        check_complete(client_of(tmp_path), run_id, before)


def test_a_run_made_by_mistake_is_removed_with_all_that_was_made_for_it(tmp_path: Path) -> None:
    kept, mistake = put_run(tmp_path, "bttr"), put_run(tmp_path, "comer-fusion")
    run_id = logged(kept)
    logged(mistake)
    assert len(all_runs(client_of(tmp_path))) == 3 and tracking.remove(mistake) is True
    left = all_runs(client_of(tmp_path))
    assert {run.info.run_id for run in left} > {run_id} and len(left) == 2  # the table has another row
    assert kept.exists() and not mistake.exists()
    with files.locked(kept), pytest.raises(UserError, match="is working in it"):
        tracking.remove(kept)
    assert tracking.remove(kept) is True and all_runs(client_of(tmp_path)) == []
    assert tracking.remove(put_run(tmp_path, "bttr")) is False  # it was not logged


def test_a_removed_run_no_longer_counts_in_its_row(tmp_path: Path) -> None:
    seeds = [put_run(tmp_path, "bttr", seed=seed) for seed in (7, 8, 9)]
    for place, rate in zip(seeds, (10.0, 20.0, 60.0), strict=True):
        score = json.loads((place / "scores/2014.json").read_text()) | {"exprate": rate}
        (place / "scores/2014.json").write_text(json.dumps(score))
        logged(place)

    def row() -> dict[str, float]:
        (found,) = (run for run in all_runs(client_of(tmp_path)) if "2014/exprate_runs" in run.data.metrics)
        return {name: found.data.metrics[f"2014/exprate{name}"] for name in ("", "_runs")}

    assert row() == {"": 30.0, "_runs": 3}
    tracking.remove(seeds[2])
    assert row() == {"": 15.0, "_runs": 2}
    assert tracking.track(seeds[0]) and row() == {"": 15.0, "_runs": 2}
    client_of(tmp_path).delete_run(logged(seeds[1]))  # as the user interface does
    assert logged(seeds[1]) and row() == {"": 15.0, "_runs": 2}


def test_a_removal_that_is_killed_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last test set, say, it would be listed as a run that was scored on the others."""
    monkeypatch.setattr(tracking, "with_store", lambda *_: True)
    first, second = (put_run(tmp_path, "bttr", seed=seed) for seed in (7, 8))

    def killed(folder: Path) -> None:
        next(Path(folder).glob("scores/*.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        tracking.remove(first)
    assert [run["folder"] for run in listing.runs(tmp_path)] == [str(second)]
    assert tracking.remove(second) and not [*second.parent.iterdir()]  # with what the first had left


def test_nothing_is_removed_while_the_store_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = put_run(tmp_path, "bttr")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="nothing was deleted"):
        tracking.remove(run)
    assert (run / "config.yaml").exists()


def test_a_reproduced_run_is_not_removed(tmp_path: Path) -> None:
    run = put_run(tmp_path, "bttr")
    committed = tmp_path / "reproduced/bttr" / run.name
    shutil.copytree(run, committed)
    with pytest.raises(UserError, match="a committed run"):
        tracking.remove(committed)
    with pytest.raises(UserError, match="not a run folder"):
        tracking.remove(tmp_path)
    assert committed.exists() and run.exists()


def test_a_new_score_replaces_the_old(folder: Path, client: MlflowClient) -> None:
    run_id = logged(folder)
    score = json.loads((folder / "scores/2014.json").read_text()) | {"exprate": 1.0}
    (folder / "scores/2014.json").write_text(json.dumps(score))
    logged(folder)
    assert client.get_run(run_id).data.metrics["2014/exprate"] == 1.0


def test_a_test_set_may_be_called_what_mlflow_takes_for_no_name(folder: Path, client: MlflowClient) -> None:
    put_score(folder, "clean+noisy", 9, 5)
    run = client.get_run(logged(folder))
    assert run.data.metrics["clean_noisy/exprate"] == 55.56 and "signature.clean_noisy" in run.data.tags
    assert client.get_run(run.data.tags[PARENT]).data.metrics["clean_noisy/exprate"] == 55.56
    view = client.get_experiment(run.info.experiment_id).tags["mlflow.sharedViewState.hmerbench"]
    assert "metrics.`clean_noisy/exprate`" in json.loads(view)["selectedColumns"]


def test_eight_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    """The workspace has no database, so that all eight try to create it and the table."""
    (tmp_path / "mlflow.db").unlink()
    track_eight(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert len(all_runs(client_of(tmp_path))) == 1 + 4 + 8


# ------------------------------------------------------------------------------------------- beside a training


def until(condition: Callable[[], object]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.3)  # a question may cost a tenth of it
    raise AssertionError("the condition did not hold within two minutes")


def test_live_mirrors_and_measures_until_the_training_is_killed(
    client: MlflowClient, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    folder = put_run(tmp_path, "bttr", finished=False)

    def mirrored() -> list:
        return [run for run in all_runs(client) if "row_key" in run.data.tags]

    code = "import sys, time; from pathlib import Path; from hmerbench.benchmarks.tracking.track import live\n"
    code += "with live(Path(sys.argv[1]), seconds=0.1): time.sleep(600)"
    training = subprocess.Popen([sys.executable, "-c", code, folder])
    try:
        until(lambda: mirrored() and "system/cpu_utilization_percentage" in mirrored()[0].data.metrics)
        assert mirrored()[0].info.status == "RUNNING"
    finally:
        training.kill()
        training.wait()
    until(lambda: mirrored()[0].info.status == "KILLED")
    (run,) = mirrored()
    put_state(folder, True)
    assert logged(folder) == run.info.run_id
    check_complete(client, run.info.run_id, folder)


def test_errors_of_the_training_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="the training fails"), tracking.live(put_run(tmp_path, "bttr")):
        raise KeyError("the training fails")


def test_a_training_imports_no_mlflow_and_ends_its_mirror(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from hmerbench.benchmarks.tracking.track import live\n"
    code += f"with live(Path({str(put_run(tmp_path, 'bttr'))!r})): pass\n"
    code += "assert not {'mlflow', 'sqlalchemy', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Mute:
    """A server that accepts every connection and never answers."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self.asked = threading.Event()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            self.taken.append(self.socket.accept()[0])
            self.asked.set()


def test_a_trial_belongs_to_its_study_and_to_no_table(tmp_path: Path) -> None:
    """Where the folder of all studies is a link, too."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "tuning").symlink_to(tmp_path / "disk")
    study = tmp_path / "tuning/comer-fusion-smoke-seed7-01234567"
    assert study_of(study / "smoke-seed7-89abcdef") == f"tuning/{study.name}"
    assert study_of(study / "smoke-seed8-89abcdef") == f"tuning/{study.name}-check"
    assert study_of(Path("results/runs/bttr/smoke-seed7-01234567")) == ""


def test_a_server_that_never_answers_delays_nothing(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.2)
    server = Mute()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    for _ in range(3):
        assert tracking.track(folder) is None
    until(lambda: server.taken)
    assert len(server.taken) == 1  # then it is skipped for a while
    assert capsys.readouterr().err.count("warning: ") == 1
    import_later(folder, tmp_path, monkeypatch)


def test_a_server_that_never_answers_does_not_keep_a_training_from_ending(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tracking, "STOP_SECONDS", 0.1)
    server = Mute()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    with tracking.live(put_run(tmp_path, "bttr"), seconds=0.01):
        assert server.asked.wait(60)


@pytest.mark.parametrize(("program", "warnings"), [("false", 0), ("nowhere", 1)])
def test_a_mirror_that_dies_or_cannot_start_does_not_affect_the_training(
    program: str, warnings: int, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which(program) or program)
    went_on = False
    with tracking.live(put_run(tmp_path, "bttr")):
        time.sleep(0.05)
        went_on = True
    assert went_on and capsys.readouterr().err.count("warning: ") == warnings


def test_a_warning_of_the_mirror_reaches_the_training_once(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with tracking.live(folder, seconds=0.01):
        until(lambda: tracking._warned)
    assert tracking.track(folder) is None
    warning = capsys.readouterr().err
    assert warning.startswith("warning: MLflow at http://127.0.0.1:9 is not usable") and warning.count("\n") == 1


# ------------------------------------------------------------------------------------------------------ failures


def import_later(folder: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the failure is over, the folder can be imported in full."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "_left_alone_until", {})
    run_id = logged(folder)
    assert logged(folder) == run_id
    check_complete(client_of(results), run_id, folder)


@contextmanager
def no_database(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (results / "mlflow.db").rename(results / "kept")
    (results / "mlflow.db").write_bytes(b"this is no database" * 100)
    yield
    (results / "kept").replace(results / "mlflow.db")


@contextmanager
def cut_short(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    content = (results / "mlflow.db").read_bytes()
    (results / "mlflow.db").write_bytes(content[: len(content) // 3])
    yield
    (results / "mlflow.db").write_bytes(content)


@contextmanager
def locked(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.1)
    holder = sqlite3.connect(results / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    yield
    holder.close()


@contextmanager
def newer_schema(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with sqlite3.connect(results / "mlflow.db") as database:
        (known,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
        database.execute("UPDATE alembic_version SET version_num = 'fedcba987654'")
    yield
    with sqlite3.connect(results / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (known,))


@contextmanager
def largest_file(bytes_: int) -> Iterator[None]:
    """Limit the size of files: for the writer, the same as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_for_the_database(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with largest_file((results / "mlflow.db").stat().st_size):
        yield


@contextmanager
def full_for_a_new_database(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (results / "mlflow.db").unlink()
    with largest_file(100_000):
        yield


@contextmanager
def full_for_artifacts(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (predictions,) = results.glob("runs/*/*/predictions/2014.tsv")
    predictions.write_bytes(bytes(4_000_000))
    with largest_file(3_000_000):
        yield


@contextmanager
def unreachable(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somebody:secret@127.0.0.1:9")
    yield


@contextmanager
def no_such_store(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuch://store")
    yield


@contextmanager
def not_installed(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mlflow", None)
        patch.delitem(sys.modules, "hmerbench.benchmarks.tracking.mirror", raising=False)
        yield


FAILURES = {
    no_database: "not a database",
    cut_short: "malformed",
    locked: "database is locked",
    newer_schema: "of another MLflow",
    full_for_the_database: "",
    full_for_a_new_database: "",
    full_for_artifacts: "File too large",
    unreachable: "refused",
    no_such_store: "nosuch",
    not_installed: "mlflow is not installed",
}


@pytest.mark.parametrize(("failure", "words"), FAILURES.items(), ids=[failure.__name__ for failure in FAILURES])
def test_a_failure_costs_one_warning_and_an_import_catches_up(failure, words, tmp_path, monkeypatch, capsys) -> None:
    folder = put_run(tmp_path, "bttr", epochs=60)
    with failure(tmp_path, monkeypatch):
        for _ in range(2):
            assert tracking.track(folder) is None
            tracking._left_alone_until.clear()
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and warning.count("\n") == 1 and words in warning and "secret" not in warning
    import_later(folder, tmp_path, monkeypatch)
    assert not capsys.readouterr().err


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `benchmarks track` without root's privilege to ignore file permissions."""
    unprivileged = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]
    prefix = unprivileged if os.getuid() == 0 else []
    line = [*prefix, sys.executable, "-m", "hmerbench", "track", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_a_read_only_database_is_one_warning(folder: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mlflow.db").chmod(0o444)
    done = command(folder)
    assert done.returncode == 1 and done.stderr.count("warning: ") == 1 and "readonly database" in done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {folder}: it was not logged; the warning above says why"
    (tmp_path / "mlflow.db").chmod(0o644)
    import_later(folder, tmp_path, monkeypatch)


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        tracking.track(tmp_path / "runs/bttr/nothing")
    (folder / "history.jsonl").write_text('{"epoch": 1')
    with pytest.raises(UserError, match=r"history\.jsonl: damaged or incomplete .*; restore it"):
        tracking.track(folder)


def test_mlflow_is_quiet(tmp_path: Path) -> None:
    logged(put_run(tmp_path, "bttr"))
    assert logging.getLogger("mlflow").level >= logging.WARNING


# ------------------------------------------------------------------------------------------------- user interface


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who listens where on Linux only")
def test_the_user_interface_is_on_the_loopback_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "hmerbench", "mlflow-ui", "--results", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.stdout and f"http://127.0.0.1:{port}".encode() in process.stdout.readline()
        until(lambda: listening(port))
        assert listening(port) == {"0100007F"}  # 127.0.0.1, as /proc writes it
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listening(port: int) -> set[str]:
    """The local addresses on which this machine listens on a port."""
    rows = [row.split() for file in ("tcp", "tcp6") for row in Path("/proc/net", file).read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


def test_the_user_interface_opens_the_store_in_use(tmp_path: Path, monkeypatch, capsys) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, line: became.append(line))
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@db/mlflow")
    tracking_store.browse(tmp_path, 5000)
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == "postgresql://me:secret@db/mlflow"
    assert "secret" not in str(became) + capsys.readouterr().out


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
def test_no_secret_of_an_address_is_printed(uri: str, tmp_path: Path, monkeypatch, capsys) -> None:
    def unusable(_: str) -> None:
        raise ValueError(f"{uri}: port 'secret' is no number")

    monkeypatch.setattr(tracking, "reach", unusable)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking_store.store(tmp_path) == SECRET[uri]
    assert errors.reason(ValueError("connection refused"), uri) == "connection refused"
    assert tracking.track(put_run(tmp_path, "bttr")) is None
    printed = capsys.readouterr().err
    assert "is not usable (ValueError)" in printed and "secret" not in printed


@pytest.mark.parametrize("uri", SECRET)
def test_the_user_interface_prints_no_secret(uri: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """MLflow would print an address that it does not understand, so it never gets that."""
    became: list[str] = []
    monkeypatch.setattr(os, "execv", lambda program, _: became.append(program))
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    said = ""
    try:
        tracking_store.browse(tmp_path, 5000)
    except UserError as error:
        said = str(error)
    assert bool(became) == SECRET[uri].startswith("postgresql://db")
    assert SECRET[uri] in (printed := said + capsys.readouterr().out) and "secret" not in printed


def test_the_user_interface_finds_the_embedded_set_and_reports_an_empty_workspace(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(os, "execv", lambda program, line: None)
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    (tmp_path / "local/embedded").mkdir(parents=True)
    (tmp_path / "mlflow.db").rename(tmp_path / "local/embedded/mlflow.db")
    tracking_store.browse(tmp_path, 5000)
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/local/embedded/mlflow.db"
    assert "http://127.0.0.1:5000 " in capsys.readouterr().out
    monkeypatch.setenv("MLFLOW_TRACKING_URI", os.environ["MLFLOW_BACKEND_STORE_URI"])
    logged(put_run(tmp_path, "bttr"))
    tracking_store.browse(tmp_path, 5000)
    assert "/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=" in capsys.readouterr().out
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UserError, match="nothing was logged yet"):
        tracking_store.browse(tmp_path / "local", 5000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    with pytest.raises(UserError, match=r"open https://mlflow\.example"):
        tracking_store.browse(tmp_path, 5000)


def test_a_folder_with_a_short_path_has_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount in a container, say."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_store.tracking_uri(Path("/mnt/run")) == "sqlite:////mlflow.db"
