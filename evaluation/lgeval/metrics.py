"""LgEval's comparison of two label graphs and its summary over many files.

Nodes are primitives with a set of labels, edges are pairs of primitives with a set of relations; in a symLG the
primitives are paths. A node that one graph lacks is labeled ABSENT there; a missing edge is labeled "_". A label set
is right if it shares a label with the other one (LgEval's INTER mode, the one `evaluate` uses). The number the
expression rate rests on is D_B = wrong nodes + wrong edges; an expression is correct if D_B is 0. There is no
alignment.

Names and order of the fields are LgEval's (README_MetricsData.txt in its sources explains each).
"""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import accumulate
from typing import NamedTuple, TypeVar

from hmerbench.evaluation.lgeval.label_graph import ABSENT, NO_EDGE, Graph, LabelGraph, Segments, merges, segment
from hmerbench.evaluation.symlg import EMPTY_GRAPH
from hmerbench.evaluation.symlg.editions import PAPER, Edition

Key = TypeVar("Key", str, tuple[str, str])  # of a node, or of an edge


class Comparison(NamedTuple):
    """What differs between a prediction and the truth."""

    metrics: dict[str, int | float]  # in LgEval's order
    # One row per confused pair of labels: primitive, predicted label, true label; for edges both primitives.
    nodes: list[tuple[str, str, str]]
    edges: list[tuple[str, str, str, str]]
    # (a, b): only one graph has primitives a and b in one object; twice where both do, but one under more labels.
    segments: list[tuple[str, str]]

    def diff(self) -> str:
        """LgEval's .diff text: empty if the graphs agree."""
        lines = [f"*N,{path},{predicted},1.0,:vs:,{true},1.0\n" for path, predicted, true in self.nodes]
        lines += [f"*E,{a},{b},{predicted},1.0,:vs:,{true},1.0\n" for a, b, predicted, true in self.edges]
        lines += [f"*S,{a},{b}\n" for a, b in self.segments]
        return "".join(lines)

    def csv(self) -> str:
        """LgEval's one-line name,value,name,value,... text."""
        return ",".join(f"{name},{value}" for name, value in self.metrics.items()) + "\n"


def compare_graphs(prediction: Graph, truth: Graph, inter: bool = True, complete: bool = True) -> Comparison:
    """Compare two graphs. With `inter=False` two label sets cost the size of their larger difference, as in LgEval
    without INTER. `complete`: unrelated primitives have an edge "_", as in `evaluate`; only nodeCorrect changes."""
    prediction = LabelGraph(prediction.nodes, prediction.edges)  # once: a symLG builds them at every access
    truth = LabelGraph(truth.nodes, truth.edges)
    all_nodes = prediction.nodes.keys() | truth.nodes.keys()
    n, n_edges = len(all_nodes), len(all_nodes) * (len(all_nodes) - 1)
    d_c, node_rows = _differences(prediction.nodes, truth.nodes, ABSENT, inter)
    d_l, edge_rows = _differences(prediction.edges, truth.edges, NO_EDGE, inter)
    untouched = all_nodes - {row[0] for row in node_rows} - _ends_of_unmatched(prediction, truth, complete)
    cost, classes, relabeled, segments = _merge_errors(prediction, truth, inter)
    d_s = cost - classes
    roots = sum(math.sqrt(max(errors, 0) / n_edges) for errors in (d_s, d_l)) if n_edges else 0.0
    predicted, true = segment(prediction), segment(truth)
    metrics = {
        "D_B": d_c + d_l,
        "D_C": d_c,
        "D_L": d_l,
        "D_R": d_l - d_s,
        "D_S": d_s,
        "D_E(%)": (roots + (d_c / n if n else 0.0)) / 3.0,
        "nNodes": n,
        "nEdges": n_edges,
        "nSegRelEdges": len(true.relations),
        "dPairs": len({frozenset(edge) for edge, _, _ in edge_rows}),
        "segPairErrors": len({frozenset(pair) for pair in segments}),
        "nodeCorrect": len(untouched),
        "edgeDiffClassCount": classes,
        "undirDiffClassCount": relabeled,
    }
    metrics |= _object_metrics(predicted, true, missing=n - len(prediction.nodes), extra=n - len(truth.nodes))
    return Comparison(metrics, node_rows, [(*edge, a, b) for edge, a, b in edge_rows], segments)


def _object_metrics(predicted: Segments, true: Segments, missing: int, extra: int) -> dict[str, int]:
    """The fields that count objects. The prediction has `missing` nodes fewer and `extra` nodes more than the truth."""
    places = predicted.objects.keys() & true.objects.keys()
    located = {prims for prims in places if "ABSENT" not in predicted.objects[prims] | true.objects[prims]}
    classified = sum(not predicted.objects[prims].isdisjoint(true.objects[prims]) for prims in located)
    related = [pair for pair in predicted.relations.keys() & true.relations.keys() if located.issuperset(pair)]
    labeled = sum(predicted.relations[pair] == true.relations[pair] for pair in related)
    # LgEval adds the missing primitives to the prediction, each as an object by itself.
    n_predicted, n_true = len(predicted.objects) + missing, len(true.objects)
    same_places = len(related) == len(predicted.relations) == len(true.relations)
    return {
        "nSeg": n_true,
        "detectedSeg": len(predicted.objects),
        "dSegRelEdges": len(predicted.relations),
        "CorrectSegments": len(located),
        "CorrectSegmentsAndClass": classified,
        "ClassError": sum(map(len, true.objects.values())) + extra - classified,
        "CorrectSegRels": labeled,
        "CorrectSegRelLocations": len(related),
        "SegRelErrors": len(predicted.relations) - labeled,
        "hasCorrectSegments": int(len(located) == n_true == n_predicted),
        "hasCorrectSegLab": int(classified == n_true == n_predicted),
        "hasCorrectRelationLocations": int(same_places),
        "hasCorrectRelLab": int(labeled == len(predicted.relations) == len(true.relations)),
        "hasCorrectStructure": int(same_places and len(located) == n_true == n_predicted),
    }


def _differences(
    predicted: Mapping[Key, Set[str]], true: Mapping[Key, Set[str]], absent: Set[str], inter: bool
) -> tuple[int, list[tuple[Key, str, str]]]:
    """The cost over all nodes or edges, and their confused labels in order: (node or edge, predicted, true)."""
    if predicted == true:
        return 0, []
    total, rows = 0, []
    for key in predicted.keys() | true.keys():
        cost, pairs = _difference(predicted.get(key, absent), true.get(key, absent), inter)
        total += cost
        rows += [(key, *pair) for pair in pairs]
    return total, sorted(rows)


def _difference(predicted: Set[str], true: Set[str], inter: bool) -> tuple[int, list[tuple[str, str]]]:
    """The cost of two label sets, and their confused labels."""
    if predicted == true or (inter and predicted & true):
        return 0, []
    only_predicted, only_true = predicted - true, true - predicted
    pairs = [(a, b) for a in sorted(only_predicted or NO_EDGE) for b in sorted(only_true or NO_EDGE)]
    return 1 if inter else max(len(only_predicted), len(only_true)), pairs


def _merge_errors(prediction: Graph, truth: Graph, inter: bool) -> tuple[int, int, int, list[tuple[str, str]]]:
    """Differences between the edges within objects, counted per direction: their cost; confused labels where both
    graphs have the edge, which are no segmentation errors; the unordered pairs with such; and `Comparison.segments`."""
    predicted, true = merges(prediction), merges(truth)
    total, classes, relabeled, segments = 0, 0, set(), []
    for pair in sorted(predicted.keys() | true.keys()):
        other, primitive = pair
        cost, confused = _difference(predicted.get(pair, set()), true.get(pair, set()), inter)
        total += cost
        if pair not in predicted or pair not in true:
            segments.append((primitive, other))
            continue
        valid = sum(a in predicted[pair] and b in true[pair] for a, b in confused)
        classes += valid
        if confused:
            relabeled.add(frozenset(pair))
        if valid < len(confused):
            segments += [(primitive, other)] * 2
    return total, classes, len(relabeled), segments


def _ends_of_unmatched(prediction: Graph, truth: Graph, complete: bool) -> set[str]:
    """Nodes that LgEval counts as ends of an edge that only one graph has. In a complete graph, an extra node has an
    edge to all others; edges in both graphs with different labels do not count, as LgEval compares labels later."""
    touched: set[str] = set()
    for one, other in ((prediction, truth), (truth, prediction)):
        if not complete:
            touched.update(end for edge in one.edges.keys() - other.edges.keys() for end in edge)
        elif one.nodes.keys() - other.nodes.keys():
            touched |= one.nodes.keys()
    return touched


FIELDS = tuple(compare_graphs(EMPTY_GRAPH, EMPTY_GRAPH).metrics)


# --- many files -------------------------------------------------------------------------------------------


def summary(rows: Sequence[Mapping[str, int | float]], label: str, date: str, edition: Edition = PAPER.edition) -> str:
    """LgEval's Summary.txt over the metrics of all files; `label` names their folders or list."""
    total = {name: sum(int(row[name]) for row in rows) for name in FIELDS}
    nodes, edges, d_c = total["nNodes"], total["nEdges"], total["D_C"]
    pairs = edges // 2 if edition.whole_pairs else edges / 2
    lines = [
        "LgEval Evaluation Summary", date, "", label, "",
        "****  PRIMITIVES   **************************************************************", "",
        *_primitives("Directed", "Edges", nodes, d_c, edges, total["D_L"],
                     total["D_S"], total["edgeDiffClassCount"]), "",
        *_primitives("Undirected", "Node Pairs", nodes, d_c, pairs, total["dPairs"],
                     total["segPairErrors"], total["undirDiffClassCount"]),
        "     SegErr: merge/split   ClErr: valid merge class error   RelErr: relation error", "", "",
        "****  OBJECTS   **************************************************************************", "",
        _table("", "Recall(%)", "Prec(%)", "2RP/(R+P)", "Targets", "Correct", "FalseNeg", "*Detected", "*FalsePos"),
        "-" * 90,
        *_detections("Objects", total["nSeg"], total["detectedSeg"],
                     total["CorrectSegments"], total["CorrectSegmentsAndClass"]), "",
        *_detections("Relations", total["nSegRelEdges"], total["dSegRelEdges"],
                     total["CorrectSegRelLocations"], total["CorrectSegRels"]), "",
        "     2RP/(R+P): harmonic mean (f-measure) for (R)ecall and (P)recision",
        "     Class/Det: (correct detection and classification) / correct detection", "", "",
        "****  FILES  ***************************************", "",
        _table("", "Rate(%)", "Total", "Correct", "Errors"), "-" * 51,
        *_files("Objects", rows, "hasCorrectSegments", "hasCorrectSegLab"), "",
        *_files("Relations", rows, "hasCorrectRelationLocations", "hasCorrectRelLab"), "",
        *_files("Structure", rows, "hasCorrectStructure", None), "", "",
        "****  LABEL ERROR HISTOGRAM (Dir. Edges, D_B)  ****", "",
        *histogram([int(row["D_B"]) for row in rows]), "",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rate(correct: float, total: float) -> float:
    return 100 * correct / total if total else 100.0


def _table(*entries: str | int | float) -> str:
    return "".join(f"{entry:>10.2f}" if isinstance(entry, float) else f"{entry:>10}" for entry in entries)


def _primitives(
    title: str, name: str, nodes: int, d_c: int, edges: float, d_l: int, segments: int, classes: int
) -> list[str]:
    """`edges` counts directed edges or pairs of nodes, of which `d_l` are wrong."""
    total, errors = nodes + edges, d_c + d_l
    return [
        _table(title, "Rate(%)", "Total", "Correct", "Errors", "SegErr", "ClErr", "RelErr"), "-" * 81,
        _table("Nodes", _rate(nodes - d_c, nodes), nodes, nodes - d_c, d_c),
        _table(name, _rate(edges - d_l, edges), edges, edges - d_l, d_l, segments, classes, d_l - segments - classes),
        "", _table("Total", _rate(total - errors, total), total, int(total - errors), errors), "",
    ]  # fmt: skip


def _detections(name: str, targets: int, detected: int, correct: int, classified: int) -> list[str]:
    lines = []
    for title, right in ((name, correct), ("+ Classes", classified)):
        recall, precision = _rate(right, targets), _rate(right, detected)
        f = 2 * recall * precision / (recall + precision) if recall + precision else 0
        lines.append(_table(title, recall, precision, f, targets, right, targets - right, detected, detected - right))
    share = 100 * classified / correct if correct else "(Empty)"
    return [*lines, _table("Class/Det", share, "", "", correct, classified)]


def _files(name: str, rows: Sequence[Mapping[str, int | float]], place: str, label: str | None) -> list[str]:
    n = len(rows)
    placed = sum(row[place] == 1 for row in rows)
    right = sum(row[label] == 1 if label else row["D_B"] == 0 for row in rows)
    final = () if label else ("*Final",)
    return [
        _table(name, _rate(placed, n), n, placed, n - placed),
        _table("+ Classes", _rate(right, n), n, right, n - right, *final),
        _table("Class/Det", 100 * right / placed if placed else "(Empty)", placed, right, ""),
    ]


def histogram(errors: Sequence[int]) -> list[str]:
    """The number of values equal to 0, 1, ..., 5 and above 5; then the cumulative numbers."""
    counts = [errors.count(k) for k in range(6)]
    return [
        _table("", *range(6), ">5"),
        "-" * 82,
        _table("Num. Files", *counts, len(errors) - sum(counts)),
        _table("Cum. Files", *accumulate(counts), len(errors)),
    ]
