"""The `Results_<name>` folder of LgEval's `evaluate`: written whole or not at all, and read back."""

import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from shutil import rmtree
from typing import NamedTuple

from evaluation import InputError
from evaluation.lgeval import confusion, metrics
from evaluation.lgeval.label_graph import Graph
from evaluation.symlg.editions import DEFAULT_EDITION, Edition


class Scored(NamedTuple):
    """One file: its name without .lg, the prediction's path as given, both graphs, their comparison."""

    name: str
    source: str
    prediction: Graph
    truth: Graph
    comparison: metrics.Comparison


def write(
    folder: str,
    name: str,
    label: str,
    files: Sequence[Scored],
    stray: Iterable[Graph] = (),
    edition: Edition = DEFAULT_EDITION,
) -> None:
    """Write all files of a results folder. `label` names the inputs; `stray` are predictions without truth
    (they count in labelsOutput.txt only, as in LgEval)."""
    if os.path.lexists(folder) and not _replaceable(folder):
        raise InputError(f"{folder}: exists and is no results folder; move it away")
    date = time.strftime("%c")
    build = f"{folder}.part{os.getpid()}"
    os.makedirs(os.path.join(build, "Metrics"))
    try:
        for item in files:
            base = os.path.join(build, "Metrics", item.name)
            put(base + ".csv", item.comparison.csv())
            if diff := item.comparison.diff():
                put(base + ".diff", diff)
        rows = [item.comparison.metrics for item in files]
        true = [item.truth for item in files]
        sections = confusion.matrices((item.comparison for item in files), _labels(true)[0])
        texts = {
            "Summary.txt": metrics.summary(rows, label, date, edition),
            "FileMetrics.csv": file_metrics(files),
            "ConfusionMatrices.csv": confusion.csv(sections, f"{folder}/{name}.diff", date),
            "ConfusionMatrices.html": confusion.html(sections, name, date),
            "labelsGT.txt": _label_file(true),
            "labelsOutput.txt": _label_file([*(item.prediction for item in files), *stray]),
        }
        if all(row["D_B"] == 0 for row in rows):
            texts["00_NoErrors"] = ""
        for file, text in texts.items():
            put(os.path.join(build, file), text)
    except BaseException:
        rmtree(build)
        raise
    if os.path.lexists(folder):
        old = f"{folder}.old{os.getpid()}"
        os.rename(folder, old)
        os.rename(build, folder)
        rmtree(old)
    else:
        os.rename(build, folder)


def _replaceable(folder: str) -> bool:
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    return not os.listdir(folder) or os.path.isdir(os.path.join(folder, "Metrics"))


def file_metrics(files: Iterable[Scored]) -> str:
    """FileMetrics.csv: one row per file, every row under its own file's name."""
    lines = ["File,Result," + ",".join(metrics.FIELDS)]
    for item in files:
        values = item.comparison.metrics
        verdict = "Incorrect" if values["D_B"] else "Correct"
        lines.append(f"{item.source}, {verdict}," + ",".join(str(values[name]) for name in metrics.FIELDS))
    return "\n".join(lines) + "\n"


def read_summary(path: str) -> dict[str, int]:
    """Counts of a Summary.txt, ours or LgEval's: n, exact, le1, le2, le3, structure."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); the scorer wrote no summary") from None
    structure = re.search(r"^ Structure +[\d.]+ +\d+ +(\d+) +\d+\s*$", text, re.MULTILINE)
    files = re.search(r"^Cum\. Files" + r" +(\d+)" * 7 + r"\s*$", text, re.MULTILINE)
    if structure is None or files is None or not int(files[7]):
        raise InputError(f"{path}: not a whole LgEval summary; run the scorer again")
    exact, le1, le2, le3, _, _, n = map(int, files.groups())
    return {"n": n, "exact": exact, "le1": le1, "le2": le2, "le3": le3, "structure": int(structure[1])}


def read_file_errors(folder: str) -> dict[str, dict[str, float]]:
    """All metrics of every file in a results folder, by the file's name (without .lg)."""
    rows: dict[str, dict[str, float]] = {}
    metrics_folder = os.path.join(folder, "Metrics")
    for entry in sorted(os.listdir(metrics_folder)):
        if entry.endswith(".csv"):
            try:
                with open(os.path.join(metrics_folder, entry), encoding="utf-8") as file:
                    cells = file.read().strip().split(",")
                row = dict(zip(cells[::2], map(float, cells[1::2]), strict=False))
            except ValueError:
                row = {}
            if not row.keys() >= set(metrics.FIELDS) or not all(map(math.isfinite, row.values())):
                raise InputError(f"{metrics_folder}/{entry}: the scorer left no metrics for this file")
            rows[entry[:-4]] = row
    return rows


def put(path: str, text: str) -> None:
    """Write one text file in a folder that is not in its place yet."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def replace(path: str, text: str) -> None:
    """Write one text file, whole or not at all."""
    part = f"{path}.part{os.getpid()}"
    try:
        put(part, text)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


def _labels(graphs: Iterable[Graph]) -> tuple[set[str], set[str]]:
    nodes: set[str] = set()
    edges: set[str] = set()
    for graph in graphs:
        nodes.update(*graph.nodes().values())
        edges.update(*graph.edges().values())
    return nodes, edges


def _label_file(graphs: Iterable[Graph]) -> str:
    nodes, edges = _labels(graphs)
    return "\n".join(["NODE LABELS:", *sorted(nodes), "", "EDGE LABELS:", *sorted(edges)]) + "\n"
