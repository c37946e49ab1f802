"""A run folder in MLflow's terms: what is written to the tracking store, and how it is found there again.

The tree is table (archive x preset) -> row (recipe) -> seed. A row is drawn once it has a second run; until then its
one run hangs below the table, so one seed of five rows is 1 + 5 runs. Runs are found by their tag `run_key`, made of
what the folder says and not of where it lies, so a copied folder is the same run. What was logged is read back from
the store and only the rest is added: mirroring may be cut short anywhere, repeated, or done from several processes.
"""

import hashlib
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

from benchmarks.config import flat
from benchmarks.files import only_one
from benchmarks.runs.folder import RunFolder, store_key
from benchmarks.tracking.tracking_store import has_content, sqlite_path

ARTIFACTS = ("config.yaml", "environment.json", "history.jsonl", "predictions", "scores")
SCORE_METRICS = ("exprate", "exprate_le1", "exprate_le2", "exprate_le3", "structure_rate", "token_exprate", "n")
EPOCHS_A_BATCH = 50  # MLflow takes 1000 metric points at once; an epoch's points stay together, so all come or none
MOST_RUNS = 50_000  # that MLflow finds at once
LOCK_SECONDS = 60  # to wait for another process that makes the database
RACES = ("constraint", "'active' state", "database is locked", "deadlock")  # two processes met; the next try goes well
RACE_TRIES, RACE_SECONDS = 10, 30  # both must be over: on a busy machine a single try may take so long
PARENT = "mlflow.parentRunId"


class Mirror:
    """An MLflow tracking store, opened for runs on the data of one name."""

    def __init__(self, uri: str, workspace: Path, data: str):
        if (path := sqlite_path(uri)) and not has_content(path):
            _create(path)
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.uri, self.workspace, self.data = uri, workspace, data

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment of this data, made where there is none."""
        name = "hmerbench" if self.data == "crohme" else f"hmerbench {self.data} (not CROHME)"
        found = self.client.get_experiment_by_name(name)
        if found is None:
            local = self.uri.startswith("sqlite:")  # a server knows where its artifacts belong
            place = (self.workspace / "mlartifacts").resolve().as_uri() if local else None
            try:
                return self.client.create_experiment(name, place)
            except MlflowException:
                if (found := self.client.get_experiment_by_name(name)) is None:
                    raise  # else another process was faster
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return found.experiment_id

    def put(
        self, run: RunFolder, tables: Path | None = None, under: str = "", name: str = "", running: bool = False
    ) -> str:
        """Brings the store up to date with the folder; returns the id of its MLflow run.

        `under` names a run to hang it below instead of a table, `name` what to call it there; `running` says that the
        training goes on right now.
        """
        tries, until = 0, time.monotonic() + RACE_SECONDS
        while True:
            tries += 1
            try:
                return self._put(run, tables, under, name, running)
            except MlflowException as error:
                over = tries >= RACE_TRIES and time.monotonic() > until
                if over or not any(sign in str(error) for sign in RACES):
                    raise
                time.sleep(random.uniform(0, 0.2))

    def conclude(self, group: str, status: str) -> None:
        """Marks the run above others, if there is one, as ended."""
        for found in self._search(f"tags.run_key = '{store_key(group)}'"):
            self.client.set_terminated(found.info.run_id, status)

    def _put(self, run: RunFolder, tables: Path | None, under: str, name: str, running: bool) -> str:
        mlrun, epochs = self._run_of(run)
        run_id = mlrun.info.run_id
        self._log_facts(mlrun, run, in_table=not under)
        self._log_history(run_id, run, epochs)
        for split, score in run.scores.items():
            found = {name: getattr(score, name) for name in SCORE_METRICS}
            values = {f"{split}.{name}": float(value) for name, value in found.items() if value is not None}
            self._log_new(mlrun, values, (run.path / f"scores/{split}.json").stat().st_mtime)
        self._log_datasets(run_id, run)
        for path in (run.path / name for name in ARTIFACTS):
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
            self.client.update_run(group, "RUNNING")
            return run_id
        title = f"table 2, {run.data}, {run.preset}"
        while True:
            table = self._group(run.table_key, title)
            self._hang_row(run, table)
            if self._group(run.table_key, title).info.run_id == table.info.run_id:  # else another made an older one
                break
        for path in sorted(tables.glob("table*.*")) if tables is not None else ():
            self.client.log_artifact(table.info.run_id, str(path), "tables")
        return run_id

    # -------------------------------------------------------------------------------------------------- the tree

    def _hang_row(self, run: RunFolder, table: Run) -> None:
        runs = self._search(f"tags.table_key = '{run.table_key}'")
        members = [member for member in runs if member.data.tags.get("row_key") == run.row_key]
        above, groups = table, [(table, runs)]
        rows = cast(pd.DataFrame, _rates(runs).groupby(level=0).mean())
        best = rows.max().to_dict()  # of each test set the highest mean of a row so far
        self._log_new(table, best, time.time(), len(runs))
        if len(members) > 1:
            above = self._group(run.row_key, run.recipe)
            self._hang([above], table)
            self._log_new(above, _mean_and_spread(members), time.time(), len(members))
            groups.append((above, members))
        self._hang(members, above)
        for group, below in groups:
            busy = any(member.info.status == "RUNNING" for member in below)
            self.client.update_run(group.info.run_id, "RUNNING" if busy else "FINISHED")

    def _group(self, key: str, name: str) -> Run:
        """The run that stands for a table or a row. Of several, made by processes at the same moment, the oldest stays
        and takes over what hangs below the others."""
        where = f"tags.run_key = '{key}'"
        if not (found := self._search(where)):
            self.client.create_run(self.experiment, run_name=name, tags={"run_key": key})
            found = self._search(where)
        for surplus in found[1:]:
            self._hang(self._search(f"tags.`{PARENT}` = '{surplus.info.run_id}'"), found[0])
            self.client.delete_run(surplus.info.run_id)
        return found[0]

    def _hang(self, runs: Sequence[Run], above: Run) -> None:
        for run in runs:
            if run.data.tags.get(PARENT) != above.info.run_id:
                self.client.set_tag(run.info.run_id, PARENT, above.info.run_id)

    def _log_new(self, run: Run, values: Mapping[str, float], when: float, step: int = 0) -> None:
        """Those of the values that the run, as it was read, does not have; `when` in seconds since 1970."""
        now = int(1000 * when)
        new = [Metric(name, v, now, step) for name, v in values.items() if run.data.metrics.get(name) != v]
        if new:
            self.client.log_batch(run.info.run_id, metrics=new)

    # --------------------------------------------------------------------------------------------- finding a run

    def _run_of(self, run: RunFolder) -> tuple[Run, set[int]]:
        """The folder's MLflow run, made where there is none yet, and the epochs it has.

        A run whose epochs had another loss is another training of the same configuration (made on another machine,
        or forced again) and stays as it is.
        """
        losses = {entry["epoch"]: entry["loss"] for entry in run.history}
        made = None
        while True:
            for mlrun in self._search(f"tags.run_key = '{run.run_key}'"):
                points = self.client.get_metric_history(mlrun.info.run_id, "loss")
                if all(losses.get(point.step, point.value) == point.value for point in points):
                    if made and made.info.run_id != mlrun.info.run_id:  # another process made one, too
                        self.client.delete_run(made.info.run_id)
                    return mlrun, {point.step for point in points}
            if made:
                raise RuntimeError("it does not show the run that was just made")
            name = f"{run.recipe}, seed {run.seed}"
            made = self.client.create_run(self.experiment, run.started, {"run_key": run.run_key}, name)

    def _search(self, where: str) -> list[Run]:
        """All that match, the oldest first."""
        return self.client.search_runs([self.experiment], where, max_results=MOST_RUNS, order_by=["start_time"])

    # ------------------------------------------------------------------------------------------- what a run holds

    def _log_facts(self, mlrun: Run, run: RunFolder, in_table: bool) -> None:
        """Parameters (of the configuration, never changed) and tags (where and what it is, brought up to date)."""
        params = {name: str(value) for name, value in flat(run.config).items() if name not in mlrun.data.params}
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

    def _log_history(self, run_id: str, run: RunFolder, there: set[int]) -> None:
        entries = [pair for pair in zip(run.history, _ends(run), strict=True) if pair[0]["epoch"] not in there]
        for start in range(0, len(entries), EPOCHS_A_BATCH):
            points = [
                Metric(name, float(value), ended, entry["epoch"])
                for entry, ended in entries[start : start + EPOCHS_A_BATCH]
                for name, value in entry.items()
                if name != "epoch" and isinstance(value, int | float) and math.isfinite(value)
            ]
            self.client.log_batch(run_id, metrics=points)

    def _log_datasets(self, run_id: str, run: RunFolder) -> None:
        """The splits the run has to do with, each with its part in it. MLflow adds a dataset once."""
        digest = run.config["data"].get("digest", "")
        source = json.dumps({"archive": run.data, "digest": digest})
        parts = {"train": "training"} | {split: f"test {split}" for split in run.scores}
        inputs = []
        for split, part in parts.items():
            tags = {"mlflow.data.context": part}
            if split in run.scores:
                tags["expressions"] = str(run.scores[split].n)
            if split == run.config.get("select"):
                tags["selects_epoch"] = "true"  # the paper's protocol; a signature says so, too
            dataset = Dataset(f"{run.data}-{split}", digest[:32] or "unknown", "local", source)
            inputs.append(DatasetInput(dataset, [InputTag(*tag) for tag in tags.items()]))
        self.client.log_inputs(run_id, inputs)

    def _log_model(self, run_id: str, run: RunFolder) -> None:
        """A finished run's weights as a version of the registered model DATA-RECIPE-PRESET. It is the safetensors file
        alone, in a folder called by its hash, so that nothing is ever unpickled and no version changes afterwards."""
        if not (run.finished and run.has_weights):
            return
        with open(run.weights, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = re.sub(r"[^\w.-]", "_", f"{run.data}-{run.recipe}-{run.preset}")
        tags = {"sha256": digest, "format": "safetensors", "seed": str(run.seed)}
        tags |= {"config_digest": run.digest, "recipe_hash": run.recipe_hash, "select": str(run.config.get("select"))}
        tags |= {name: str(value) for name, value in (run.state or {}).items() if name in ("best_epoch", "step")}
        tags |= flat({"signature": _signatures(run)})
        versions = self.client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
        for version in versions:
            if version.tags.get("sha256") == digest:
                for tag in tags.items() - version.tags.items():  # scores come after the training
                    self.client.set_model_version_tag(name, version.version, *tag)
                return
        place = f"model/{digest[:16]}"
        self.client.log_artifact(run_id, str(run.weights), place)
        with suppress(MlflowException):  # it is there already
            self.client.create_registered_model(name)
        self.client.create_model_version(name, f"runs:/{run_id}/{place}", run_id, tags)


def _ends(run: RunFolder) -> list[int]:
    """When each epoch ended, in ms: the same whenever and wherever the folder is mirrored."""
    return [run.started + int(1000 * seconds) for seconds in run.seconds]


def _signatures(run: RunFolder) -> dict[str, str]:
    return {split: score.signature for split, score in run.scores.items()}


def _rates(runs: Sequence[Run]) -> pd.DataFrame:
    """Every ExpRate of the runs: a line for each, called by its row; a column for each test set, as 2014.exprate."""
    rates = [{name: v for name, v in run.data.metrics.items() if name.endswith(".exprate")} for run in runs]
    return pd.DataFrame(rates, [run.data.tags.get("row_key", "") for run in runs], dtype=float)


def _mean_and_spread(seeds: Sequence[Run]) -> dict[str, float]:
    """What a row shows: the mean by the name its runs use, so that it stands in their column, and how it came about."""
    rates = _rates(seeds)
    shown = pd.concat([rates.mean(), rates.std().add_suffix(".std"), rates.count().add_suffix(".runs")])
    return shown.dropna().to_dict()


def _create(path: Path) -> None:
    """Makes MLflow's tables, which takes seconds, under another name: what is cut short there, MLflow never fixes."""
    with only_one(path.parent, f"{path.name}.lock", LOCK_SECONDS):
        if not has_content(path):
            for leftover in path.parent.glob(f"{path.name}.*.part"):
                leftover.unlink()
            part = path.with_name(f"{path.name}.{time.time_ns()}.part")  # MLflow keeps what failed open, by name
            MlflowClient(tracking_uri=f"sqlite:///{part}").search_experiments()
            os.replace(part, path)
