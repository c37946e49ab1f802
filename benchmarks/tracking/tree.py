"""The tree of runs in MLflow: table (archive x preset) -> row (recipe) -> seed.

A row gets its own node once it has a second run; until then its only run is a child of the table, so one seed of five
rows makes 1 + 5 runs. A row's node keeps the rates of its runs in tags, and a table asks for its best row alone:
placing a run takes as long among three hundred as among three.
"""

import json
from statistics import fmean, stdev

from mlflow import MlflowClient
from mlflow.entities import Run

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.files import parse_json

MAX_RUNS = 50_000  # MLflow's limit for one search
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
MEMBER = "rates."  # begins the tags of a row's node: a run's id, with its rates as JSON
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
        """The runs with this key, oldest first; more than one if processes created them at the same moment."""
        return self.search(f"tags.run_key = '{key}'")

    def group(self, key: str, name: str, note: str = "") -> Run:
        """The run that represents a table, row or study, created if missing. Of several, the oldest is kept and takes
        over the children of the others."""
        if not (groups := self.groups(key)):
            created = self.client.create_run(self.experiment, run_name=name, tags={"run_key": key, NOTE: note})
            self.client.update_run(created.info.run_id, "FINISHED")  # unless the caller says otherwise
            groups = self.groups(key)
        oldest, *duplicates = groups
        for duplicate in duplicates:
            for child in self.search(f"tags.`{PARENT}` = '{duplicate.info.run_id}'"):
                self._set_parent(child, oldest)
            self.client.delete_run(duplicate.info.run_id)
        return oldest

    def place(self, run: RunFolder, id_: str) -> str:
        """Place a run below its table, or below its row if that has several; return the table's id.

        Repeated until nothing changes any more, as other processes may place theirs meanwhile.
        """
        before = None
        while (now := self._settle(run, id_)) != before:
            before = now
        return now[0]

    def forget(self, run: RunFolder, id_: str) -> None:
        """Leave a deleted run out of its row and table, and delete those in which nothing is left."""
        for row in self.groups(run.row_key):
            if MEMBER + id_ in row.data.tags:
                self.client.delete_tag(row.info.run_id, MEMBER + id_)
        if self.groups(run.table_key):
            table = self._settle(run)[0]
            if self._child(table) is None:
                self.client.delete_run(table)

    def _settle(self, run: RunFolder, id_: str = "") -> tuple:
        """Write the place of a row's run `id_`, and what its row and table say; the table's id, and all this."""
        title = f"table 2, {run.data}, {run.preset}"
        note = "Open it (+) to see its rows. Its metrics are those of its best row; a row's are means over its seeds."
        table = self.group(run.table_key, title, note)
        rows = self.groups(run.row_key)  # first: a row that exists has two runs
        seeds, members = self.search(f"tags.row_key = '{run.row_key}'", 2), dict[str, str]()
        if len(seeds) > 1:
            note = "Its metrics are the mean, spread and number of its seeds."
            row = rows[0] if len(rows) == 1 else self.group(run.row_key, run.recipe, note)
            self._set_parent(row, table)
            if any(tag.startswith(MEMBER) for tag in row.data.tags):
                placed = [self.client.get_run(id_)] if id_ else []
            else:
                placed = self.search(f"tags.row_key = '{run.row_key}'")
            for seed in placed:
                self._set_parent(seed, row)
                self._set_tag(row, MEMBER + seed.info.run_id, json.dumps(_rates(seed), sort_keys=True))
            row = self.client.get_run(row.info.run_id)
            members = {tag: rates for tag, rates in row.data.tags.items() if tag.startswith(MEMBER)}
            self._summarize(row, _mean_and_spread([parse_json(rates) for rates in members.values()]))
        else:
            for seed in seeds:
                self._set_parent(seed, table)
            for row in rows:
                self.client.delete_run(row.info.run_id)
        best = self._best(table, run)
        self._summarize(table, best)
        return table.info.run_id, [seed.info.run_id for seed in seeds], members, best

    def _best(self, table: Run, run: RunFolder) -> Rates:
        """The highest rate of any row (a mean, where it has several runs) by metric."""
        best = Rates()
        for name in {f"{split}{RATE}" for split in run.scores} | set(_rates(table)):
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
        self._set_tag(run, PARENT, parent.info.run_id)

    def _set_tag(self, run: Run, name: str, value: str) -> None:
        if run.data.tags.get(name) != value:
            self.client.set_tag(run.info.run_id, name, value)


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
