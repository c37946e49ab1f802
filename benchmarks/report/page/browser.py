"""The data of the report's error browser: every test expression with its image and true graph, each run's prediction,
their differences, and the scorer's verdict; and of a sample, where a network looks at each token of its prediction.

Verdicts come only from scores/<set>.csv; those made from other predictions are left out. Whatever cannot be shown
becomes a note, never a guess. Attention maps of all expressions would make the page too large: they are of a number of
evenly spaced ones of each set, and of as many wrong ones.
"""

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.normalize_image import decoded
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.printing import counted, err_console, progress
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError, symlg
from hmerbench.evaluation.lgeval.label_graph import Graph, read
from hmerbench.evaluation.scoreboard.card import read_cards
from hmerbench.evaluation.scoring import alignment
from hmerbench.evaluation.scoring.alignment import Tree
from hmerbench.evaluation.scoring.analysis import STRUCTURES, structures
from hmerbench.evaluation.scoring.inputs import GroundTruth, read_predictions
from hmerbench.evaluation.scoring.metrics import Expression, bucket
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.evaluation.symlg import SymLG
from hmerbench.models.files import CheckpointError

PICTURE = 320  # px, the longer side of a picture as it was before it was prepared
MAX_SHOWN = 4_000  # characters of a prediction; the rest is cut off
RELATION_LETTERS = {"": ".", "R": "R", "Sub": "S", "Sup": "P", "Above": "A", "Below": "B", "Inside": "I"}
ERROR_LETTERS = {"label": "x", "relation": "r", "missing": "m", "extra": "e"}

Json = dict[str, Any]
Scored = tuple[dict[str, Expression], dict[str, str]]  # verdicts and predictions, by id
Systems = dict[str, tuple[str, dict[str, Scored]]]  # by key: the displayed name, and what is scored by test set


@dataclass
class TestSet:
    """A test set as read by page.js: a row for each expression, with what each run read of it. Images and truths need
    an archive; an image that cannot be read is "", and so is a picture to which nothing was done."""

    data: str  # crohme, embedded, foreign
    name: str
    rows: list[Json]

    @property
    def runs(self) -> list[str]:
        """The keys of all that read it."""
        return list(self.rows[0]["runs"])

    @property
    def key(self) -> str:
        """Identifies the set in the page's script and address."""
        return f"{self.data}-{self.name}"

    @property
    def label(self) -> str:
        return self.name if self.data == "crohme" else f"{self.data} {self.name}"


@dataclass(frozen=True)
class Truth:
    """The ground truth of one expression; `tree` is None if it is too large to be drawn."""

    tokens: list[str]
    graph: Graph
    tree: Tree | None


def source(run: RunFolder) -> str:
    """`reproduced` for a committed run, otherwise `local`."""
    return "reproduced" if run.path.parent.parent.name == "reproduced" else "local"


def key(run: RunFolder) -> str:
    """Identifies a run in the page's script and address."""
    return f"{source(run)}/{run.recipe}/{run.path.name}"


def title(run: RunFolder) -> str:
    end = run.path.name.rpartition("-")[2]  # a digest, but of a committed run that `evaluate` read
    local = "" if source(run) == "reproduced" else f", local {'read again' if end.startswith('seed') else end}"
    return f"{run.recipe} · {run.preset} · seed {run.seed}{local}"


def find_runs(notes: list[str], *roots: Path) -> list[RunFolder]:
    """Find the run folders under `roots`; one with an unreadable configuration becomes a note."""
    runs = []
    for run in RunFolder.under(*roots):
        try:
            _ = run.settings
            runs.append(run)
        except (UserError, OSError) as error:
            notes.append(f"left out: {error}")
    return runs


def build(
    archive: Archive | None, runs: Sequence[RunFolder], notes: list[str], systems: Systems | None = None
) -> list[TestSet]:
    """Build the test sets of an archive or, without one, those that the runs were scored on, without images and ground
    truth; `systems` are shown beside the runs."""
    others = [run for run in runs if archive and not archive.holds(run.settings.data.digest) and not run.evaluated]
    notes += [f"{run.path}: was trained on other data than this archive, so it is not in the browser" for run in others]
    runs = _without_copies([run for run in runs if run not in others])
    sets = []
    for name in archive.tests if archive else sorted({name for run in runs for name in run.sets("scores/*.csv")}):
        scored = {key(run): parts for run in runs if (parts := _scored(run, name, notes))}
        scored |= {system: parts[name] for system, (_, parts) in (systems or {}).items() if name in parts}
        ids = dict.fromkeys(id_ for verdicts, _ in scored.values() for id_ in verdicts)
        if archive:  # in its order; all expressions if no run was scored
            ids = dict.fromkeys(id_ for id_ in archive.captions(name) if not ids or id_ in ids)
        if ids:
            err_console.print(f"  comparing {counted(len(scored), 'prediction')} of each of {len(ids):,} in {name}")
            sets.append(_set(archive, name, list(ids), scored))
    return sets


def _without_copies(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Drop each local run that was packed as a reproduced one, which has the same predictions."""
    kept: dict[tuple, RunFolder] = {}
    for run in sorted(runs, key=lambda run: source(run) != "reproduced"):
        content = tuple((path.name, path.read_bytes()) for path in sorted(run.path.glob("predictions/*.tsv")))
        kept.setdefault((run.digest, content) if content else (run.path,), run)
    return list(kept.values())


def _scored(run: RunFolder, name: str, notes: list[str]) -> Scored | None:
    """Read a run's verdicts and predictions on a set; None, with a note, if either is missing or damaged."""
    predictions = run.path / "predictions" / f"{name}.tsv"
    if not predictions.exists() or name not in run.sets("scores/*.csv"):
        missing = "not scored yet, score it" if predictions.exists() else "not recognized, predict it"
        notes.append(f"{run.path}: {name} is {missing}")
        return None
    try:
        found = run.expressions(name), read_predictions(predictions)
        if run.sources.get(f"scores/{name}.json") in (None, run.file_digest(f"predictions/{name}.tsv")):
            return found
        raise UserError(f"{run.path}: {name} was scored from other predictions, run hmerbench score")
    except (InputError, UserError) as error:
        notes.append(f"{error}; {name} of this run is left out")
        return None


def _set(archive: Archive | None, name: str, ids: Sequence[str], scored: Mapping[str, Scored]) -> TestSet:
    truths = _truths(archive, name, ids) if archive else [None] * len(ids)
    known = {id_: verdict for verdicts, _ in scored.values() for id_, verdict in verdicts.items()}
    rows = list[Json]()
    for id_, truth in zip(ids, truths, strict=True):
        image, prepared, before = _images(archive, name, id_) if archive else ("", "", "")
        row: Json = {"id": id_, "image": image, "prepared": prepared, "before": before}
        length = row["length"] = len(truth.tokens) if truth else known[id_].length
        row["bucket"] = bucket(length) if length is not None else ""
        row["kinds"] = sorted(structures(truth.graph), key=STRUCTURES.index) if truth else None
        row["truth"] = _truth(truth) if truth else None
        row["runs"] = {key_: _entry(of.get(id_), texts.get(id_), truth) for key_, (of, texts) in scored.items()}
        rows.append(row | {"attention": {}})  # of some, by run
    return TestSet(archive.name if archive else "crohme", name, rows)


def _images(archive: Archive, name: str, id_: str) -> tuple[str, str, str]:
    """What a network reads of an image, what was done to the picture, and the picture in small, if anything was."""
    try:
        found = archive.prepared(name, id_)
    except FAULTS as error:
        return "", str(error).removeprefix(f"{archive.path}: "), ""
    before = decoded(archive.picture(name, id_), id_) if found.done else found.image
    if np.array_equal(before, found.image):  # prepared when it was imported
        return webp(found.image), "; ".join(found.done), ""
    shrink = min(1.0, PICTURE / max(before.shape))
    small = cv2.resize(before, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
    return webp(found.image), "; ".join(found.done), webp(small, 60)


def _truths(archive: Archive, name: str, ids: Sequence[str]) -> list[Truth]:
    captions, texts, truths = archive.captions(name), archive.ground_truth(name), []
    for id_ in ids:
        graph, tree = read(texts[id_], f"{archive.path}: {name}/symLg/{id_}.lg"), None
        with suppress(alignment.TooLarge):
            tree = alignment.tree(graph)
        truths.append(Truth(captions[id_], graph, tree))
    return truths


def _truth(truth: Truth) -> Json:
    """The page's entry for a ground truth; `symbols` maps tokens to symbols, None if caption and graph disagree."""
    entry: Json = {"tokens": " ".join(truth.tokens)}
    if truth.tree is None:
        return entry
    symbols = None
    with suppress(symlg.Unconverted):
        graph = symlg.from_latex(truth.tokens)
        if graph.nodes == truth.graph.nodes:
            symbols = alignment.symbols_of(entry["tokens"], graph, truth.tree)
    return entry | {"graph": _drawn(truth.tree), "symbols": symbols}


def _entry(verdict: Expression | None, text: str | None, truth: Truth | None) -> Json | None:
    """The page's entry for a prediction (None: not scored)."""
    if verdict is None:
        return None
    numbers = [verdict.errors, verdict.label_errors, verdict.relation_errors]
    entry: Json = {"status": verdict.status, "errors": numbers, "exact": verdict.exact, "match": verdict.token_exact}
    if text is None:
        return entry
    try:
        latex = symlg.formula_in(text)
        entry["tokens"] = " ".join(latex.split())[:MAX_SHOWN]
        graph = symlg.from_latex(latex)
    except symlg.Unconverted as reason:
        return entry | {"reason": str(reason), "tokens": entry.get("tokens", "")}
    return entry | _compared(graph, latex, verdict.exact, truth)


def _compared(graph: SymLG, latex: str, exact: bool, truth: Truth | None) -> Json:
    """The predicted graph and its differences from the true one."""
    try:
        tree = alignment.tree(graph)
        shown: Json = {"graph": _drawn(tree), "symbols": alignment.symbols_of(latex, graph, tree)}
        if exact or truth is None or truth.tree is None:
            return shown
        differences = alignment.differences(truth.tree, tree)
    except alignment.TooLarge as reason:
        return {"reason": str(reason)}
    shown["words"] = alignment.in_words(truth.tree, tree, differences)
    if graph.nodes.keys() == truth.graph.nodes.keys():
        shown["words"] += alignment.relations_in_words(truth.graph, graph)
    marks = {"truth": ["."] * len(truth.tree.labels), "prediction": ["."] * len(tree.labels)}
    for difference in differences:
        for side, letters in marks.items():
            if (index := getattr(difference, side)) is not None:
                letters[index] = ERROR_LETTERS[difference.kind]
    return shown | {"truth_marks": "".join(marks["truth"]), "marks": "".join(marks["prediction"])}


def _drawn(tree: Tree) -> Json:
    """A tree as drawn by the page's script: labels, parents, and one letter per relation."""
    relations = "".join(RELATION_LETTERS[word] for word in tree.relations)
    return {"labels": tree.labels, "parents": tree.parents, "relations": relations}


def webp(image: np.ndarray, quality: int = 101) -> str:
    """Encode as WebP, base64, by default lossless: a third smaller than PNG for handwriting."""
    return base64.b64encode(cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()).decode()


def read_systems(archive: Archive, folder: Path, notes: list[str]) -> Systems:
    """The published systems whose predictions, which lie outside of the project, are in `folder`; they are scored anew.
    Our own runs are left out, which the page has as runs; a system that is not at hand becomes a note."""
    truths = {name: GroundTruth(archive.ground_truth(name), archive.captions(name)) for name in archive.tests}
    found = {}
    for system in read_cards():
        if system.card.url is None or system.card.status == "reported":
            continue
        scored: dict[str, Scored] = {}
        try:
            for name, path in system.files(folder):
                if name in truths:
                    result = evaluate(path, truths[name], NO_FIELDS, raw=system.card.tokenize)
                    scored[name] = {row.id: row for row in result.expressions}, result.predictions
        except InputError as error:
            notes.append(f"{error}; this system is left out")
            continue
        found[f"system/{system.key}"] = f"{system.card.name} ({system.card.year})", scored
    return found


# ----------------------------------------------------------------------------------------------------- attention


def add_attention(
    sets: Sequence[TestSet], archive: Archive, runs: Sequence[RunFolder], count: int, notes: list[str]
) -> None:
    """Fill in `attention` of the rows, for `count` expressions and `count` wrong ones per set and run. Damaged weights
    become a note, and all runs without weights become one together."""
    from hmerbench.models.weights import load_weights

    of_run = {run: shown for run in runs if count and (shown := [each for each in sets if key(run) in each.runs])}
    if weightless := [title(run) for run in of_run if not run.has_weights]:
        others = f" and {counted(more, 'other')}" if (more := len(weightless) - 1) else ""
        notes.append(f"There is no attention playback for {weightless[0]}{others}, whose weights are not here.")
    for run in (run for run in of_run if run.has_weights):
        try:
            model = load_weights(run.weights_file, run.settings.model)
        except CheckpointError as error:
            notes.append(f"no attention: {error}")
            continue
        for test_set in of_run[run]:
            read = {row["id"]: row for row in test_set.rows if (row["runs"][key(run)] or {}).get("tokens")}
            wrong = [id_ for id_, row in read.items() if not row["runs"][key(run)]["exact"]]
            chosen = {*evenly(list(read), count), *evenly(wrong, count)}
            what = f"attention of {title(run)} on {test_set.name}"
            for id_ in progress([id_ for id_ in read if id_ in chosen], what):
                tokens = read[id_]["runs"][key(run)]["tokens"].split()
                if found := _maps(model, run, archive.image(test_set.name, id_), tokens):
                    read[id_]["attention"][key(run)] = found
        n = sum(key(run) in row["attention"] for test_set in of_run[run] for row in test_set.rows)
        how = "--attention n: n evenly spaced of each set, and n of the wrong ones"
        notes.append(f"{title(run)}: attention playback for {n} of its expressions ({how})")


def _maps(model: Any, run: RunFolder, image: np.ndarray, tokens: list[str]) -> Json | None:
    """One byte per step and cell of the network's own grid; None if it cannot be fed this image or these tokens."""
    from hmerbench.benchmarks.recognition.attention import trace

    try:
        attention = trace(model, run.settings, image, tokens)
    except (UserError, ValueError):
        return None
    looked_Thw, suppressed_Thw = attention.looked_Thw, attention.suppressed_Thw
    maps = {"attention": _bytes(looked_Thw / looked_Thw.max((1, 2), keepdims=True))}
    if suppressed_Thw is not None:
        maps["refinement"] = _bytes(suppressed_Thw / max(float(suppressed_Thw.max()), 1e-9))
    _, rows, columns = looked_Thw.shape
    return {"rows": rows, "columns": columns, "cell": [round(side, 3) for side in attention.cell], "maps": maps}


def _bytes(values_Thw: np.ndarray) -> list[str]:
    return [base64.b64encode(step.tobytes()).decode() for step in (values_Thw * 255).round().astype(np.uint8)]
