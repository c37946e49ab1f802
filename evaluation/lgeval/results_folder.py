"""The `Results_<name>` folder of LgEval's `evaluate`: written whole or not at all, and read back."""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval import confusions, metrics
from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.symlg.editions import Edition

# lines ID<TAB>reason for every file that tex2symlg gave no .lg
UNCONVERTED = "unconverted.txt"


class Scored(NamedTuple):
    """One compared file: its name without .lg, the prediction's path as given, both graphs, their comparison."""

    name: str
    source: str
    prediction: Graph
    truth: Graph
    comparison: metrics.Comparison


def write_results(name: str, label: str, files: Sequence[Scored], stray: Iterable[Graph], edition: Edition) -> None:
    """Write all files of Results_<name>. `label` names the inputs; `stray` are predictions without truth, which count
    in labelsOutput.txt only, as in LgEval."""
    folder = f"Results_{name}"
    if os.path.lexists(folder) and not _replaceable(folder):
        raise InputError(f"{folder}: exists and is not a results folder; move it away")
    date = time.strftime("%c")
    rows = [item.comparison.metrics for item in files]
    sections = confusions.matrices((item.comparison, item.truth) for item in files)
    texts = {
        "Summary.txt": metrics.summary(rows, label, date, edition),
        "ConfusionMatrices.csv": confusions.csv_of(sections, f"{folder}/{name}.diff", date),
        "ConfusionMatrices.html": confusions.html_of(sections, name, date),
        "labelsGT.txt": _label_file([item.truth for item in files]),
        "labelsOutput.txt": _label_file([*(item.prediction for item in files), *stray]),
    }
    if all(row["D_B"] == 0 for row in rows):
        texts["00_NoErrors"] = ""
    table = ["File,Result," + ",".join(metrics.FIELDS)]
    for item, row in zip(files, rows, strict=True):
        texts[f"Metrics/{item.name}.csv"] = item.comparison.csv()
        if diff := item.comparison.diff():
            texts[f"Metrics/{item.name}.diff"] = diff
        verdict = "Incorrect" if row["D_B"] else "Correct"
        table.append(f"{item.source}, {verdict}," + ",".join(map(str, row.values())))
    texts["FileMetrics.csv"] = "\n".join(table) + "\n"
    with beside(folder) as build:
        os.makedirs(os.path.join(build, "Metrics"))
        for file, text in texts.items():
            put(os.path.join(build, file), text)
        old = f"{folder}.old{os.getpid()}"  # not in the scratch folder: an interruption would delete it
        if os.path.lexists(folder):
            os.rename(folder, old)
        try:
            os.rename(build, folder)
        except OSError:
            if os.path.lexists(old):
                os.rename(old, folder)
            raise
    if os.path.lexists(old):
        rmtree(old)


def _replaceable(folder: str) -> bool:
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    return not os.listdir(folder) or os.path.isdir(os.path.join(folder, "Metrics"))


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
        raise InputError(f"{path}: this is not a complete LgEval summary; run the scorer again")
    exact, le1, le2, le3, _, _, n = map(int, files.groups())
    return {"n": n, "exact": exact, "le1": le1, "le2": le2, "le3": le3, "structure": int(structure[1])}


def read_metrics(folder: str) -> dict[str, dict[str, float]]:
    """All metrics of every file in a results folder, by the file's name (without .lg)."""
    rows: dict[str, dict[str, float]] = {}
    for entry in sorted(os.listdir(f"{folder}/Metrics")):
        if not entry.endswith(".csv"):
            continue
        try:
            with open(f"{folder}/Metrics/{entry}", encoding="utf-8") as file:
                cells = file.read().strip().split(",")
            row = dict(zip(cells[::2], map(float, cells[1::2]), strict=False))
        except ValueError:
            row = {}
        if not row.keys() >= set(metrics.FIELDS) or not all(map(math.isfinite, row.values())):
            raise InputError(f"{folder}/Metrics/{entry}: the scorer left no metrics for this file")
        rows[entry[:-4]] = row
    return rows


def unconverted(truth: str) -> set[str]:
    """The names without .lg in a folder of converted ground truth."""
    path = os.path.join(truth, UNCONVERTED)
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8", errors="replace") as file:
        names = {line.partition("\t")[0] for line in file if "\t" in line}
    if any({"/", "\ufffd"} & {*name} for name in names):
        raise InputError(f"{path}: was not written by tex2symlg; remove it or convert the ground truth again")
    return {name for name in names if not os.path.exists(os.path.join(truth, name + ".lg"))}


@contextmanager
def beside(path: str) -> Iterator[str]:
    """Yield a scratch path next to `path`, to be moved there once complete; otherwise it is deleted."""
    folder, name = os.path.split(path)
    with TemporaryDirectory(prefix=f"{name}.part", dir=folder or ".") as scratch:
        yield os.path.join(scratch, name)


def put(path: str, text: str) -> None:
    """Write one text file directly, for folders that are not in place yet."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def replace(path: str, text: str) -> None:
    """Write one text file, whole or not at all."""
    with beside(path) as part:
        put(part, text)
        os.replace(part, path)


def _label_file(graphs: Sequence[Graph]) -> str:
    nodes = {label for graph in graphs for labels in graph.nodes.values() for label in labels}
    edges = {label for graph in graphs for labels in graph.edges.values() for label in labels}
    return "\n".join(["NODE LABELS:", *sorted(nodes), "", "EDGE LABELS:", *sorted(edges)]) + "\n"
