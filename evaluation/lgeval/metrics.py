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

from evaluation.lgeval.label_graph import ABSENT, NO_EDGE, Graph, LabelGraph, Segments, merges, segment
from evaluation.symlg import EMPTY_GRAPH
from evaluation.symlg.editions import PAPER, Edition

Pairs = list[tuple[str, str]]
Key = TypeVar("Key", str, tuple[str, str])  # of a node, or of an edge


class Comparison(NamedTuple):
    """What differs between a prediction and the truth."""

    metrics: dict[str, int | float]  # in LgEval's order
    # One row per confused pair of labels: primitive, predicted label, true label; for edges both primitives.
    nodes: list[tuple[str, str, str]]
    edges: list[tuple[str, str, str, str]]
    # (a, b): whether primitives a and b are one object differs; twice where both graphs have other labels there.
    segments: list[tuple[str, str]]

    def diff(self) -> str:
        """LgEval's .diff text: empty if the graphs agree."""
        lines = [f"*N,{path},{found},1.0,:vs:,{true},1.0\n" for path, found, true in self.nodes]
        lines += [f"*E,{a},{b},{found},1.0,:vs:,{true},1.0\n" for a, b, found, true in self.edges]
        lines += [f"*S,{a},{b}\n" for a, b in self.segments]
        return "".join(lines)

    def csv(self) -> str:
        """LgEval's one-line name,value,name,value,... text."""
        return ",".join(f"{name},{value}" for name, value in self.metrics.items()) + "\n"


def compare(prediction: Graph, truth: Graph, inter: bool = True, complete: bool = True) -> Comparison:
    """Compare two graphs. `inter=False` counts the size of the larger difference of two label sets, as LgEval does
    without INTER. `complete`: unrelated primitives have an edge "_", as in `evaluate`; it matters to nodeCorrect."""
    prediction = p_nodes, p_edges = LabelGraph(prediction.nodes(), prediction.edges())
    truth = g_nodes, g_edges = LabelGraph(truth.nodes(), truth.edges())
    all_nodes = p_nodes.keys() | g_nodes.keys()
    n, n_edges = len(all_nodes), len(all_nodes) * (len(all_nodes) - 1)
    d_c, node_rows = _differences(p_nodes, g_nodes, ABSENT, inter)
    d_l, edge_rows = _differences(p_edges, g_edges, NO_EDGE, inter)
    untouched = all_nodes - {row[0] for row in node_rows} - _ends_of_unmatched(prediction, truth, complete)
    inside = _merge_errors(prediction, truth, inter)
    d_s = inside.cost - inside.classes
    roots = sum(math.sqrt(max(errors, 0) / n_edges) for errors in (d_s, d_l)) if n_edges else 0.0
    true = segment(truth)
    # In the order of the labels alike graphs may differ, and so in which objects a primitive of several is.
    alike = prediction == truth and all(len(item) == 1 for item in true.objects)
    found = true if alike else segment(prediction)
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
        "segPairErrors": len({frozenset(pair) for pair in inside.segments}),
        "nodeCorrect": len(untouched),
        "edgeDiffClassCount": inside.classes,
        "undirDiffClassCount": len(inside.relabeled),
    }
    metrics |= _of_objects(found, true, lacking=n - len(p_nodes), surplus=n - len(g_nodes))
    return Comparison(metrics, node_rows, [(*edge, a, b) for edge, a, b in edge_rows], inside.segments)


def _of_objects(found: Segments, true: Segments, lacking: int, surplus: int) -> dict[str, int]:
    """The fields that count objects. The prediction is `lacking` some nodes of the truth, and has a `surplus`."""
    places = found.objects.keys() & true.objects.keys()
    located = {prims for prims in places if "ABSENT" not in found.objects[prims] | true.objects[prims]}
    classified = sum(not found.objects[prims].isdisjoint(true.objects[prims]) for prims in located)
    related = [pair for pair in found.relations.keys() & true.relations.keys() if located.issuperset(pair)]
    labeled = sum(found.relations[pair] == true.relations[pair] for pair in related)
    # Objects of the prediction, with those that it lacks; an absent primitive is an object by itself.
    n_found, n_true = len(found.objects) + lacking, len(true.objects)
    same_places = len(related) == len(found.relations) == len(true.relations)
    return {
        "nSeg": n_true,
        "detectedSeg": len(found.objects),
        "dSegRelEdges": len(found.relations),
        "CorrectSegments": len(located),
        "CorrectSegmentsAndClass": classified,
        "ClassError": sum(map(len, true.objects.values())) + surplus - classified,
        "CorrectSegRels": labeled,
        "CorrectSegRelLocations": len(related),
        "SegRelErrors": len(found.relations) - labeled,
        "hasCorrectSegments": int(len(located) == n_true == n_found),
        "hasCorrectSegLab": int(classified == n_true == n_found),
        "hasCorrectRelationLocations": int(same_places),
        "hasCorrectRelLab": int(labeled == len(found.relations) == len(true.relations)),
        "hasCorrectStructure": int(same_places and len(located) == n_true == n_found),
    }


def _differences(
    found: Mapping[Key, Set[str]], true: Mapping[Key, Set[str]], absent: Set[str], inter: bool
) -> tuple[int, list[tuple[Key, str, str]]]:
    """Cost over all nodes or edges, and where which labels are confused, in order."""
    if found == true:
        return 0, []
    cost, rows = 0, []
    for key in found.keys() | true.keys():
        more, pairs = _difference(found.get(key, absent), true.get(key, absent), inter)
        cost += more
        rows += [(key, *pair) for pair in pairs]
    return cost, sorted(rows)


def _difference(found: Set[str], true: Set[str], inter: bool) -> tuple[int, Pairs]:
    """Cost, and the pairs of labels that are confused."""
    if found == true or (inter and found & true):
        return 0, []
    only_found, only_true = found - true, true - found
    pairs = [(a, b) for a in sorted(only_found or NO_EDGE) for b in sorted(only_true or NO_EDGE)]
    return 1 if inter else max(len(only_found), len(only_true)), pairs


class _MergeErrors(NamedTuple):
    cost: int
    classes: int  # confused pairs of labels of edges inside an object in both graphs: no error of segmentation
    relabeled: set[frozenset[str]]  # the pairs of primitives of these
    segments: list[tuple[str, str]]


def _merge_errors(prediction: Graph, truth: Graph, inter: bool) -> _MergeErrors:
    """Differences of the edges inside objects, each direction by itself."""
    found, true = merges(prediction), merges(truth)
    cost, classes, relabeled, segments = 0, 0, set(), []
    for pair in sorted(found.keys() | true.keys()):
        other, primitive = pair
        more, confused = _difference(found.get(pair, set()), true.get(pair, set()), inter)
        cost += more
        if pair not in found or pair not in true:
            segments.append((primitive, other))
            continue
        valid = sum(a in found[pair] and b in true[pair] for a, b in confused)
        classes += valid
        if confused:
            relabeled.add(frozenset(pair))
        if valid < len(confused):
            segments += [(primitive, other)] * 2
    return _MergeErrors(cost, classes, relabeled, segments)


def _ends_of_unmatched(prediction: Graph, truth: Graph, complete: bool) -> set[str]:
    """Nodes that LgEval counts as touched by an edge of one graph alone. In a complete graph one node too many touches
    all others; an edge that both graphs have with different labels touches none, as LgEval counts before it looks
    at those."""
    touched: set[str] = set()
    for one, other in ((prediction, truth), (truth, prediction)):
        if not complete:
            touched.update(end for edge in one.edges().keys() - other.edges().keys() for end in edge)
        elif one.nodes().keys() - other.nodes().keys():
            touched |= one.nodes().keys()
    return touched


FIELDS = tuple(compare(EMPTY_GRAPH, EMPTY_GRAPH).metrics)


# --- many files -------------------------------------------------------------------------------------------


def summary(rows: Sequence[Mapping[str, int | float]], label: str, date: str, edition: Edition = PAPER.edition) -> str:
    """LgEval's Summary.txt over the metrics of all files. `label` is its two lines that name the folders."""
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
    """`edges`, of which `d_l` are wrong, are the directed ones or the pairs of nodes."""
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
    """How many values are 0, 1, ..., 5 and more; and how many are at most that."""
    counts = [errors.count(k) for k in range(6)]
    return [
        _table("", *range(6), ">5"),
        "-" * 82,
        _table("Num. Files", *counts, len(errors) - sum(counts)),
        _table("Cum. Files", *accumulate(counts), len(errors)),
    ]
