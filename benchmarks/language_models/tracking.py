"""Log language models' run folders to MLflow, as the recognizers' are: a failing store costs a warning, and only what
the store lacks is added."""

from datetime import datetime
from typing import TYPE_CHECKING

from hmerbench.benchmarks.language_models.run import LanguageRun
from hmerbench.benchmarks.language_models.settings import PARTS
from hmerbench.benchmarks.runs.folder import store_key
from hmerbench.benchmarks.tracking.track import with_store
from hmerbench.benchmarks.yaml_files import flat

if TYPE_CHECKING:
    from hmerbench.benchmarks.tracking.mirror import Mirror


def track(run: LanguageRun) -> str | None:
    """Log a run folder; return the MLflow run's id, or None if the store failed."""
    _ = run.settings, run.history, run.environment, run.scores  # report damaged files now, as errors
    return with_store(run.path, run.settings.text.name, lambda mirror: _put(mirror, run))


def _put(mirror: "Mirror", run: LanguageRun) -> str:
    from mlflow.entities import Metric, Param, RunTag

    from hmerbench.benchmarks.tracking.contents import made_by, metric_name

    client, settings = mirror.client, run.settings
    key = store_key(f"language/{settings.run_name}")
    began = int(1000 * datetime.fromisoformat(run.environment["started"]).timestamp())
    name = f"{settings.recipe}, seed {settings.seed}"
    found = client.search_runs([mirror.experiment], f"tags.run_key = '{key}'")
    mlrun = found[0] if found else client.create_run(mirror.experiment, began, {"run_key": key}, name)
    id_ = mlrun.info.run_id
    logged = {point.step for point in client.get_metric_history(id_, "validation/perplexity")} if found else set()
    ends = [began + int(1000 * seconds) for seconds in run.seconds]
    points = [
        Metric(metric_name(name), float(value), ended, entry["epoch"])
        for entry, ended in zip(run.history, ends, strict=True)
        if entry["epoch"] not in logged
        for name, value in entry.items()
        if name != "epoch"
    ]
    if run.finished and "test/perplexity" not in mlrun.data.metrics:
        points.append(Metric("test/perplexity", run.scores["test_perplexity"], ends[-1], len(ends)))
    params = {name: str(value) for name, value in flat(settings.model_dump(mode="json")).items()}
    tags = flat({"env": run.environment}) | {"run_folder": run.path, "config_digest": settings.digest}
    command = f"hmerbench reproduce-lm --recipes {settings.recipe} --seeds {settings.seed}"
    tags |= made_by(command, run.environment.get("revision"))
    client.log_batch(
        id_,
        points,
        [Param(name, value) for name, value in params.items() if name not in mlrun.data.params],
        [RunTag(name, str(value)[:5000]) for name, value in tags.items()],
    )
    for part in PARTS:
        if (run.path / part).exists():
            client.log_artifact(id_, str(run.path / part))
    if run.finished:
        client.set_terminated(id_, "FINISHED", ends[-1])
    return id_
