"""Write run folders to an MLflow tracking store, idempotently.

Runs (contents.py) form a tree of tables, rows and seeds (tree.py). They are found by their tag `run_key`, which depends
on the folder's content and not on its path, so a copied folder is the same run. Only what the store lacks is added:
mirroring may be interrupted anywhere, repeated, or done by several processes at once.
"""

import json
import os
import random
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun
from hmerbench.benchmarks.runs.run import store_key
from hmerbench.benchmarks.tracking import contents
from hmerbench.benchmarks.tracking.tracking_store import (
    VIEW,
    artifacts_beside,
    find_artifacts,
    has_content,
    sqlite_path,
)
from hmerbench.benchmarks.tracking.tree import NOTE, PARENT, Tree
from hmerbench.models.files import parse_json

RESULTS = ("predictions", "scores")  # of an earlier training, until this one ends
LOCK_SECONDS = 60  # to wait for another process that creates the database
RACES = ("constraint", "'active' state", "database is locked", "deadlock")  # errors of concurrent writers, to retry
RACE_TRIES, RACE_SECONDS = 10, 30  # give up after both: on a busy machine a single try may take that long
ABOUT = {  # tags of an experiment: the first makes the user interface open it on its runs, not on traces
    "mlflow.experimentKind": "custom_model_development",
    NOTE: "Runs of hmerbench on {}: tables open to rows, rows to seeds. The run folders are authoritative; "
    "`hmerbench track FOLDER` brings a run up to date.",
}


class Mirror:
    """An MLflow tracking store, opened for the runs on one data set."""

    def __init__(self, uri: str, data: str):
        self.database = sqlite_path(uri)
        if self.database and not has_content(self.database):
            _create(self.database)
        self.left_behind = find_artifacts(self.database) if self.database else []
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.data = data

    @cached_property
    def experiment(self) -> str:
        """The id of the data set's experiment, created if missing."""
        name = "hmerbench" if self.data == "crohme" else f"hmerbench {self.data} (not CROHME)"
        tags = {key: text.format(self.data) for key, text in ABOUT.items()}
        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = artifacts_beside(self.database) if self.database else None  # a server has its own
            try:
                return self.client.create_experiment(name, location, tags)
            except MlflowException:
                if (found := self.client.get_experiment_by_name(name)) is None:
                    raise  # otherwise another process was faster
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        for key in tags.keys() - found.tags.keys():
            self.client.set_experiment_tag(found.experiment_id, key, tags[key])
        return found.experiment_id

    def show(self, run: RunFolder) -> None:
        """Keep a view of the user interface that has all runs, the best first, with a column for each test set: by
        itself it shows one closed line for a table, and no numbers."""
        tag = f"mlflow.sharedViewState.{VIEW}"
        known, own = list[str](), [f"metrics.`{split}/exprate`" for split in run.scores]
        with suppress(LookupError, ValueError, TypeError):  # another program's view
            known = parse_json(self.client.get_experiment(self.experiment).tags[tag])["selectedColumns"]
        if set(own) - set(known):
            columns = sorted({*known, *own})
            view = {"searchFilter": "tags.row_key != ''", "orderByKey": columns[0], "orderByAsc": False}
            self.client.set_experiment_tag(self.experiment, tag, json.dumps(view | {"selectedColumns": columns}))

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.client, self.experiment)

    def put(
        self, run: AnyRun, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
    ) -> str:
        """Bring the store up to date with the folder; return the id of its MLflow run.

        `under` names a parent run to use instead of a table, `name` is the run's name there; `running`: the training
        is in progress.
        """
        tries, deadline = 0, time.monotonic() + RACE_SECONDS
        while True:
            tries += 1
            try:
                return self._put(run, tables, under, name, running)
            except MlflowException as error:
                exhausted = tries >= RACE_TRIES and time.monotonic() > deadline
                if exhausted or not any(sign in str(error) for sign in RACES):
                    raise
                time.sleep(random.uniform(0, 0.2))

    def conclude(self, group: str, status: str) -> None:
        """Set the final status of the parent run named `group`, if it exists."""
        for found in self.tree.groups(store_key(group)):
            self.client.set_terminated(found.info.run_id, status)

    def remove(self, run: AnyRun) -> bool:
        """Delete the folder's MLflow run, and its row and table where nothing is left in them; whether there was one.

        A server keeps what is deleted for a while, as MLflow does: `mlflow gc` frees the space.
        """
        found, _ = self._find(run)
        if found is not None:
            self.client.delete_run(found.info.run_id)
            if isinstance(run, RunFolder):
                self.tree.forget(run, found.info.run_id)
        return found is not None

    def _put(self, run: AnyRun, tables: Path | None, under: str, name: str, running: bool) -> str:
        mlrun, epochs = self._run_of(run)
        run_id = mlrun.info.run_id
        if not run.finished and epochs - {entry["epoch"] for entry in run.history}:
            return run_id  # a training that is repeated, to the same losses, is not mirrored before it gets further
        contents.log_facts(self.client, mlrun, run, in_table=not under)
        contents.log_history(self.client, run_id, run, epochs)
        if isinstance(run, RunFolder):
            contents.log_datasets(self.client, run_id, run)
            contents.log_scores(self.client, mlrun, run, contents.log_model(self.client, mlrun, run))
        else:
            contents.log_perplexity(self.client, mlrun, run)
        for path in (run.path / name for name in run.PARTS if run.finished or name not in RESULTS):
            if path.exists():
                self.client.log_artifact(run_id, str(path))
        if run.finished:
            self.client.set_terminated(run_id, "FINISHED", max([*contents.ends(run), run.started]))
        else:
            self.client.update_run(run_id, "RUNNING" if running else "KILLED")
        if under:
            self.client.set_tag(run_id, PARENT, self.tree.group(store_key(under), under).info.run_id)
            self.client.update_run(run_id, name=name or mlrun.info.run_name)
            return run_id
        if not isinstance(run, RunFolder):
            return run_id
        table = self.tree.place(run, run_id)
        self.show(run)
        for path in sorted(tables.glob("table*.*")) if tables is not None else ():
            self.client.log_artifact(table, str(path), "tables")
        return run_id

    def _run_of(self, run: AnyRun) -> tuple[Run, set[int]]:
        """The folder's MLflow run, created if missing, and the epochs it already has.

        Of several processes that create it at the same moment, one succeeds.
        """
        created = None
        while True:
            found, epochs = self._find(run)
            if found is not None:
                if created and created.info.run_id != found.info.run_id:  # another process created it first
                    self.client.delete_run(created.info.run_id)
                return found, epochs
            if created:
                raise RuntimeError("it does not return the run that was just created")
            created = self.client.create_run(self.experiment, run.started, {"run_key": run.run_key}, run.title)

    def _find(self, run: AnyRun) -> tuple[Run | None, set[int]]:
        """The folder's MLflow run, if there is one, and its epochs.

        A run whose epochs have other losses is another training of the same configuration (on another machine, or
        forced again) and is left untouched.
        """
        losses = {entry["epoch"]: entry[run.LOSS] for entry in run.history}
        for found in self.tree.groups(run.run_key):
            points = self.client.get_metric_history(found.info.run_id, contents.metric_name(run.LOSS))
            if all(losses.get(point.step, point.value) == point.value for point in points):
                return found, {point.step for point in points}
        return None, set()


def _create(path: Path) -> None:
    """Create MLflow's tables in a temporary file first: MLflow never repairs a database left half-made."""
    with locked(path.parent, f"{path.name}.lock", LOCK_SECONDS):
        if not has_content(path):
            for leftover in path.parent.glob(f"{path.name}.*.part"):
                leftover.unlink()
            part = path.with_name(f"{path.name}.{time.time_ns()}.part")  # MLflow caches failed connections by name
            MlflowClient(tracking_uri=f"sqlite:///{part}").search_experiments()
            os.replace(part, path)
