"""The tables of results/speed/README.md: trials of the recipe (recipe.csv) and of the search (search_tricks.csv)."""

from collections.abc import Sequence
from pathlib import Path

from hmerbench.benchmarks.report.documents import markdown
from hmerbench.benchmarks.strict_files import read_plain

READINGS = {  # of the preset `medium` -> column
    "as it is": "four sizes",
    "search.scales=[1.0]": "one size",
    "search.scales=[0.85,1.0,1.15,1.3,1.45] search.alpha=0.25": "five sizes, exponent 0.25",
}

Row = dict[str, str | None]


def tables(folder: Path) -> dict[str, str]:
    """The Markdown tables by the names of their marks, of those files that are there."""
    made = {"recipe": {"trials": _trials, "readings": _readings}, "search_tricks": {"tricks": _tricks}}
    return {
        name: markdown(make(read_plain(path))) + "\n"
        for file, makers in made.items()
        if (path := folder / f"{file}.csv").exists()
        for name, make in makers.items()
    }


def _percent(row: Row) -> str:
    return f"{100 * int(row['exact'] or 0) / int(row['n'] or 1):.1f}"


def _trials(rows: Sequence[Row]) -> Sequence[Row]:
    """A line for each training: what was changed, what it reads in one size and several, and how it predicts words."""
    lines: dict[tuple[str | None, str | None], Row] = {}
    for row in rows:
        line = lines.setdefault((row["trial"], row["epochs"]), {"change": row["trial"], "epochs": row["epochs"]})
        line |= dict.fromkeys(READINGS.values(), "") | line
        if row["reading"] in READINGS:
            line[READINGS[row["reading"]]] = _percent(row)
        line["core-minutes"] = row["core_minutes"]
        line |= {"loss": row["loss"], "words, %": row["word_accuracy"]} if row["loss"] else {}
    return sorted(lines.values(), key=lambda line: "data.limit" in (line["change"] or ""))


def _readings(rows: Sequence[Row]) -> Sequence[Row]:
    """A line for every other reading of a trained network."""
    others = [row for row in rows if row["reading"] not in READINGS]
    return [{"trained": row["trial"], "read": row["reading"], "read right, %": _percent(row)} for row in others]


def _tricks(rows: Sequence[Row]) -> Sequence[Row]:
    """What a search without each trick loses of its speed, and how much repeated measurements differ."""
    lines: dict[tuple[str | None, str | None], Row] = {}
    for row in rows:
        line = lines.setdefault((row["trick"], row["search"]), {"trick": row["trick"], "kept": row["kept"]})
        line["search"] = row["search"]
        saves, spread = (round(100 * float(row[name] or 0)) for name in ("saves", "spread"))
        line[f"{row['precision']}, % (spread)"] = f"{saves} ({spread})"
    return [*lines.values()]
