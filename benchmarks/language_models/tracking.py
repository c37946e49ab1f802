"""Log language models' run folders to MLflow, as the recognizers' are: a failing store costs a warning, and only what
the store lacks is added."""

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

    from hmerbench.benchmarks.tracking.contents import ends, log_history, made_by

    client, settings, key = mirror.client, run.settings, store_key(f"language/{run.settings.run_name}")
    found = client.search_runs([mirror.experiment], f"tags.run_key = '{key}'")
    name = f"{settings.recipe}, seed {settings.seed}"
    mlrun = found[0] if found else client.create_run(mirror.experiment, run.started, {"run_key": key}, name)
    id_, last = mlrun.info.run_id, max([*ends(run), run.started])
    logged = client.get_metric_history(id_, "validation/perplexity") if found else ()
    log_history(client, id_, run, {point.step for point in logged})
    tags = flat({"env": run.environment}) | {"run_folder": run.path, "config_digest": settings.digest}
    command = f"hmerbench reproduce-lm --recipes {settings.recipe} --seeds {settings.seed}"
    tags |= made_by(command, run.environment.get("revision"))
    params = flat(settings.model_dump(mode="json"))
    new = [Param(name, str(value)) for name, value in params.items() if name not in mlrun.data.params]
    client.log_batch(id_, params=new, tags=[RunTag(name, str(value)[:5000]) for name, value in tags.items()])
    for part in PARTS:
        if (run.path / part).exists():
            client.log_artifact(id_, str(run.path / part))
    if run.finished:
        if "test/perplexity" not in mlrun.data.metrics:
            test = Metric("test/perplexity", run.scores["test_perplexity"], last, len(run.history))
            client.log_batch(id_, metrics=[test])
        client.set_terminated(id_, "FINISHED", last)
    return id_
