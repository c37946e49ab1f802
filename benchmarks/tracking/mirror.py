"""Write run folders to an MLflow tracking store, idempotently.

Runs (contents.py) are found by their tag `run_key`, which depends on the folder's content and not on its path, so a
copied folder is the same run. Only what the store lacks is added: mirroring may be interrupted anywhere and repeated.
Of the processes of a machine, one writes to a store at a time (tracking_store.writing).

They form a tree: table (archive x preset) -> row (recipe) -> seed. A row gets its own node once it has a second run;
until then its only run is a child of the table, so one seed of five rows makes 1 + 5 runs. A table asks for its best
row alone: placing a run takes as long among three hundred rows as among three.
"""

import json
import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from mlflow import MlflowClient
from mlflow.entities import Run

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun
from hmerbench.benchmarks.runs.run import store_key
from hmerbench.benchmarks.tracking import contents, tracking_store
from hmerbench.benchmarks.tracking.contents import NOTE
from hmerbench.models.files import parse_json

RESULTS = ("predictions", "scores")  # of an earlier training, until this one ends
ABOUT = {  # tags of an experiment: the first makes the user interface open it on its runs, not on traces
    "mlflow.experimentKind": "custom_model_development",
    NOTE: "Runs of hmerbench on {}: tables open to rows, rows to seeds. The run folders are authoritative; "
    "`hmerbench track FOLDER` brings a run up to date.",
}


class Mirror:
    """An MLflow tracking store, opened for the runs on one data set."""

    def __init__(self, uri: str, data: str):
        self.database = tracking_store.sqlite_path(uri)
        if self.database and not tracking_store.has_content(self.database):
            _create(self.database)
        self.left_behind = tracking_store.find_artifacts(self.database) if self.database else []
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self.data = data

    @cached_property
    def experiment(self) -> str:
        """The id of the data set's experiment, created if missing."""
        name = "hmerbench" if self.data == "crohme" else f"hmerbench {self.data} (not CROHME)"
        tags = {key: text.format(self.data) for key, text in ABOUT.items()}
        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = tracking_store.artifacts_beside(self.database) if self.database else None  # a server has its own
            return self.client.create_experiment(name, location, tags)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        for key in tags.keys() - found.tags.keys():
            self.client.set_experiment_tag(found.experiment_id, key, tags[key])
        return found.experiment_id

    def show(self, run: RunFolder) -> None:
        """Keep a view of the user interface that has all runs, the best first, with a column for each test set: by
        itself it shows one closed line for a table, and no numbers."""
        tag = f"mlflow.sharedViewState.{tracking_store.VIEW}"
        known, own = list[str](), [f"metrics.`{store_key(split)}{RATE}`" for split in run.scores]
        with suppress(LookupError, ValueError, TypeError):  # another program's view
            known = parse_json(self.client.get_experiment(self.experiment).tags[tag])["selectedColumns"]
        if set(own) - set(known):
            columns = sorted({*known, *own})
            view = {"searchFilter": "tags.row_key != ''", "orderByKey": columns[0], "orderByAsc": False}
            self.client.set_experiment_tag(self.experiment, tag, json.dumps(view | {"selectedColumns": columns}))

    @cached_property
    def tree(self) -> "Tree":
        return Tree(self.client, self.experiment)

    def put(self, run: AnyRun, tables: Path | None, running: bool) -> str:
        """Bring the store up to date with the folder; return the id of its MLflow run.

        A trial is a child of its study instead of a table. `running`: the training is in progress.
        """
        study, (mlrun, epochs) = study_of(run.path), self._find(run)
        trial = run.trial if study else None
        if mlrun is None:
            mlrun = self.client.create_run(self.experiment, run.started, {"run_key": run.run_key}, run.title)
        run_id = mlrun.info.run_id
        if not run.finished and epochs - {entry["epoch"] for entry in run.history}:
            return run_id  # a training that is repeated, to the same losses, is not mirrored before it gets further
        contents.log_facts(self.client, mlrun, run, in_table=not study)
        contents.log_history(self.client, run_id, run, epochs)
        if isinstance(run, RunFolder):
            contents.log_datasets(self.client, run_id, run)
            contents.log_scores(self.client, mlrun, run, contents.log_model(self.client, mlrun, run))
        else:
            contents.log_perplexity(self.client, mlrun, run)
        for path in (run.path / name for name in run.PARTS if run.finished or name not in RESULTS):
            if path.exists():
                self.client.log_artifact(run_id, str(path))
        if run.finished or trial:  # one that was stopped early, too
            self.client.set_terminated(run_id, "FINISHED", max([*contents.ends(run), run.started]))
        else:
            self.client.update_run(run_id, "RUNNING" if running else "KILLED")
        if study:
            parent = self.tree.group(store_key(study), study).info.run_id
            self.client.set_tag(run_id, PARENT, parent)
            if trial:
                contents.log_trial(self.client, run_id, parent, run, trial)
            return run_id
        if not isinstance(run, RunFolder):
            return run_id
        table = self.tree.place(run)
        self.show(run)
        for path in sorted(tables.glob("table*.*")) if tables is not None else ():
            self.client.log_artifact(table, str(path), "tables")
        return run_id

    def set_status(self, trial: Path, status: str) -> None:
        """Set the status of the study of a trial's folder, if it is there."""
        for found in self.tree.groups(store_key(study_of(trial))):
            self.client.set_terminated(found.info.run_id, status)

    def remove(self, run: AnyRun) -> bool:
        """Delete the folder's MLflow run, and its row and table where nothing is left in them; whether there was one.

        A server keeps what is deleted for a while, as MLflow does: `mlflow gc` frees the space.
        """
        found, _ = self._find(run)
        if found is not None:
            self.client.delete_run(found.info.run_id)
            if isinstance(run, RunFolder):
                self.tree.forget(run)
        return found is not None

    def _find(self, run: AnyRun) -> tuple[Run | None, set[int]]:
        """The folder's MLflow run, if there is one, and its epochs.

        A run whose epochs have other losses is another training of the same configuration (on another machine, or
        forced again) and is left untouched, as is a trial of another study, whose default may be the same.
        """
        losses = {entry["epoch"]: entry[run.LOSS] for entry in run.history}
        study = study_of(run.path)
        studies = {group.info.run_id for group in self.tree.groups(store_key(study))} if study else set()
        for found in self.tree.groups(run.run_key):
            if study and found.data.tags.get(PARENT) not in (None, *studies):
                continue
            points = self.client.get_metric_history(found.info.run_id, contents.metric_name(run.LOSS))
            if all(losses.get(point.step, point.value) == point.value for point in points):
                return found, {point.step for point in points}
        return None, set()


def study_of(folder: Path) -> str:
    """The name of the run of the study, or of its check at the next seed, for a trial's folder
    WORKSPACE/tuning/STUDY/TRIAL; "" for any other folder."""
    trial = Path(os.path.abspath(folder))  # links stay: tuning/ or a study may be one
    study = trial.parent
    if study.parent.name != "tuning":
        return ""
    of_trial, of_study = (path.name.rpartition("-")[0] for path in (trial, study))  # up to the seed
    return f"tuning/{study.name}{'-check' * (not of_study.endswith(of_trial))}"


def _create(path: Path) -> None:
    """Create MLflow's tables in a temporary file first: MLflow never repairs a database left half-made."""
    for leftover in path.parent.glob(f"{path.name}.*.part"):
        leftover.unlink()
    part = path.with_name(f"{path.name}.{time.time_ns()}.part")  # MLflow caches failed connections by name
    MlflowClient(tracking_uri=f"sqlite:///{part}").search_experiments()
    os.replace(part, path)


# -------------------------------------------------------------------------------------------------------- the tree


MAX_RUNS = 50_000  # MLflow's limit for one search
PARENT = "mlflow.parentRunId"
RATE = "/exprate"  # ends the names of the metrics that are averaged

Rates = dict[str, float]  # by metric, such as SET/exprate


class Tree:
    """The runs of an experiment and the groups above them."""

    def __init__(self, client: MlflowClient, experiment: str):
        self.client, self.experiment = client, experiment

    def search(self, where: str, limit: int = MAX_RUNS, order: str = "start_time") -> list[Run]:
        """Matching runs, oldest first unless `order` says otherwise."""
        return self.client.search_runs([self.experiment], where, max_results=limit, order_by=[order])

    def groups(self, key: str) -> list[Run]:
        """The runs with this key, oldest first: several trainings of one configuration, or the one of a group."""
        return self.search(f"tags.run_key = '{key}'")

    def group(self, key: str, name: str, note: str = "") -> Run:
        """The run that represents a table, row or study, created if missing."""
        if groups := self.groups(key):
            return groups[0]
        created = self.client.create_run(self.experiment, run_name=name, tags={"run_key": key, NOTE: note})
        self.client.update_run(created.info.run_id, "FINISHED")  # unless the caller says otherwise
        return self.client.get_run(created.info.run_id)

    def forget(self, run: RunFolder) -> None:
        """Leave a deleted run out of its row and table, and delete those in which nothing is left."""
        if self.groups(run.table_key):
            table = self.place(run)
            if self._child(table) is None:
                self.client.delete_run(table)

    def place(self, run: RunFolder) -> str:
        """Place the runs of a row below its table, or below its row if there are several, and write what both say;
        return the table's id."""
        title = f"table 2, {run.data}, {run.preset}"
        note = "Open it (+) to see its rows. Its metrics are those of its best row; a row's are means over its seeds."
        table = self.group(run.table_key, title, note)
        runs = self.search(f"tags.row_key = '{run.row_key}'")
        if len(runs) > 1:
            note = "Its metrics are the mean, spread and number of its seeds, of each the newest scored run."
            row = self.group(run.row_key, run.recipe, note)
            self._set_parent(row, table)
            for each in runs:
                self._set_parent(each, row)
            newest = {each.data.tags["seed"]: rates for each in runs if (rates := _rates(each))}
            self._summarize(row, _mean_and_spread(list(newest.values())))
        else:
            for each in runs:
                self._set_parent(each, table)
            for row in self.groups(run.row_key):
                self.client.delete_run(row.info.run_id)
        self._summarize(table, self._best(table, run))
        return table.info.run_id

    def _best(self, table: Run, run: RunFolder) -> Rates:
        """The highest rate of any row (a mean, where it has several runs) by metric."""
        best = Rates()
        for name in {f"{store_key(split)}{RATE}" for split in run.scores} | set(_rates(table)):
            top = self._child(table.info.run_id, order=f"metrics.`{name}` DESC")
            if top and name in top.data.metrics:
                best[name] = top.data.metrics[name]
        return best

    def _child(self, group: str, and_: str = "", order: str = "start_time") -> Run | None:
        """The first child of a group."""
        return next(iter(self.search(f"tags.`{PARENT}` = '{group}'{and_}", 1, order)), None)

    def _summarize(self, group: Run, rates: Rates) -> None:
        """Log the rates of a row or table, as later steps: of several points MLflow shows the one of the last step. A
        test set that no run has any more counts 0 runs. Its status is that of its children."""
        id_ = group.info.run_id
        gone = {name: 0.0 for name in group.data.metrics if name.endswith("_runs") and name not in rates}
        for name, value in {**rates, **gone}.items():
            if group.data.metrics.get(name) != value:
                last = max((point.step for point in self.client.get_metric_history(id_, name)), default=0)
                self.client.log_metric(id_, name, value, step=last + 1)
        child = self._child(id_, " and attributes.status != 'FINISHED'", "status DESC")  # RUNNING before KILLED
        status = child.info.status if child and child.info.status in ("RUNNING", "KILLED") else "FINISHED"
        if status != group.info.status:
            self.client.update_run(id_, status)

    def _set_parent(self, run: Run, parent: Run) -> None:
        if run.data.tags.get(PARENT) != parent.info.run_id:
            self.client.set_tag(run.info.run_id, PARENT, parent.info.run_id)


def _rates(run: Run) -> Rates:
    return {name: value for name, value in run.data.metrics.items() if name.endswith(RATE)}


def _mean_and_spread(seeds: list[Rates]) -> Rates:
    """A row's metrics: the mean under the runs' own metric name, so that both share a column, its spread and count."""
    found = Rates()
    for name in sorted({name for rates in seeds for name in rates}):
        values = [rates[name] for rates in seeds if name in rates]
        found |= {name: fmean(values), f"{name}_runs": float(len(values))}
        if len(values) > 1:
            found[f"{name}_std"] = stdev(values)
    return found
