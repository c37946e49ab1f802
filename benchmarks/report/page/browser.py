"""What the report's error browser shows, as plain data: every test expression with its image, its true graph and
what each run read, where the two differ, and the scorer's verdict.

Verdicts come from the runs' scores/<set>.csv alone; they are compared with the predictions, so that a page never
shows one run's verdict beside another's prediction. What cannot be shown becomes a note, never a guess.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.data.archive import Archive
from benchmarks.errors import UserError
from benchmarks.runs.folder import RunFolder
from evaluation import InputError, symlg
from evaluation.lgeval.label_graph import Graph, read
from evaluation.lgeval.metrics import compare
from evaluation.scoring import alignment
from evaluation.scoring.alignment import Tree
from evaluation.scoring.analysis import structures
from evaluation.scoring.inputs import read_predictions
from evaluation.symlg import SymLG

KINDS = ("line", "script", "nested script", "fraction", "root", "limits")
MAX_SHOWN = 4_000  # characters of a prediction; more are cut off
RELATION = {"": "", "R": "R", "Sub": "S", "Sup": "P", "Above": "A", "Below": "B", "Inside": "I"}
MARK = {"label": "x", "relation": "r", "missing": "m", "extra": "e"}

Json = dict[str, Any]
Verdict = dict[str, Any]  # a row of scores/<set>.csv
COLUMNS = ("status", "errors", "label_errors", "relation_errors", "exact", "token_exact", "length")


@dataclass
class Truth:
    """The truth of one expression; all None without an archive."""

    tokens: list[str] | None = None
    graph: Graph | None = None
    tree: Tree | None = None


@dataclass
class Browser:
    """`sets` is what the page's script reads, `images` WebP files by set and in the order of the expressions,
    `attention` maps by set, run and id (playback.py)."""

    sets: list[Json] = field(default_factory=list)
    images: dict[str, list[str]] = field(default_factory=dict)
    attention: dict[str, dict[str, Json]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def source(run: RunFolder) -> str:
    """reproduced, or local for what is not committed."""
    return "reproduced" if run.path.parent.parent.name == "reproduced" else "local"


def key(run: RunFolder) -> str:
    """What the page's script and address call a run."""
    return f"{source(run)}/{run.recipe}/{run.path.name}"


def title(run: RunFolder) -> str:
    """What people call a run."""
    local = "" if source(run) == "reproduced" else f", local {run.path.name[-8:]}"
    return f"{run.recipe} · {run.preset} · seed {run.seed}{local}"


def find_runs(root: Path, notes: list[str]) -> list[RunFolder]:
    """The run folders under `root`; one whose configuration cannot be read becomes a note."""
    runs = []
    for run in RunFolder.under(root):
        try:
            _ = run.settings
            runs.append(run)
        except (UserError, OSError) as error:
            notes.append(f"left out: {error}")
    return runs


def build(archive: Archive | None, runs: Sequence[RunFolder]) -> Browser:
    """The browser of the test sets of an archive, or without one of what the runs themselves hold (predictions and
    verdicts, no images and no truth)."""
    browser = Browser()
    runs = _without_twins(_of_this_data(archive, runs, browser.notes))
    names = archive.test_splits if archive else sorted({name for run in runs for name in run.sets("scores/*.csv")})
    for name in names:
        found = {run: scored for run in runs if (scored := _scored(run, name, browser.notes))}
        ids = _ids(archive, name, [verdicts for verdicts, _ in found.values()])
        if not ids:
            continue
        truths = _truths(archive, name, ids)
        browser.sets.append(_set(archive, name, ids, truths, found, browser.notes))
        if archive:
            browser.images[name] = [webp(archive.image(name, id_)) for id_ in ids]
    return browser


def _of_this_data(archive: Archive | None, runs: Sequence[RunFolder], notes: list[str]) -> list[RunFolder]:
    if archive is None:
        return list(runs)
    kept = [run for run in runs if run.settings.data.digest == archive.digest]
    for run in runs:
        if run not in kept:
            notes.append(f"{run.path}: was made on other data than {archive.path}; not in the browser")
    return kept


def _without_twins(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Leaves out a local run whose predictions are those of a reproduced one: it became that."""
    kept: dict[tuple, RunFolder] = {}
    for run in sorted(runs, key=lambda run: source(run) != "reproduced"):
        files = sorted(run.path.glob("predictions/*.zip"))
        content = tuple((path.name, path.read_bytes()) for path in files)
        kept.setdefault((run.digest, content) if content else (run.path,), run)
    return list(kept.values())


def _scored(run: RunFolder, name: str, notes: list[str]) -> tuple[dict[str, Verdict], dict[str, str]] | None:
    """Verdicts and predictions of a run on a set; None, with a note, where a part is missing or damaged."""
    files = [run.path / "predictions" / f"{name}{ending}" for ending in (".zip", ".jsonl")]
    predictions = next((path for path in files if path.exists()), None)
    if predictions is None or name not in run.sets("scores/*.csv"):
        missing = "not recognized, predict it" if predictions is None else "not scored yet, score it"
        notes.append(f"{run.path}: {name} is {missing}")
        return None
    try:
        return run.expressions(name, *COLUMNS), read_predictions(predictions)
    except (InputError, UserError) as error:
        notes.append(f"{error}; {name} of this run is left out")
        return None


def _ids(archive: Archive | None, name: str, verdicts: Sequence[dict[str, Verdict]]) -> list[str]:
    """The expressions that some run was scored on, in the archive's order; all of them where none was."""
    scored = dict.fromkeys(id_ for rows in verdicts for id_ in rows)
    if archive is None:
        return list(scored)
    return [id_ for id_ in archive.captions(name) if not scored or id_ in scored]


def _truths(archive: Archive | None, name: str, ids: Sequence[str]) -> list[Truth]:
    if archive is None:
        return [Truth() for _ in ids]
    captions, texts = archive.captions(name), archive.ground_truth(name)
    graphs = [read(texts[id_], f"{archive.path}: {name}/symLg/{id_}.lg") for id_ in ids]
    return [Truth(captions[id_], graph, _tree(graph)) for id_, graph in zip(ids, graphs, strict=True)]


def _tree(graph: Graph) -> Tree | None:
    try:
        return alignment.tree(graph)
    except alignment.TooLarge:
        return None


def _set(
    archive: Archive | None,
    name: str,
    ids: Sequence[str],
    truths: Sequence[Truth],
    found: Mapping[RunFolder, tuple[dict[str, Verdict], dict[str, str]]],
    notes: list[str],
) -> Json:
    lengths: list[int | None] = [None if truth.tokens is None else len(truth.tokens) for truth in truths]
    for verdicts, _ in found.values():
        known = [verdicts[id_]["length"] if id_ in verdicts else None for id_ in ids]
        lengths = [a if a is not None else b for a, b in zip(lengths, known, strict=True)]
    runs = {}
    for run, (verdicts, texts) in found.items():
        entries, strangers = [], []
        for id_, truth in zip(ids, truths, strict=True):
            entry, agrees = _entry(verdicts.get(id_), texts.get(id_), truth)
            entries.append(entry)
            strangers += [] if agrees else [id_]
        if strangers:
            what = f"{len(strangers)} verdicts on {name} do not belong to the predictions ({strangers[0]}, ...)"
            notes.append(f"{run.path}: {what}; run python -m benchmarks score")
        runs[key(run)] = entries
    return {
        "name": name,
        "data": archive.name if archive else "crohme",
        "truth": archive is not None,
        "ids": list(ids),
        "lengths": lengths,
        "kinds": [sorted(structures(t.graph), key=KINDS.index) if t.graph is not None else None for t in truths],
        "truths": [None if truth.tokens is None else _truth(truth) for truth in truths],
        "runs": runs,
    }


def _truth(truth: Truth) -> Json:
    assert truth.tokens is not None and truth.graph is not None
    entry: Json = {"tokens": " ".join(truth.tokens)}
    if truth.tree is not None:
        entry["graph"] = _drawn(truth.tree)
        entry["symbols"] = _symbols_of_caption(truth)
    return entry


def _symbols_of_caption(truth: Truth) -> list[int] | None:
    """Which symbol of the true graph each token of the caption is; None where the two disagree."""
    assert truth.tokens is not None and truth.graph is not None and truth.tree is not None
    try:
        graph = symlg.from_latex(truth.tokens)
    except symlg.Unconverted:
        return None
    if graph.nodes() != truth.graph.nodes():
        return None
    return alignment.symbols_of(truth.tokens, graph, truth.tree)


def _entry(verdict: Verdict | None, text: str | None, truth: Truth) -> tuple[Json | None, bool]:
    """What the page says of one prediction, and whether the verdict belongs to it. None: not scored."""
    if verdict is None:
        return None, True
    numbers = [verdict[name] for name in ("errors", "label_errors", "relation_errors")]
    entry: Json = {"status": verdict["status"], "errors": numbers, "exact": verdict["exact"]}
    entry["match"] = verdict["token_exact"]
    if text is None:
        return entry, verdict["status"] == "missing"
    try:
        latex = symlg.formula_in(text)
        entry["tokens"] = " ".join(latex.split())[:MAX_SHOWN]
        graph = symlg.from_latex(latex)
    except symlg.Unconverted as reason:
        return entry | {"reason": str(reason), "tokens": entry.get("tokens", "")}, verdict["status"] == "unconverted"
    agrees = verdict["status"] == "converted"
    if truth.graph is not None:
        agrees = agrees and int(compare(graph, truth.graph).metrics["D_B"]) == verdict["errors"]
    return entry | _compared(graph, latex.split(), verdict, truth), agrees


def _compared(graph: SymLG, tokens: list[str], verdict: Verdict, truth: Truth) -> Json:
    """The predicted graph and where it departs from the true one."""
    try:
        tree = alignment.tree(graph)
        shown: Json = {"graph": _drawn(tree), "symbols": alignment.symbols_of(tokens, graph, tree)}
        if verdict["exact"] or truth.tree is None or truth.graph is None:
            return shown
        found = alignment.differences(truth.tree, tree)
    except alignment.TooLarge as reason:
        return {"reason": str(reason)}
    shown["words"] = alignment.in_words(truth.tree, tree, found)
    if graph.nodes().keys() == truth.graph.nodes().keys():
        shown["words"] += alignment.relations_in_words(truth.graph, graph)
    for side, size in (("truth", len(truth.tree.labels)), ("prediction", len(tree.labels))):
        marks = ["."] * size
        for difference in found:
            if (index := getattr(difference, side)) is not None:
                marks[index] = MARK[difference.kind]
        shown["marks" if side == "prediction" else "truth_marks"] = "".join(marks)
    return shown


def _drawn(tree: Tree) -> Json:
    """A tree as the page's script draws it: labels, parents, and one letter for each relation."""
    return {
        "labels": tree.labels,
        "parents": tree.parents,
        "relations": "".join(RELATION[word] or "." for word in tree.relations),
    }


def webp(image: np.ndarray) -> str:
    """Lossless WebP, base64; a third smaller than PNG on ink."""
    return base64.b64encode(cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes()).decode()
