"""Write run folders to an MLflow tracking store, idempotently.

The tree of runs is table (archive x preset) -> row (recipe) -> seed. A row gets its own node once it has a second run;
until then its only run is a child of the table, so one seed of five rows makes 1 + 5 runs. Runs are found by their tag
`run_key`, which depends on the folder's content and not on its path, so a copied folder is the same run. Only what the
store lacks is added: mirroring may be interrupted anywhere, repeated, or done by several processes at once.
"""

import json
import math
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import cast

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.runs.folder import RunFolder, store_key
from hmerbench.benchmarks.tracking.tracking_store import has_content, sqlite_path
from hmerbench.benchmarks.yaml_files import flat
from hmerbench.evaluation.scoring.score import Score

ARTIFACTS = ("config.yaml", "environment.json", "history.jsonl")
RESULTS = ("predictions", "scores")  # of an earlier training, until this one ends
SCORE_METRICS = ("exprate", "exprate_le1", "exprate_le2", "exprate_le3", "structure_rate", "token_exprate", "n")
EPOCHS_PER_BATCH = 50  # MLflow takes 1000 points per request; an epoch's points must be logged all or none
MAX_RUNS = 50_000  # MLflow's limit for one search
LOCK_SECONDS = 60  # to wait for another process that creates the database
RACES = ("constraint", "'active' state", "database is locked", "deadlock")  # errors of concurrent writers, to retry
RACE_TRIES, RACE_SECONDS = 10, 30  # give up after both: on a busy machine a single try may take that long
PARENT = "mlflow.parentRunId"


class Mirror:
    """An MLflow tracking store, opened for the runs on one data set."""

    def __init__(self, uri: str, workspace: Path, data: str):
        if (path := sqlite_path(uri)) and not has_content(path):
            _create(path)
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.uri, self.workspace, self.data = uri, workspace, data

    @cached_property
    def experiment(self) -> str:
        """The id of the data set's experiment, created if missing."""
        name = "hmerbench" if self.data == "crohme" else f"hmerbench {self.data} (not CROHME)"
        found = self.client.get_experiment_by_name(name)
        if found is None:
            local = self.uri.startswith("sqlite:")  # a server has its own artifact location
            location = (self.workspace / "mlartifacts").resolve().as_uri() if local else None
            try:
                return self.client.create_experiment(name, location)
            except MlflowException:
                if (found := self.client.get_experiment_by_name(name)) is None:
                    raise  # otherwise another process was faster
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return found.experiment_id

    def put(
        self, run: RunFolder, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
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
        for found in self._search(f"tags.run_key = '{store_key(group)}'"):
            self.client.set_terminated(found.info.run_id, status)

    def remove(self, run: RunFolder) -> bool:
        """Delete the folder's MLflow run, and its row and table where nothing is left in them; whether there was one.

        A server keeps what is deleted for a while, as MLflow does: `mlflow gc` frees the space.
        """
        found, _ = self._find(run)
        if found is not None:
            self.client.delete_run(found.info.run_id)
            if (tables := self._search(f"tags.run_key = '{run.table_key}'")) and self._members(run):
                self._attach(run, tables[0])  # their means are now those of the others
            for key in (run.row_key, run.table_key):
                for group in self._search(f"tags.run_key = '{key}'"):
                    if not self._search(f"tags.`{PARENT}` = '{group.info.run_id}'"):
                        self.client.delete_run(group.info.run_id)
        return found is not None

    def _put(self, run: RunFolder, tables: Path | None, under: str, name: str, running: bool) -> str:
        mlrun, epochs = self._run_of(run)
        run_id = mlrun.info.run_id
        if not run.finished and epochs - {entry["epoch"] for entry in run.history}:
            return run_id  # a training that is repeated, to the same losses, is not mirrored before it gets further
        self._log_facts(mlrun, run, in_table=not under)
        self._log_history(run_id, run, epochs)
        for split, score in _scores(run).items():
            metrics = {name: getattr(score, name) for name in SCORE_METRICS}
            values = {f"{split}.{name}": float(value) for name, value in metrics.items() if value is not None}
            self._log_new(mlrun, values, (run.path / f"scores/{split}.json").stat().st_mtime)
        self._log_datasets(run_id, run)
        for path in (run.path / name for name in ARTIFACTS + RESULTS * run.finished):
            if path.exists():
                self.client.log_artifact(run_id, str(path))
        self._log_model(run_id, run)
        if run.finished:
            self.client.set_terminated(run_id, "FINISHED", max([*_ends(run), run.started]))
        else:
            self.client.update_run(run_id, "RUNNING" if running else "KILLED")
        if under:
            group = self._group(store_key(under), under).info.run_id
            self.client.set_tag(run_id, PARENT, group)
            self.client.update_run(run_id, name=name or mlrun.info.run_name)
            return run_id
        title = f"table 2, {run.data}, {run.preset}"
        while True:
            table = self._group(run.table_key, title)
            self._attach(run, table)
            if self._group(run.table_key, title).info.run_id == table.info.run_id:  # no process created an older one
                break
        for path in sorted(tables.glob("table*.*")) if tables is not None else ():
            self.client.log_artifact(table.info.run_id, str(path), "tables")
        return run_id

    # -------------------------------------------------------------------------------------------------- the tree

    def _attach(self, run: RunFolder, table: Run) -> None:
        """Place the run, and its row if it has several runs, below the table; update their means and status."""
        runs = self._members(run)
        while True:
            self._place(run, table, runs)
            if len(now := self._members(run)) == len(runs):  # else another process placed its run meanwhile
                return
            runs = now

    def _place(self, run: RunFolder, table: Run, runs: list[Run]) -> None:
        members = [member for member in runs if member.data.tags.get("row_key") == run.row_key]
        parent, groups = table, [(table, runs)]
        rows = cast(pd.DataFrame, _rates(runs).groupby(level=0).mean())
        best = rows.max().to_dict()  # the highest mean of any row, per test set
        self._log_means(table, best)
        if len(members) > 1:
            parent = self._group(run.row_key, run.recipe)
            self._set_parent([parent], table)
            self._log_means(parent, _mean_and_spread(members))
            groups.append((parent, members))
        self._set_parent(members, parent)
        for group, children in groups:
            of_children = {child.info.status for child in children}
            status = next((status for status in ("RUNNING", "KILLED") if status in of_children), "FINISHED")
            self.client.update_run(group.info.run_id, status)

    def _members(self, run: RunFolder) -> list[Run]:
        """The runs of all rows of the run's table."""
        return self._search(f"tags.table_key = '{run.table_key}'")

    def _group(self, key: str, name: str) -> Run:
        """The run that represents a table, row or study, created if missing. If processes created several at the same
        moment, the oldest is kept and takes over the children of the others."""
        where = f"tags.run_key = '{key}'"
        if not (groups := self._search(where)):
            created = self.client.create_run(self.experiment, run_name=name, tags={"run_key": key})
            self.client.update_run(created.info.run_id, "FINISHED")  # unless the caller says otherwise
            groups = self._search(where)
        oldest, *duplicates = groups
        for duplicate in duplicates:
            self._set_parent(self._search(f"tags.`{PARENT}` = '{duplicate.info.run_id}'"), oldest)
            self.client.delete_run(duplicate.info.run_id)
        return oldest

    def _set_parent(self, runs: Sequence[Run], parent: Run) -> None:
        for run in runs:
            if run.data.tags.get(PARENT) != parent.info.run_id:
                self.client.set_tag(run.info.run_id, PARENT, parent.info.run_id)

    def _log_new(self, run: Run, values: Mapping[str, float], when: float) -> None:
        """Log the values that differ from those of `run`; `when` is in seconds since 1970."""
        ms, logged = int(1000 * when), run.data.metrics
        new = [Metric(name, value, ms, 0) for name, value in values.items() if logged.get(name) != value]
        if new:
            self.client.log_batch(run.info.run_id, metrics=new)

    def _log_means(self, group: Run, means: Mapping[str, float]) -> None:
        """Log the means of a row or table, as later steps: of several points MLflow shows the one of the last step.
        A test set that no run has any more counts 0 runs."""
        gone = {name: 0.0 for name in group.data.metrics if name.endswith(".runs") and name not in means}
        for name, value in {**means, **gone}.items():
            if group.data.metrics.get(name) != value:
                last = max((point.step for point in self.client.get_metric_history(group.info.run_id, name)), default=0)
                self.client.log_metric(group.info.run_id, name, value, step=last + 1)

    # --------------------------------------------------------------------------------------------- finding a run

    def _run_of(self, run: RunFolder) -> tuple[Run, set[int]]:
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
            name = f"{run.recipe}, seed {run.seed}"
            created = self.client.create_run(self.experiment, run.started, {"run_key": run.run_key}, name)

    def _find(self, run: RunFolder) -> tuple[Run | None, set[int]]:
        """The folder's MLflow run, if there is one, and its epochs.

        A run whose epochs have other losses is another training of the same configuration (on another machine, or
        forced again) and is left untouched.
        """
        losses = {entry["epoch"]: entry["loss"] for entry in run.history}
        for found in self._search(f"tags.run_key = '{run.run_key}'"):
            points = self.client.get_metric_history(found.info.run_id, "loss")
            if all(losses.get(point.step, point.value) == point.value for point in points):
                return found, {point.step for point in points}
        return None, set()

    def _search(self, where: str) -> list[Run]:
        """All matching runs, oldest first."""
        return self.client.search_runs([self.experiment], where, max_results=MAX_RUNS, order_by=["start_time"])

    # ------------------------------------------------------------------------------------------- what a run holds

    def _log_facts(self, mlrun: Run, run: RunFolder, in_table: bool) -> None:
        """Log the configuration as parameters, which never change, and environment and identity as tags, which may."""
        params = {name: str(value) for name, value in flat(run.stored).items() if name not in mlrun.data.params}
        tags = flat({"env": run.environment, "signature": _signatures(run)})
        tags |= {"recipe": run.recipe, "preset": run.preset, "seed": run.seed}
        tags |= {"recipe_hash": run.recipe_hash, "config_digest": run.digest, "run_folder": run.path}
        if in_table:
            tags |= {"table_key": run.table_key, "row_key": run.row_key}
        if revision := run.environment.get("revision"):
            tags |= {"git_revision": revision, "mlflow.source.git.commit": revision.rstrip("+")}
        self.client.log_batch(
            mlrun.info.run_id,
            params=[Param(name, value[:6000]) for name, value in params.items()],
            tags=[RunTag(name, str(value)[:5000]) for name, value in tags.items()],
        )

    def _log_history(self, run_id: str, run: RunFolder, logged: set[int]) -> None:
        entries = [pair for pair in zip(run.history, _ends(run), strict=True) if pair[0]["epoch"] not in logged]
        for start in range(0, len(entries), EPOCHS_PER_BATCH):
            points = [
                Metric(name, float(value), ended, entry["epoch"])
                for entry, ended in entries[start : start + EPOCHS_PER_BATCH]
                for name, value in entry.items()
                if name != "epoch" and isinstance(value, int | float) and math.isfinite(value)
            ]
            self.client.log_batch(run_id, metrics=points)

    def _log_datasets(self, run_id: str, run: RunFolder) -> None:
        """Log the training set and the scored test sets as inputs; MLflow ignores those it already has."""
        digest, scores = run.settings.data.digest, _scores(run)
        source = json.dumps({"archive": run.data, "digest": digest})
        contexts = {"train": "training"} | {split: f"test {split}" for split in scores}
        inputs = []
        for split, context in contexts.items():
            tags = {"mlflow.data.context": context}
            if split in scores:
                tags["expressions"] = str(scores[split].n)
            if split == run.settings.select:
                tags["selects_epoch"] = "true"  # the paper's protocol, also recorded in the signature
            dataset = Dataset(f"{run.data}-{split}", digest[:32] or "unknown", "local", source)
            inputs.append(DatasetInput(dataset, [InputTag(*tag) for tag in tags.items()]))
        self.client.log_inputs(run_id, inputs)

    def _log_model(self, run_id: str, run: RunFolder) -> None:
        """Register a finished run's weights as a version of the model DATA-RECIPE-PRESET.

        A version is just the safetensors file, in a folder named by its hash: nothing is ever unpickled, and no version
        changes afterwards.
        """
        if not (run.finished and run.has_weights):
            return
        digest = run.file_digest(run.weights.name)
        name = re.sub(r"[^\w.-]", "_", f"{run.data}-{run.recipe}-{run.preset}")
        tags = {"sha256": digest, "format": "safetensors", "seed": str(run.seed)}
        tags |= {"config_digest": run.digest, "recipe_hash": run.recipe_hash, "select": run.settings.select}
        tags |= {name: str(value) for name, value in (run.state or {}).items() if name in ("best_epoch", "step")}
        tags |= flat({"signature": _signatures(run)})
        versions = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        for version in versions:
            if version.tags.get("sha256") == digest:
                for tag in tags.items() - version.tags.items():  # scores are made after the training
                    self.client.set_model_version_tag(name, version.version, *tag)
                return
        folder = f"model/{digest[:16]}"
        self.client.log_artifact(run_id, str(run.weights), folder)
        with suppress(MlflowException):  # it already exists
            self.client.create_registered_model(name)
        self.client.create_model_version(name, f"runs:/{run_id}/{folder}", run_id, tags)


def _ends(run: RunFolder) -> list[int]:
    """When each epoch ended, in ms since 1970: the same whenever and wherever the folder is mirrored."""
    return [run.started + int(1000 * seconds) for seconds in run.seconds]


def _scores(run: RunFolder) -> dict[str, Score]:
    """The run's scores; none during its training, as the folder keeps those of an earlier one until it ends."""
    return run.scores if run.finished else {}


def _signatures(run: RunFolder) -> dict[str, str]:
    return {split: score.signature for split, score in _scores(run).items()}


def _rates(runs: Sequence[Run]) -> pd.DataFrame:
    """ExpRates of runs: one row per run, indexed by its row_key; one column per test set, such as 2014.exprate."""
    rates = [{key: rate for key, rate in run.data.metrics.items() if key.endswith(".exprate")} for run in runs]
    return pd.DataFrame(rates, [run.data.tags.get("row_key", "") for run in runs], dtype=float)


def _mean_and_spread(seeds: Sequence[Run]) -> dict[str, float]:
    """A row's metrics: the mean under the runs' own metric name, so that both share a column, its spread and count."""
    rates = _rates(seeds)
    metrics = pd.concat([rates.mean(), rates.std().add_suffix(".std"), rates.count().add_suffix(".runs")])
    return metrics.dropna().to_dict()


def _create(path: Path) -> None:
    """Create MLflow's tables in a temporary file first: MLflow never repairs a database left half-made."""
    with locked(path.parent, f"{path.name}.lock", LOCK_SECONDS):
        if not has_content(path):
            for leftover in path.parent.glob(f"{path.name}.*.part"):
                leftover.unlink()
            part = path.with_name(f"{path.name}.{time.time_ns()}.part")  # MLflow caches failed connections by name
            MlflowClient(tracking_uri=f"sqlite:///{part}").search_experiments()
            os.replace(part, path)
