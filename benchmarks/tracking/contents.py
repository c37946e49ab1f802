"""What a run holds in MLflow: parameters, tags, metrics, datasets, and its model, which metrics and datasets refer to.

Names are MLflow's own where it has one; those of metrics are grouped by their first part, as its charts are.
"""

import getpass
import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException

from hmerbench.benchmarks.runs.folder import Outcome, RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun
from hmerbench.benchmarks.runs.run import LanguageRun, store_key
from hmerbench.benchmarks.strict_files import flat
from hmerbench.evaluation.datasets import datasets
from hmerbench.evaluation.scoring.metrics import METRICS

NOTE = "mlflow.note.content"
EPOCHS_PER_BATCH = 50  # MLflow takes 1000 points per request; an epoch's points must be logged all or none
GROUPS = {"val": "validation", "valid": "validation", "train": "training", "test": "test"}


def metric_name(name: str) -> str:
    """The name in MLflow of a number in history.jsonl: training/loss, validation/token_exprate."""
    first, _, rest = name.partition("_")
    return f"{GROUPS[first]}/{rest}" if first in GROUPS else f"training/{name}"


def _made_by(run: AnyRun) -> dict[str, str]:
    """MLflow's tags for who made a run, by which command and revision, which has a `+` if files were changed."""
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": run.command}
    with suppress(OSError, KeyError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    if revision := run.environment.get("revision"):
        tags |= {"git_revision": revision, "mlflow.source.git.commit": revision.partition("+")[0]}
        tags["mlflow.source.git.dirty"] = str("+" in revision).lower()
    return tags


def log_facts(client: MlflowClient, mlrun: entities.Run, run: AnyRun, in_table: bool) -> None:
    """Log the configuration as parameters, which never change, and environment and identity as tags, which may."""
    params = {name: str(value) for name, value in flat(run.stored).items() if name not in mlrun.data.params}
    tags = flat({"env": run.environment}) | {"recipe": run.recipe, "seed": run.seed}
    tags |= {"config_digest": run.digest, "run_folder": run.path} | _made_by(run)
    tags |= {name: mlrun.data.tags[name] for name in ("mlflow.user",) if name in mlrun.data.tags}  # who was first
    if isinstance(run, RunFolder):
        tags |= flat({"signature": _signatures(run)}) | {"preset": run.preset, "recipe_hash": run.recipe_hash}
        if in_table:
            tags |= {"table_key": run.table_key, "row_key": run.row_key}
        title = f"{run.recipe}, {run.preset}, seed {run.seed}, on {run.data}"
        if mlrun.data.tags.get(NOTE, title).startswith(title):  # else somebody wrote another
            # each score linked to its file in the user interface, as Markdown
            place = f"#/experiments/{mlrun.info.experiment_id}/runs/{mlrun.info.run_id}/artifacts/scores"
            scores = (f"- [{split}]({place}/{split}.json): `{score}`" for split, score in run.scores.items())
            tags[NOTE] = "\n".join([title, *scores])
    client.log_batch(
        mlrun.info.run_id,
        params=[entities.Param(name, value[:6000]) for name, value in params.items()],
        tags=[entities.RunTag(name, str(value)[:5000]) for name, value in tags.items()],
    )


def log_history(client: MlflowClient, run_id: str, run: AnyRun, logged: set[int]) -> None:
    """Log the epochs that are not among those `logged`."""
    entries = [pair for pair in zip(run.history, ends(run), strict=True) if pair[0]["epoch"] not in logged]
    for start in range(0, len(entries), EPOCHS_PER_BATCH):
        points = [
            entities.Metric(metric_name(name), float(value), ended, entry["epoch"])
            for entry, ended in entries[start : start + EPOCHS_PER_BATCH]
            for name, value in entry.items()
            if name != "epoch" and isinstance(value, int | float) and math.isfinite(value)
        ]
        client.log_batch(run_id, metrics=points)


def log_scores(client: MlflowClient, mlrun: entities.Run, run: RunFolder, model: entities.LoggedModel | None) -> None:
    """Log the scores that the run or its model lacks, each of the model and on its dataset."""
    ofs_model = {(metric.key, metric.value) for metric in (model.metrics or [])} if model else None
    points = []
    for split, score in run.scores.items():
        of_model = {"model_id": model.model_id if model else None, "run_id": mlrun.info.run_id}
        of_model |= {"dataset_name": f"{run.data}-{split}", "dataset_digest": split_digest(run, split)}
        made = int(1000 * (run.path / f"scores/{split}.json").stat().st_mtime)
        for metric in (*(metric.rate for metric in METRICS), "n"):
            name, value = store_key(f"{split}/{metric}"), getattr(score, metric)
            if value is None:
                continue
            logged = mlrun.data.metrics.get(name) == value and (ofs_model is None or (name, value) in ofs_model)
            if not logged:
                points.append(entities.Metric(name, float(value), made, 0, **of_model))
    if points:
        client.log_batch(mlrun.info.run_id, metrics=points)


def log_perplexity(client: MlflowClient, mlrun: entities.Run, run: LanguageRun) -> None:
    """Log the test perplexity, once it is there and if the run lacks it."""
    if run.finished and "test/perplexity" not in mlrun.data.metrics:
        ended, value = max([*ends(run), run.started]), run.scores["test_perplexity"]
        client.log_batch(
            mlrun.info.run_id, metrics=[entities.Metric("test/perplexity", value, ended, len(run.history))]
        )


def log_trial(client: MlflowClient, run_id: str, study: str, run: AnyRun, trial: Outcome) -> None:
    """Log what became of a trial, and the best value so far in the run of its study."""
    client.update_run(run_id, name=trial["name"])
    client.set_tag(run_id, "trial", str(trial["number"]))
    client.set_tag(run_id, "trial_state", trial["state"])
    ended = max([*ends(run), run.started])
    for id_, value, step in ((run_id, trial["value"], 0), (study, trial["best"], trial["ended"])):
        points = client.get_metric_history(id_, "trial_value")
        if (step, value) not in {(point.step, point.value) for point in points}:
            client.log_metric(id_, "trial_value", value, ended, step)


def log_datasets(client: MlflowClient, run_id: str, run: RunFolder) -> None:
    """Log the training set and the scored test sets as inputs; MLflow ignores those it already has."""
    scores, inputs = run.scores, []
    for split in ("train", *scores):
        tags = {"mlflow.data.context": "training" if split == "train" else "testing"}
        profile = None
        if split in scores:
            tags["expressions"] = str(scores[split].n)
            profile = json.dumps({"num_rows": scores[split].n})
        if split == run.settings.select:
            tags["selects_epoch"] = "true"  # the paper's protocol, also recorded in the signature
        dataset = entities.Dataset(f"{run.data}-{split}", split_digest(run, split), *_source(run), profile=profile)
        inputs.append(entities.DatasetInput(dataset, [entities.InputTag(*tag) for tag in tags.items()]))
    client.log_inputs(run_id, inputs)


def split_digest(run: RunFolder, split: str) -> str:
    """Identifies a part of the archive: made from the digest of the whole and the name of the part."""
    return hashlib.sha256(f"{run.settings.data.digest}/{split}".encode()).hexdigest()[:32]


def _source(run: RunFolder) -> tuple[str, str]:
    """Where the data came from, as MLflow's type of source and its JSON: an address, or the program that made them."""
    if known := datasets().get(run.data):
        return "http", json.dumps({"url": str(known.url)})
    tags = {"archive": run.data, "digest": run.settings.data.digest}
    if run.data == "embedded":
        return "code", json.dumps({"tags": tags | {"mlflow.source.name": "hmerbench data"}})
    return "local", json.dumps({"uri": run.data, **tags})


def log_model(client: MlflowClient, mlrun: entities.Run, run: RunFolder) -> entities.LoggedModel | None:
    """Log a finished run's weights as a model, and register it as a version of DATA-RECIPE-PRESET.

    A model belongs to the weights' hash: other weights are another one. An interrupted upload is repeated, and so is
    one whose files are gone.
    """
    from hmerbench.benchmarks.tracking.logged_model import model_name, save  # it loads torch

    if not (run.finished and run.has_weights):
        return None
    run_id, digest, name = mlrun.info.run_id, run.file_digest(run.weights_file.name), model_name(run)
    tags = {"sha256": digest, "format": "safetensors", "seed": str(run.seed)}
    tags |= {"config_digest": run.digest, "recipe_hash": run.recipe_hash, "select": run.settings.select}
    tags |= {name: str(value) for name, value in (run.state or {}).items() if name in ("best_epoch", "step")}
    tags |= flat({"signature": _signatures(run)}) | _made_by(run)
    where = f"source_run_id = '{run_id}' and tags.sha256 = '{digest}'"
    if found := client.search_logged_models([mlrun.info.experiment_id], where):
        model = found[0]
    else:
        params = {name: str(value) for name, value in flat(run.stored.get("model", {})).items()}
        model = client.create_logged_model(mlrun.info.experiment_id, name, run_id, tags, params, "recognizer")
    if model.status != entities.LoggedModelStatus.READY or not client.list_logged_model_artifacts(model.model_id):
        with tempfile.TemporaryDirectory() as place:
            save(run, Path(place, "model"), model.model_id, run_id)
            client.log_model_artifacts(model.model_id, str(Path(place, "model")))
        client.finalize_logged_model(model.model_id, "READY")
    if not mlrun.outputs or model.model_id not in {output.model_id for output in mlrun.outputs.model_outputs}:
        client.log_outputs(
            run_id, [entities.LoggedModelOutput(model.model_id, run.history[-1]["step"] if run.history else 0)]
        )
    if lacking := dict(tags.items() - model.tags.items()):  # scores are made after the training
        client.set_logged_model_tags(model.model_id, lacking)
    _register(client, name, model, run_id, tags | {"model_id": model.model_id})
    return model


def _register(
    client: MlflowClient, name: str, model: entities.LoggedModel, run_id: str, tags: Mapping[str, str]
) -> None:
    for version in client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'"):
        if version.tags.get("model_id") == model.model_id:
            for tag in tags.items() - version.tags.items():
                client.set_model_version_tag(name, version.version, *tag)
            return
    with suppress(MlflowException):  # it already exists
        client.create_registered_model(name)
    client.create_model_version(name, model.artifact_location, run_id, dict(tags), model_id=model.model_id)


def ends(run: AnyRun) -> list[int]:
    """When each epoch ended, in ms since 1970, as if the training had never been interrupted: the same whenever and
    wherever the folder is mirrored."""
    return [run.started + int(1000 * seconds) for seconds in run.seconds]


def _signatures(run: RunFolder) -> dict[str, str]:
    return {store_key(split): score.signature for split, score in run.scores.items()}
