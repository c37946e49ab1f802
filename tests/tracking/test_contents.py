"""What a run holds in MLflow: all that is in its folder, its data sets and its model, and what is shown of them."""

import json
import shutil
from pathlib import Path

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.data import get_source

from hmerbench.benchmarks.runs.folder import RunFolder
from tests.helpers.made_up import put_score, put_state
from tests.helpers.runs import PARENT, check_complete, logged, put_run


def test_the_contents_of_a_run(client: MlflowClient, tmp_path: Path) -> None:
    folder = put_run(tmp_path, "bttr", epochs=120)  # more than one batch
    run_id = logged(folder)
    check_complete(client, run_id, folder)
    run = client.get_run(run_id)
    assert run.info.end_time
    assert run.data.params["training.optimizer.lr"] == "0.08" and run.data.metrics["2014/exprate"] == 17
    tags = run.data.tags
    assert tags["git_revision"] == "0123abcd+89abcdef" and tags["mlflow.source.git.commit"] == "0123abcd"
    assert tags["mlflow.source.git.dirty"] == "true" and tags["preset"] == "smoke"
    assert tags["signature.2014"].startswith("ExpRate|") and tags["env.versions.torch"] == "2.13.0"
    assert run.info.end_time - run.info.start_time == 180_000 and (tmp_path / "mlartifacts").is_dir()


def test_what_the_user_interface_shows_of_a_run(folder: Path, client: MlflowClient) -> None:
    run = client.get_run(logged(folder))
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(experiment.tags["mlflow.sharedViewState.hmerbench"])
    assert view["selectedColumns"] == ["metrics.`2014/exprate`"]
    tags = run.data.tags
    assert tags["mlflow.user"] and tags["mlflow.source.git.dirty"] == "true"
    assert tags["mlflow.source.name"] == "hmerbench train --recipe bttr --preset smoke --seed 7"
    note = tags["mlflow.note.content"]
    assert f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/scores/2014.json" in note
    assert f"`{RunFolder(folder).scores['2014']}`" in note
    client.set_tag(run.info.run_id, "mlflow.note.content", "my own words")
    logged(folder)
    assert client.get_run(run.info.run_id).data.tags["mlflow.note.content"] == "my own words"


def test_a_test_set_may_be_called_what_mlflow_takes_for_no_name(folder: Path, client: MlflowClient) -> None:
    put_score(folder, "clean+noisy", 9, 5)
    run = client.get_run(logged(folder))
    assert run.data.metrics["clean_noisy/exprate"] == 55.56 and "signature.clean_noisy" in run.data.tags
    assert client.get_run(run.data.tags[PARENT]).data.metrics["clean_noisy/exprate"] == 55.56
    view = client.get_experiment(run.info.experiment_id).tags["mlflow.sharedViewState.hmerbench"]
    assert "metrics.`clean_noisy/exprate`" in json.loads(view)["selectedColumns"]


def test_a_new_score_replaces_the_old(folder: Path, client: MlflowClient) -> None:
    run_id = logged(folder)
    put_score(folder, "2014", 986, 100, exprate=1.0)
    logged(folder)
    assert client.get_run(run_id).data.metrics["2014/exprate"] == 1.0


def test_datasets_are_inputs_with_their_contexts(folder: Path, client: MlflowClient) -> None:
    run = client.get_run(logged(folder))
    assert run.inputs
    inputs = {i.dataset.name: {t.key: t.value for t in i.tags} for i in run.inputs.dataset_inputs}
    assert inputs == {
        "crohme-train": {"mlflow.data.context": "training"},
        "crohme-2014": {"mlflow.data.context": "testing", "expressions": "986", "selects_epoch": "true"},
    }
    assert len({i.dataset.digest for i in run.inputs.dataset_inputs}) == 2  # of other expressions, another one
    for given in run.inputs.dataset_inputs:
        assert get_source(given.dataset).to_dict()["url"].startswith("https://")  # MLflow understands where from


def test_weights_are_an_immutable_model_version(store: str, client: MlflowClient, tmp_path: Path) -> None:
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
    for version, weights in zip(versions, (b"the first weights", b"others"), strict=True):
        uri = client.get_model_version_download_uri(version.name, version.version)
        place = Path(download_artifacts(uri, tracking_uri=store))
        assert (place / "data/run/best.safetensors").read_bytes() == weights and not [*place.rglob("*.pkl")]
    tags = versions[0].tags
    assert tags["best_epoch"] == "2" and tags["seed"] == "7" and tags["signature.2014"].startswith("ExpRate|")
    assert len(tags["sha256"]) == 64 and tags["config_digest"] == client.get_run(run_id).data.tags["config_digest"]


def test_a_model_whose_files_are_lost_is_logged_again(folder: Path, client: MlflowClient, tmp_path: Path) -> None:
    (folder / "best.safetensors").write_bytes(b"weights")
    logged(folder)
    shutil.rmtree(tmp_path / "mlartifacts/models")
    logged(folder)
    (kept,) = (tmp_path / "mlartifacts/models").rglob("best.safetensors")
    assert kept.read_bytes() == b"weights" and len(client.search_model_versions()) == 1
