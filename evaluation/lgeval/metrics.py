"""LgEval's comparison of two symLGs and its summary over many files.

Nodes are paths with a set of labels, edges are (parent path, child path) pairs with a set of relations. A
node that one graph lacks is labelled ABSENT there; a missing edge is labelled "_". A label set is right if
it shares a label with the other one (LgEval's INTER mode, the one `evaluate` uses). The number the
expression rate rests on is D_B = wrong nodes + wrong edges; an expression is correct if D_B is 0. There is
no alignment.

Names and order of the fields are LgEval's (README_MetricsData.txt in its sources explains each).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from evaluation.symlg import SymLG

FIELDS = (
    "D_B", "D_C", "D_L", "D_R", "D_S", "D_E(%)", "nNodes", "nEdges", "nSegRelEdges", "dPairs",
    "segPairErrors", "nodeCorrect", "edgeDiffClassCount", "undirDiffClassCount", "nSeg", "detectedSeg",
    "dSegRelEdges", "CorrectSegments", "CorrectSegmentsAndClass", "ClassError", "CorrectSegRels",
    "CorrectSegRelLocations", "SegRelErrors", "hasCorrectSegments", "hasCorrectSegLab",
    "hasCorrectRelationLocations", "hasCorrectRelLab", "hasCorrectStructure",
)  # fmt: skip

ABSENT = frozenset(["ABSENT"])
NO_EDGE = frozenset(["_"])


class Comparison(NamedTuple):
    metrics: dict[str, int | float]
    # One row per confused pair of labels: path, predicted label, true label; for edges parent and child path.
    nodes: list[tuple[str, str, str]]
    edges: list[tuple[str, str, str, str]]

    def diff(self) -> str:
        """LgEval's .diff text: empty if the graphs agree."""
        lines = [f"*N,{path},{found},1.0,:vs:,{true},1.0\n" for path, found, true in self.nodes]
        lines += [f"*E,{a},{b},{found},1.0,:vs:,{true},1.0\n" for a, b, found, true in self.edges]
        return "".join(lines)

    def csv(self) -> str:
        """LgEval's one-line name,value,name,value,... text."""
        return ",".join(f"{name},{self.metrics[name]}" for name in FIELDS) + "\n"


def compare(prediction: SymLG, truth: SymLG, inter: bool = True) -> Comparison:
    """Compare two graphs. `inter=False` is LgEval's default: the size of the larger difference of labels."""
    p_nodes, g_nodes = prediction.nodes(), truth.nodes()
    p_edges, g_edges = prediction.edges(), truth.edges()
    all_nodes = p_nodes.keys() | g_nodes.keys()
    common = p_nodes.keys() & g_nodes.keys()

    d_c, d_l = 0, 0
    node_rows: list[tuple[str, str, str]] = []
    edge_rows: list[tuple[str, str, str, str]] = []
    wrong_nodes: set[str] = set()
    for path in sorted(all_nodes):
        cost, pairs = _difference(p_nodes.get(path, ABSENT), g_nodes.get(path, ABSENT), inter)
        if cost:
            d_c += cost
            wrong_nodes.add(path)
            node_rows += [(path, found, true) for found, true in pairs]
    for edge in sorted(p_edges.keys() | g_edges.keys()):
        cost, pairs = _difference(p_edges.get(edge, NO_EDGE), g_edges.get(edge, NO_EDGE), inter)
        d_l += cost
        edge_rows += [(*edge, found, true) for found, true in pairs]

    located = p_edges.keys() & g_edges.keys()
    related = sum(p_edges[edge] == g_edges[edge] for edge in located)
    classified = sum(not p_nodes[path].isdisjoint(g_nodes[path]) for path in common)
    same_nodes = len(common) == len(all_nodes)
    same_places = len(located) == len(p_edges) == len(g_edges)
    n, n_edges = len(all_nodes), len(all_nodes) * (len(all_nodes) - 1)
    untouched = all_nodes - wrong_nodes - _ends_of_unmatched(p_nodes, p_edges, g_nodes, g_edges, inter)
    values = (
        d_c + d_l, d_c, d_l, d_l, 0,
        ((math.sqrt(d_l / n_edges) if n_edges else 0.0) + (d_c / n if n else 0.0)) / 3.0,
        n, n_edges, len(g_edges), len({frozenset(row[:2]) for row in edge_rows}), 0, len(untouched), 0, 0,
        len(g_nodes), len(p_nodes), len(p_edges), len(common), classified,
        sum(map(len, g_nodes.values())) + n - len(g_nodes) - classified,
        related, len(located), len(p_edges) - related,
        int(same_nodes), int(classified == n), int(same_places), int(related == len(p_edges) == len(g_edges)),
        int(same_nodes and same_places),
    )  # fmt: skip
    return Comparison(dict(zip(FIELDS, values, strict=True)), node_rows, edge_rows)


def _difference(found: Set[str], true: Set[str], inter: bool) -> tuple[int, list[tuple[str, str]]]:
    if found == true or (inter and found & true):
        return 0, []
    only_found, only_true = found - true, true - found
    pairs = [(a, b) for a in sorted(only_found or NO_EDGE) for b in sorted(only_true or NO_EDGE)]
    return 1 if inter else max(len(only_found), len(only_true)), pairs


def _ends_of_unmatched(p_nodes: Mapping, p_edges: Mapping, g_nodes: Mapping, g_edges: Mapping, inter: bool) -> set[str]:
    """Nodes that LgEval counts as touched by an edge of one graph alone. With INTER every ordered pair of a
    graph's nodes is an edge, so one node too many touches all of its graph; an edge that both graphs have
    with different labels touches none, as LgEval counts before it looks at those."""
    touched: set[str] = set()
    for nodes, edges, other_nodes, other_edges in (
        (p_nodes, p_edges, g_nodes, g_edges),
        (g_nodes, g_edges, p_nodes, p_edges),
    ):
        if not inter:
            touched.update(end for edge in edges.keys() - other_edges.keys() for end in edge)
        elif nodes.keys() - other_nodes.keys():
            touched |= nodes.keys()
    return touched


# --- many files -------------------------------------------------------------------------------------------


def histogram(errors: Sequence[int], size: int = 6) -> list[int]:
    """How many values are 0, 1, ..., size - 1."""
    counts = Counter(errors)
    return [counts[k] for k in range(size)]


def summary(rows: Sequence[Mapping[str, int | float]], label: str, date: str) -> str:
    """LgEval's Summary.txt over the metrics of all files. `label` is its two lines that name the folders."""
    total = {name: sum(int(row[name]) for row in rows) for name in FIELDS}
    nodes, edges, d_c, d_l = total["nNodes"], total["nEdges"], total["D_C"], total["D_L"]
    pairs, bad_pairs = edges / 2, total["dPairs"]
    pair_errors = d_c + bad_pairs
    lines = [
        "LgEval Evaluation Summary", date, "", label, "",
        "****  PRIMITIVES   **************************************************************", "",
        _table("Directed", "Rate(%)", "Total", "Correct", "Errors", "SegErr", "ClErr", "RelErr"), "-" * 81,
        _table("Nodes", _rate(nodes - d_c, nodes), nodes, nodes - d_c, d_c),
        _table("Edges", _rate(edges - d_l, edges), edges, edges - d_l, d_l, 0, 0, d_l), "",
        _table("Total", _rate(nodes + edges - d_c - d_l, nodes + edges), nodes + edges,
               nodes + edges - d_c - d_l, d_c + d_l), "", "",
        _table("Undirected", "Rate(%)", "Total", "Correct", "Errors", "SegErr", "ClErr", "RelErr"), "-" * 81,
        _table("Nodes", _rate(nodes - d_c, nodes), nodes, nodes - d_c, d_c),
        _table("Node Pairs", _rate(pairs - bad_pairs, pairs), pairs, pairs - bad_pairs,
               bad_pairs, 0, 0, bad_pairs), "",
        _table("Total", _rate(nodes + pairs - pair_errors, nodes + pairs), nodes + pairs,
               int(nodes + pairs - pair_errors), pair_errors), "",
        "     SegErr: merge/split   ClErr: valid merge class error   RelErr: relation error", "", "",
        "****  OBJECTS   **************************************************************************", "",
        _table("", "Recall(%)", "Prec(%)", "2RP/(R+P)", "Targets", "Correct", "FalseNeg",
               "*Detected", "*FalsePos"),
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
        *_histogram([int(row["D_B"]) for row in rows]), "",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rate(correct: float, total: float) -> float:
    return 100 * correct / total if total else 100.0


def _table(*entries: str | int | float) -> str:
    return "".join(f"{entry:>10.2f}" if isinstance(entry, float) else f"{entry:>10}" for entry in entries)


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


def _histogram(errors: Sequence[int], size: int = 6) -> list[str]:
    counts = histogram(errors, size)
    cumulated = [sum(counts[: k + 1]) for k in range(size)]
    return [
        _table("", *range(size), f">{size - 1}"),
        "-" * 82,
        _table("Num. Files", *counts, len(errors) - cumulated[-1]),
        _table("Cum. Files", *cumulated, len(errors)),
    ]
