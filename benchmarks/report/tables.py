"""Tables 1 and 2 of the paper: reported, reproduced and local numbers side by side.

`reported` rows are the paper's (reference.yaml), `reproduced` rows come from the run folders committed under
results/reproduced/ (`external` those of them that a program outside the suite trained, at least in part), `local` rows
from runs on this machine. The committed results/table*.{csv,md,tex} hold all but the last, and only `make tables`
writes them; results/local/table*.{csv,md,tex} hold all.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

import pandas as pd

from hmerbench.benchmarks import printing
from hmerbench.benchmarks.config import SCHEMA
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.documents import FLAGS, from_template, latex_table, markdown, write_texts
from hmerbench.benchmarks.report.paper import YEAR, model_name, reference, rows_of_bttr
from hmerbench.benchmarks.report.scored_runs import sampled_rate
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_plain
from hmerbench.evaluation.datasets import TRAIN, crohme
from hmerbench.evaluation.scoring.metrics import TABULATED, WITHIN, printed_interval
from hmerbench.evaluation.scoring.score import VERSION, Score, fields_of
from hmerbench.evaluation.symlg.editions import PAPER

COUNTS = {metric.rate: metric.count for metric in TABULATED}  # column -> key of its count in a score file
EXPRATE, *OTHERS = COUNTS
RIGHT = {"exact": "ceiling", "neutral": "neutral_ceiling"}  # how many are right -> for a perfect reader of the captions
COLUMNS = ("dataset", "model", "source", *COUNTS, "n", "exact", "ceiling", "neutral", "neutral_ceiling", "ci_low",
           "ci_high", "ci_over", "seeds", "sd", "preset", "added")  # fmt: skip
SHORT = ("dataset", "model", "source", EXPRATE, "interval", *OTHERS, "n", "neutral", "seeds", "sd", "preset")
ADDED = " + data"  # appended to the preset of a run with added training data
INTERVAL = ("ci_low", "ci_high", "ci_over")
RATES = (*COUNTS, "ci_low", "ci_high", "sd")
SOURCES = ("reported", "external", "reproduced", "local")

Record = dict[str, Any]  # by column
Tables = dict[str, pd.DataFrame]  # "table1" and "table2", or "table2" alone where the data is not CROHME


def committed(results: Path) -> Tables:
    """The reported and reproduced rows, as in results/table*.{csv,md,tex}."""
    return paper_tables(committed_rows(results), results)


def local(results: Path) -> Tables:
    """The committed rows and those of CROHME runs under results/runs/."""
    return paper_tables(committed_rows(results) + rows_of_runs("local", results / "runs"), results)


def apart(workspace: Path) -> Tables:
    """The rows of runs on other data than CROHME, and of weights that read it, without the paper's rows."""
    rows = rows_of_runs("local", workspace / "runs", workspace / "evaluated")
    return {"table2": _frame(rows, "table2", "Table 2 on other data: NOT CROHME numbers")}


def committed_rows(results: Path) -> list[Record]:
    """One row per dataset, recipe and preset of the committed runs; finding their intervals takes seconds."""
    return rows_of_runs("reproduced", results / "reproduced")


def write_tables(tables: Tables, folder: Path) -> list[Path]:
    """Write every table as CSV, Markdown and LaTeX, each file atomically; return the paths."""
    texts = {}
    for name, table in tables.items():
        title, cells = table.attrs["title"], printable(table)
        flags = cells.columns.intersection(list(FLAGS))
        caption = title.partition(": ")[2]
        texts[folder / f"{name}.csv"] = table.to_csv(index=False, float_format="%.2f")
        texts[folder / f"{name}.md"] = f"**{title}**\n\n{markdown(cells)}\n\n{meanings()}"
        texts[folder / f"{name}.tex"] = latex_table(short(table).join(cells[flags]), caption, f"tab:{name}")
    return write_texts(texts)


def meanings() -> str:
    """What the columns mean, in Markdown."""
    more = [metric for metric in TABULATED if metric not in WITHIN]
    return from_template("columns.md", more=more, train=f"{crohme().n(TRAIN):,}", bttr=rows_of_bttr())


def show(tables: Tables) -> None:
    for table in tables.values():
        printing.show(table.attrs["title"], short(table).to_dict("records") or [dict.fromkeys(SHORT)])


def short(table: pd.DataFrame) -> pd.DataFrame:
    """Format a table as text in fewer columns: the interval in one, added data marked at the preset, no flags."""
    cells = printable(table)
    cells["interval"] = [interval(low, high) for low, high in zip(table["ci_low"], table["ci_high"], strict=True)]
    cells["preset"] += ["" if added in ("–", "nothing") else ADDED for added in cells["added"]]
    return pd.DataFrame(cells, columns=list(SHORT))


def _ablation(runs: list[Record]) -> list[Record]:
    """The paper's Table 1, and the runs on its year but those of systems that it does not have."""
    systems = {recipe for recipe, names in reference()["recipes"].items() if "table1" not in names}
    reported = [{"dataset": YEAR, **row} for row in reference()["table1"]]
    return reported + [row for row in runs if row["split"] == YEAR and row["recipe"] not in systems]


def _systems(runs: list[Record]) -> list[Record]:
    """The paper's Table 2, and all runs."""
    return [
        {"dataset": year, "model": model, **dict(zip((metric.rate for metric in WITHIN), rates, strict=False))}
        for year, models in reference()["table2"].items()
        for model, rates in models.items()
    ] + runs


class Table(NamedTuple):
    """A table: what it shows, which rows it has, the reported ones and those of `runs`, and its columns of flags."""

    title: str
    rows: Callable[[list[Record]], list[Record]]
    flags: tuple[str, ...] = ()


TABLES = {  # by the name of its files
    "table1": Table(f"ablation on CROHME {YEAR}", _ablation, FLAGS),
    "table2": Table(f"CROHME {', '.join(reference()['table2'])}", _systems),
}


def paper_tables(runs: list[Record], results: Path) -> Tables:
    """Every table with the paper's rows and those of `runs`, each beside its year's ceilings."""
    best, built = ceilings(results), {}
    for name, table in TABLES.items():
        built[name] = table.rows(runs)
        for row in built[name]:
            if "source" not in row:
                row |= {"source": "reported", "n": crohme().n(row["dataset"])}
            row |= {RIGHT[name]: best[row["dataset"]][name] for name in RIGHT if row["dataset"] in best}
    return {
        name: _frame(rows, name, f"Table {name.removeprefix('table')}: {TABLES[name].title}")
        for name, rows in built.items()
    }


class Row(NamedTuple):
    """What the runs of a row have in common, but for their seed."""

    dataset: str
    split: str
    n: int
    recipe: str
    source: str
    preset: str
    added: str


def rows_of_runs(source: str, *roots: Path) -> list[Record]:
    """One row per dataset, recipe and preset: the mean over seeds, of each seed the run scored last. A local run
    of an older version of the settings, which this suite cannot read, is left out with a warning."""
    scored = [run for run in RunFolder.under(*roots) if run.scores and (source != "local" or _readable(run))]
    labels, latest = presets.preset_labels(scored), dict[tuple[Row, int], tuple[float, RunFolder]]()
    for run in scored:
        made_by = "external" if source == "reproduced" and run.external else source
        added = presets.added_data(run.settings.data)
        for split, score in run.scores.items():
            row = Row(_dataset(run, split, score.n), split, score.n, run.recipe, made_by, labels[run], added)
            scored_at = (run.path / f"scores/{split}.json").stat().st_mtime
            if scored_at >= latest.get((row, run.seed), (0.0, run))[0]:
                latest[row, run.seed] = scored_at, run
    rows: dict[Row, list[RunFolder]] = {}
    for (row, _), (_, run) in latest.items():
        preset = row.preset + _other_scorer(run.scores[row.split])
        rows.setdefault(row._replace(preset=preset), []).append(run)
    return [row._asdict() | _over_seeds(row, runs) for row, runs in rows.items()]


def _readable(run: RunFolder) -> bool:
    try:
        return bool(run.settings)
    except UserError as error:
        if run.stored.get("schema_version", SCHEMA) == SCHEMA:
            raise
        printing.err_console.print(f"warning: {error}; it is in no table")
        return False


def _over_seeds(row: Row, runs: Sequence[RunFolder]) -> Record:
    """Means over the runs of a row, on their test set."""
    scores, found = [run.scores[row.split] for run in runs], Record(seeds=len(runs))
    try:
        its = sampled_rate(runs, row.split)
        found |= dict(zip(INTERVAL, (its.low, its.high, its.over), strict=True))
    except UserError as error:  # of a damaged run; the others' rows are still wanted
        printing.err_console.print(f"warning: {error}; till then its interval is over images, from the counts alone")
    found["sd"] = stdev(100 * score.exact / row.n for score in scores) if len(scores) > 1 else None
    for metric in TABULATED:
        told, whole = (metric.rate, 100) if metric.of else (metric.count, row.n)
        counted = [getattr(score, told) for score in scores]
        found[metric.rate] = None if None in counted else 100 * sum(counted) / (whole * len(scores))
    found |= {name: mean_count([getattr(score, name) for score in scores]) for name in RIGHT}
    return found | {flag: reference()["recipes"].get(row.recipe, {}).get(flag) for flag in FLAGS}


def ceilings(results: Path) -> dict[str, dict[str, int]]:
    """By test set, how many of n a perfect reader of the captions gets right (RIGHT), as `make scoreboard` counted."""
    path = results / "leaderboard.json"
    try:
        return {year: {name: int(of[name]) for name in RIGHT} for year, of in read_plain(path)["ceilings"].items()}
    except FileNotFoundError:
        return {}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path}: damaged, or of another version; run make scoreboard, or restore it") from None


def mean_count(counts: Sequence[int | None]) -> str | None:
    """A count, or the mean of several seeds' with one decimal; None if one is not known."""
    known = [count for count in counts if count is not None]
    mean = sum(known) / len(known) if len(known) == len(counts) else None
    return None if mean is None else f"{mean:.1f}" if len(counts) > 1 else str(known[0])


def _other_scorer(score: Score) -> str:
    """How the scorer in a score's signature differs from the paper's, so that seeds of several are not averaged."""
    usual = PAPER.versions | {"scorer": "", "v": VERSION}
    fields = fields_of(score.signature)
    return "".join(f" {key}:{text}" for key, text in fields.items() if usual.get(key, text) != text)


def _dataset(run: RunFolder, split: str, n: int) -> str:
    """CROHME's year or the name of other data, and how much of it was scored if not all."""
    data = run.read_data
    label = split if data == "crohme" else data if split == "test" else f"{data} {split}"
    partial = run.settings.search.limit == n and (split not in crohme().tests or n != crohme().n(split))
    return f"{label} [{n} evenly spaced]" if partial else label


def _frame(rows: list[Record], name: str, title: str) -> pd.DataFrame:
    """Rows with their intervals, in the paper's order; the sources of a model stand next to each other. The title is in
    its `attrs`."""

    def model(recipe: str) -> str:
        return reference()["recipes"].get(recipe, {}).get(name, model_name(recipe))

    ours, order = [model(recipe) for recipe in reference()["recipes"]], list[str]()
    for named in [*(row["model"] for row in rows if "model" in row), *ours]:  # ours where the paper has them
        before = ours[: ours.index(named)] if named in ours else []
        order += [each for each in (*before, named) if each not in order]
    rows = [
        {"model": model(row.get("recipe", ""))}
        | dict(zip(INTERVAL, (*printed_interval(row["exprate"], row["n"]), "images"), strict=True))
        | row
        for row in rows
    ]

    def position(row: Mapping[str, Any]) -> tuple:
        rank = order.index(row["model"]) if row["model"] in order else len(order)
        year = row["dataset"].partition(" [")[0]
        preset = row.get("preset", "").partition(" ")[0], row.get("added", "")
        return year, rank, row["model"], SOURCES.index(row["source"]), row["dataset"], preset

    columns = [*COLUMNS, *TABLES[name].flags]
    frame = pd.DataFrame(sorted(rows, key=position), columns=columns)
    frame = frame.astype(dict.fromkeys(RATES, float) | {"n": "Int64", "seeds": "Int64"})
    frame.attrs["title"] = title
    return frame


def interval(low: float, high: float) -> str:
    return "–" if pd.isna(low) else f"{low:.1f}–{high:.1f}"


def printable(frame: pd.DataFrame) -> pd.DataFrame:
    """Format every cell as text: rates with two decimals, flags as ✓ and ✗, a dash for unknown values."""

    def text(column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        if column in FLAGS:
            return "✓" if value else "✗"
        return f"{value:.2f}" if column in RATES else str(value)

    return pd.DataFrame({name: [text(name, value) for value in frame[name]] for name in frame.columns}, dtype=object)
