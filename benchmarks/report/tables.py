"""Tables 1 and 2 of the paper: reported, reproduced and local numbers side by side.

`reported` rows are the paper's (reference.yaml), `reproduced` rows come from the run folders committed
under results/reproduced/, `local` rows from what was run here. The committed results/table*.{csv,md,tex}
hold the first two and are written by `make tables` alone; results/local/table*.{csv,md,tex} hold all three.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.report import latex_tables as latex
from benchmarks.report.paper import reference
from benchmarks.runs.folder import RunFolder
from evaluation.scoring.interval import proportion_interval

COLUMNS = (
    "dataset",
    "model",
    "source",
    "exprate",
    "le1",
    "le2",
    "le3",
    "n",
    "ci_low",
    "ci_high",
    "seeds",
    "sd",
    "preset",
    "parts",
)
RATES = ("exprate", "le1", "le2", "le3", "ci_low", "ci_high", "sd")
FLAGS = ("scale_aug", "self_cov", "cross_cov")  # Table 1 has them too
COUNTS = {"exprate": "exact", "le1": "le1", "le2": "le2", "le3": "le3"}  # column <- key of a score file
SOURCES = ("reported", "reproduced", "local")

NOTE = (
    "Percentages come from counts. Several seeds of a row give the mean rate. `ci_low`, `ci_high` is the 95 % Wilson "
    "interval of ExpRate for the n images of the set: all seeds meet the same images, so more of them do not narrow "
    "it; `sd` is the standard deviation of ExpRate between them. For reported rows the count behind the interval is "
    "the reported rate times n, rounded. `parts`: sub-expressions cut out of each training expression at most and "
    "trained on as well; the paper trains on the 8,834 expressions alone."
)

IN_README = "<!-- written by make tables -->\n", "<!-- end of what make tables writes -->\n"

Tables = dict[str, pd.DataFrame]  # "table1" and "table2", or "table2" alone where the data is not CROHME


def committed(results: Path) -> Tables:
    """Reported and reproduced rows: what results/table*.{csv,md,tex} hold."""
    return _paper_tables(_rows(results / "reproduced", "reproduced"))


def local(results: Path) -> Tables:
    """The committed rows and those of the CROHME runs under results/runs/."""
    runs = _rows(results / "reproduced", "reproduced") + _rows(results / "runs", "local")
    return _paper_tables(runs)


def apart(workspace: Path) -> Tables:
    """The rows of runs on data that is not CROHME; nothing of the paper stands beside them."""
    return {"table2": _frame(_rows(workspace / "runs", "local"), "table2")}


def write(tables: Tables, folder: Path, *, crohme: bool = True) -> list[Path]:
    """Writes every table as CSV, Markdown and LaTeX, each file atomically. Returns the paths."""
    paths = []
    for name, table in tables.items():
        title = heading(name, crohme=crohme)
        markdown = _printable(table).to_markdown(index=False, disable_numparse=True)
        texts = {
            "csv": table.to_csv(index=False, float_format="%.2f"),
            "md": f"**{title}**\n\n{markdown}\n\n{NOTE}\n",
            "tex": latex.table(_printable(table), title.partition(": ")[2], f"tab:{name}"),
        }
        for ending, text in texts.items():
            paths.append(folder / f"{name}.{ending}")
            write_atomically(paths[-1], text)
    return paths


def write_summary(tables: Tables, readme: Path) -> None:
    """Puts Table 1 in short between the marks of a README. Raises UserError where they are missing."""
    begin, end = IN_README
    before, found, rest = readme.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise UserError(f"{readme}: lacks the lines {begin.strip()} and {end.strip()} between which Table 1 belongs")
    write_atomically(readme, f"{before}{begin}{summary(tables['table1'])}{end}{after}")


def summary(table1: pd.DataFrame) -> str:
    """One row per model in Markdown: ExpRate as reported and, for each preset, as reproduced (mean ± standard deviation
    over the seeds, and the interval over the images)."""
    rows: dict[str, dict[str, str]] = {}
    for row in table1.to_dict("records"):
        signs = {flag: "✓" if row[flag] else "" for flag in FLAGS}
        cells = rows.setdefault(row["model"], {"model": row["model"], **signs})
        rate = f"{row['exprate']:.2f}"
        if row["source"] == "reported":
            cells["reported"] = rate
        else:
            seeds = f", {row['seeds']} seeds" if row["seeds"] > 1 else ""
            rate += f" ± {row['sd']:.2f}" * (row["seeds"] > 1)
            rate += f" ({row['ci_low']:.1f}–{row['ci_high']:.1f}{seeds})"
            cells[f"reproduced, `{row['preset']}`"] = rate
    frame = pd.DataFrame(rows.values()).fillna("")
    names = {"scale_aug": "scale augmentation", "self_cov": "self coverage", "cross_cov": "cross coverage"}
    sides = ("left", *("center",) * len(FLAGS), *("right",) * (frame.shape[1] - len(FLAGS) - 1))
    return frame.rename(columns=names).to_markdown(index=False, disable_numparse=True, colalign=sides) + "\n"


def show(tables: Tables, console: Console, *, crohme: bool = True) -> None:
    """Prints the tables; a model's name says its flags."""
    for name, whole in tables.items():
        frame = whole.drop(columns=list(FLAGS), errors="ignore")
        table = Table(title=heading(name, crohme=crohme), box=box.SIMPLE_HEAD)
        for column in frame.columns:
            table.add_column(column, justify="left" if column in ("dataset", "model", "source", "preset") else "right")
        for row, source in zip(_printable(frame).itertuples(index=False), frame["source"], strict=True):
            table.add_row(*row, style={"reported": "dim", "local": "bold"}.get(source))
        console.print(table)


def heading(name: str, *, crohme: bool = True) -> str:
    """The title of a table."""
    what = "ablation on CROHME 2014" if name == "table1" else "CROHME 2014, 2016, 2019"
    return f"Table {name[-1]}: {what}" if crohme else f"Table {name[-1]} on other data: NOT CROHME numbers"


def _paper_tables(runs: list[dict[str, Any]]) -> Tables:
    first = [row for row in runs if row["split"] == "2014"]
    return {
        "table1": _frame(_reported_table1() + first, "table1"),
        "table2": _frame(_reported_table2() + runs, "table2"),
    }


def _reported_table1() -> list[dict[str, Any]]:
    n = reference()["test_sets"]["2014"]
    return [
        {"dataset": "2014", **row, **_interval(row["exprate"], n), "source": "reported", "n": n}
        for row in reference()["table1"]
    ]


def _reported_table2() -> list[dict[str, Any]]:
    rows = []
    for year, models in reference()["table2"].items():
        n = reference()["test_sets"][year]
        for model, rates in models.items():
            row = {"dataset": year, "model": model, "source": "reported", "n": n} | _interval(rates[0], n)
            rows.append(row | dict(zip(COUNTS, rates, strict=True)))
    return rows


def _interval(rate: float, n: int) -> dict[str, float]:
    low, high = proportion_interval(round(rate * n / 100), n)
    return {"ci_low": 100 * low, "ci_high": 100 * high}


def _rows(root: Path, source: str) -> list[dict[str, Any]]:
    """One row for each dataset, recipe and preset: the mean over its seeds, each by the run scored last."""
    seeds: dict[tuple, dict[int, tuple[float, Mapping[str, Any]]]] = {}
    for run in RunFolder.under(root):
        parts = run.config["data"].get("sub_expressions", 0)
        for split, score in run.per_set("scores", "n", *COUNTS.values()).items():
            key = _dataset(run, split, score["n"]), split, run.recipe, run.preset, score["n"], parts
            rivals, when = seeds.setdefault(key, {}), (run.path / f"scores/{split}.json").stat().st_mtime
            if when >= rivals.get(run.seed, (0.0, {}))[0]:
                rivals[run.seed] = when, score
    rows = []
    for (dataset, split, recipe, preset, n, parts), scores in seeds.items():
        row = {
            "dataset": dataset,
            "split": split,
            "recipe": recipe,
            "source": source,
            "n": n,
            "preset": preset,
            "parts": parts,
            "sd": stdev([100 * score["exact"] / n for _, score in scores.values()]) if len(scores) > 1 else None,
        }
        for column, count in COUNTS.items():
            row[column] = 100 * sum(score[count] for _, score in scores.values()) / (n * len(scores))
        flags = {flag: reference()["recipes"].get(recipe, {}).get(flag) for flag in FLAGS}
        rows.append(row | _interval(row["exprate"], n) | flags | {"seeds": len(scores)})
    return rows


def _dataset(run: RunFolder, split: str, n: int) -> str:
    """CROHME's year, or the name of other data; and the part of it that was scored."""
    label = split if run.data == "crohme" else run.data if split == "test" else f"{run.data} {split}"
    part = (run.config.get("search") or {}).get("limit") == n != reference()["test_sets"].get(split)
    return f"{label} [{n} evenly spaced]" if part else label


def _frame(rows: list[dict[str, Any]], name: str) -> pd.DataFrame:
    """Rows in the paper's order, the three sources of one model next to each other."""
    ours = reference()["recipes"]
    rows = [{"model": ours.get(row.get("recipe"), {}).get(name, row.get("recipe"))} | row for row in rows]
    columns = [*COLUMNS, *(FLAGS if name == "table1" else ())]
    frame = pd.DataFrame(rows, columns=columns)
    order = {model: place for place, model in enumerate(reference()["order"])}
    frame["_model"] = [order.get(model, len(order)) for model in frame["model"]]
    frame["_source"] = frame["source"].map(SOURCES.index)
    frame["_year"] = [dataset.partition(" [")[0] for dataset in frame["dataset"]]
    frame = frame.sort_values(["_year", "_model", "model", "_source", "dataset", "preset"], kind="stable")
    frame = frame.drop(columns=["_year", "_model", "_source"])
    frame[list(RATES)] = frame[list(RATES)].astype(float).round(2)
    return frame.astype({"n": "Int64", "seeds": "Int64", "parts": "Int64"}).reset_index(drop=True)


def _printable(frame: pd.DataFrame) -> pd.DataFrame:
    """Every cell as text: two decimals, flags as signs, a dash for what is not known."""
    text = frame.astype(object).where(frame.notna(), None)
    for column in frame.columns:
        text[column] = [cell(column, value) for value in text[column]]
    return text


def cell(column: str, value: Any) -> str:
    """A value of a table as text."""
    if value is None:
        return "–"
    if column in FLAGS:
        return "✓" if value else "✗"
    return f"{value:.2f}" if column in RATES else str(value)
