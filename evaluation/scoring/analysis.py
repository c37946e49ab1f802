"""Which symbols and relations are confused, and on what kind of expression: tidy tables for figures.

One extra symbol changes the paths of all that follow, and the scorer counts these as confusions. `aligned` counts a
confusion only where the prediction has the paths of the truth: there it nearly always is a real one.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hmerbench.evaluation.lgeval.label_graph import Graph, read
from hmerbench.evaluation.lgeval.metrics import Comparison, compare_graphs
from hmerbench.evaluation.scoring.metrics import BUCKETS, Expression, percent, rounded_interval
from hmerbench.evaluation.symlg import EMPTY_GRAPH

Table = list[dict[str, str | int | float | None]]
_RATES = ("n", "exact", "exprate", "low", "high", "le1", "structure_right", "mean_errors")
_CONFUSIONS = ("truth", "prediction", "count", "aligned", "expressions")
COLUMNS = {
    "symbols": _CONFUSIONS,
    "relations": _CONFUSIONS,
    "symbol_recall": ("symbol", "n", "correct", "recall"),
    "structure": ("structure", *_RATES),
    "length": ("bucket", *_RATES),
}
STRUCTURES = ("line", "script", "nested script", "fraction", "root", "limits")
_WORD = re.compile("R|Sub|Sup|Above|Below|Inside")


class Pair(NamedTuple):
    """An expression with its prediction, its truth, and LgEval's comparison of the two."""

    expression: Expression
    prediction: Graph
    truth: Graph
    comparison: Comparison


def compared_pairs(expressions: list[Expression], workdir: Path) -> list[Pair]:
    """Read the graphs of an evaluation back from its workdir."""
    pairs = []
    for expression in expressions:
        paths = [workdir / part / f"{expression.id}.lg" for part in ("pred_symlg", "gt_symlg")]
        prediction, truth = (
            read(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.exists() else EMPTY_GRAPH
            for path in paths
        )
        pairs.append(Pair(expression, prediction, truth, compare_graphs(prediction, truth)))
    return pairs


def tables(pairs: list[Pair]) -> dict[str, Table]:
    """Name -> rows: symbols, relations, symbol_recall, structure and, with captions, length."""
    groups: dict[str, list[Pair]] = {name: [] for name in STRUCTURES}
    for pair in pairs:
        for name in structures(pair.truth):
            groups[name].append(pair)
    result = {
        "symbols": _confusions((pair, [row[-2:] for row in pair.comparison.nodes]) for pair in pairs),
        "relations": _confusions((pair, [row[-2:] for row in pair.comparison.edges]) for pair in pairs),
        "symbol_recall": symbol_recall(pairs),
        "structure": [_rates("structure", name, group) for name, group in groups.items()],
    }
    if all(pair.expression.bucket for pair in pairs):
        groups = {name: [pair for pair in pairs if pair.expression.bucket == name] for name in BUCKETS}
        result["length"] = [_rates("bucket", name, group) for name, group in groups.items()]
    return result


def _confusions(pairs: Iterable[tuple[Pair, list[tuple[str, ...]]]]) -> Table:
    """Confused labels: how often, how often with the paths of the truth, and in how many expressions."""
    count, aligned, expressions = Counter(), Counter(), Counter()
    for pair, confused in pairs:
        count.update(confused)
        expressions.update(set(confused))
        if pair.comparison.metrics["hasCorrectSegments"]:
            aligned.update(confused)
    order = sorted(count, key=lambda key: (-aligned[key], -count[key], key))
    rows = ((key[1], key[0], count[key], aligned[key], expressions[key]) for key in order)
    return [dict(zip(_CONFUSIONS, row, strict=True)) for row in rows]


def symbol_recall(pairs: Iterable[Pair]) -> Table:
    """How often the prediction has each true symbol, with its label at its path."""
    total, right = Counter(), Counter()
    for pair in pairs:
        predicted = pair.prediction.nodes
        for path, labels in pair.truth.nodes.items():
            total.update(labels)
            right.update(labels & predicted.get(path, set()))
    return [
        {"symbol": label, "n": n, "correct": right[label], "recall": percent(right[label], n)}
        for label, n in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    ]


def structures(graph: Graph) -> set[str]:
    """What a true expression contains: fraction, root, limits, script, nested script; else "line"."""
    nodes = graph.nodes  # by path, because some ground truths name relations differently (B for Below)
    kinds = set()
    for path, labels in nodes.items():
        words = _WORD.findall(path)
        depth = words.count("Sub") + words.count("Sup")
        vertical = [path + word for word in ("Above", "Below") if path + word in nodes]
        if "-" in labels and len(vertical) == 2:
            kinds.add("fraction")
        elif "\\sqrt" in labels:
            kinds.add("root")
        elif vertical:
            kinds.add("limits")
        if depth:
            kinds.add("script")
        if depth > 1:
            kinds.add("nested script")
    return kinds or {"line"}


def _rates(key: str, name: str, group: list[Pair]) -> dict[str, str | int | float | None]:
    n, exact = len(group), sum(pair.expression.exact for pair in group)
    errors = [pair.expression.errors for pair in group]
    rate, mean = (percent(exact, n), round(sum(errors) / n, 3)) if n else (None, None)
    within, structure = sum(count <= 1 for count in errors), sum(pair.expression.structure for pair in group)
    values = (name, n, exact, rate, *(rounded_interval(exact, n) if n else (None, None)), within, structure, mean)
    return dict(zip((key, *_RATES), values, strict=True))
