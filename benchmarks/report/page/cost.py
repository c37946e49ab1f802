"""The report's section on cost: what runs took and on what, how much faster the fast paths are, all measurements."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report.page.browser import Run
from benchmarks.report.page.charts import ratio_chart

MOST_ROWS = 200  # of a measurement file; it lies beside the page
Json = dict[str, Any]


def costs(runs: Sequence[Run], notes: list[str]) -> list[Json]:
    """A line for the runs of one recipe and preset on one machine: medians over them, and over their epochs.

    From environment.json and history.jsonl; what these do not tell is a dash, what is wrong with them a note.
    """
    alike: dict[tuple[str, ...], list[tuple[Run, list[Json]]]] = {}
    for run in runs:
        place = _json(run.folder / "environment.json", notes)
        epochs = _history(run.folder / "history.jsonl", notes)
        facts = [place.get("device", "–"), place.get("threads", "–"), (place.get("versions") or {}).get("torch", "–")]
        title = f"{run.config.recipe} · {run.config.preset}"
        group = (run.source, title, *map(str, facts), str(place.get("revision") or "–")[:9], str(len(epochs) or "–"))
        alike.setdefault(group, []).append((run, epochs))
    rows = []
    for (source, title, device, threads, torch, revision, epochs), members in alike.items():
        seeds = " ".join(str(run.config.seed) for run, _ in members)
        seconds = _median([sum(e["seconds"] + e.get("val_seconds", 0) for e in h) for _, h in members if h])
        an_epoch = _median([e["seconds"] for _, h in members for e in h])
        speed = _median([e["images_per_s"] for _, h in members for e in h if "images_per_s" in e])
        took = "–" if seconds is None else f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        measured = [took, *("–" if value is None else f"{value:.1f}" for value in (an_epoch, speed))]
        rows.append({"source": source, "cells": [title, *measured, seeds, epochs, device, threads, torch, revision]})
    return rows


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _json(path: Path, notes: list[str]) -> Json:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        notes.append(f"{path}: is not there")
    except ValueError:
        notes.append(f"{path}: is not JSON")
    else:
        if isinstance(value, dict):
            return value
        notes.append(f"{path}: holds no facts")
    return {}


def _history(path: Path, notes: list[str]) -> list[Json]:
    """The epochs of a run. A line that cannot be read becomes a note and is left out."""
    epochs = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines() if path.exists() else (), 1):
        try:
            row = json.loads(line)
            numbers = ("seconds", "val_seconds", "images_per_s")
            epochs.append({name: float(row[name]) for name in numbers if name in row or name == "seconds"})
        except (ValueError, KeyError, TypeError):
            notes.append(f"{path}, line {number}: not an epoch; its cost is left out")
    if not path.exists():
        notes.append(f"{path}: is not there, so the cost of training is unknown")
    return epochs


def speedups(path: Path) -> Json | None:
    """How many times as fast as the plain way each benchmark is, as a chart, and where that was measured."""
    if not path.exists():
        return None
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file) if _number(row.get("ratio")) and row["unit"].endswith("/s")]
    if not rows:
        return None
    bars = [(row["benchmark"].replace("_", " "), float(row["ratio"]), _in_words(row)) for row in rows]
    places = dict.fromkeys(f"{row['hardware']}; {row['versions']}" for row in rows)
    return {"chart": ratio_chart("Times as fast as the plain way", bars), "measured": "; ".join(places)}


def _in_words(row: dict[str, str]) -> str:
    return f"plain {row['plain']}, fast {row['fast']} {row['unit']}, n = {row['n']}, spread {row['spread']}"


def _number(text: str | None) -> bool:
    try:
        return float(text or "") > 0
    except ValueError:
        return False


def measurements(folder: Path) -> list[Json]:
    """The files of measurements as they are, for who wants to look."""
    tables = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            lines = [row for row in csv.reader(file) if row]
        if lines:
            shown = lines[1 : MOST_ROWS + 1]
            tables.append({"name": path.name, "count": len(lines) - 1, "headings": lines[0], "rows": shown})
    return tables
