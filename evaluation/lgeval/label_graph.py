"""Label graphs (.lg) as LgEval reads them: labels on primitives (strokes, or paths in a symLG) and on pairs of them.

Two forms may stand in one file. By object: `O, id, label, weight, primitive, ...` and `R, parent, child, label, weight`
(or `EO`). By primitive: `N, primitive, label, weight` and `E, from, to, label, weight`. An object of several primitives
is a clique of edges with its label; a relation holds from every primitive of the parent to every one of the child.
"""

import csv
from collections.abc import Iterator, Mapping, Set
from itertools import product
from typing import NamedTuple

from evaluation import InputError
from evaluation.symlg import SymLG

Primitives = frozenset[str]
Weights = dict[str, float]  # label -> weight, in the order of the file

ABSENT = frozenset(["ABSENT"])  # the label of a node that only the other graph has
NO_EDGE = frozenset(["_"])
_BROKEN = "MergeError"


class LabelGraph(NamedTuple):
    """A label graph by primitive, as `read` makes it: labels of primitives, and of pairs (from, to)."""

    node_labels: Mapping[str, Set[str]]
    edge_labels: Mapping[tuple[str, str], Set[str]]

    def nodes(self) -> Mapping[str, Set[str]]:
        """Primitive -> its labels."""
        return self.node_labels

    def edges(self) -> Mapping[tuple[str, str], Set[str]]:
        """(from, to) -> the labels of the pair."""
        return self.edge_labels


Graph = LabelGraph | SymLG  # what can be compared; the primitives of a symLG are its paths


class Segments(NamedTuple):
    """A label graph by object. An object is its set of primitives; two with the same set are one with both labels."""

    objects: dict[Primitives, set[str]]
    relations: dict[tuple[Primitives, Primitives], set[str]]
    first: dict[str, Primitives]  # a primitive's object by its first label; seldom has it another


def read(text: str, name: str = "label graph") -> LabelGraph:
    """Parse an .lg file as LgEval does: a relation of objects that no line before it defines is left out, a primitive
    without a line is labeled "_". Raises InputError with the line for what is no label graph."""
    nodes: dict[str, Weights] = {}
    edges: dict[tuple[str, str], Weights] = {}
    objects: dict[str, list[str]] = {}
    grouped: set[tuple[str, str]] = set()  # by "*" edges
    broken: set[str] = set()
    for number, row in _rows(text, name):
        kind, count = row[0], len(row)
        try:
            if kind == "O" and count > 4:
                label, weight, members = row[2], float(row[3]), row[4:]
                objects[row[1]] = members
                for one in members:
                    nodes.setdefault(one, {})[label] = weight
                    for other in members:
                        if one != other:
                            edges.setdefault((one, other), {})[label] = weight
            elif kind in ("R", "EO") and count > 4:
                weight = float(row[4])
                for one in objects.get(row[1], ()):
                    for other in objects.get(row[2], ()):
                        if one != other:
                            edges.setdefault((one, other), {})[row[3]] = weight
            elif kind == "N" and count > 2:
                nodes.setdefault(row[1], {})[row[2]] = float(row[3]) if count > 3 else 1.0
            elif kind == "E" and count > 3:
                one, other, label = row[1:4]
                weight = float(row[4]) if count > 4 else 1.0
                if one == other:
                    if one in nodes:
                        nodes[one][label] = weight
                    continue
                if label == "*":  # the older form of an object: the label is that of its primitives
                    if one in nodes and nodes[one] == nodes.get(other):
                        label = next(iter(nodes[one]))
                        grouped.add((one, other))
                    else:
                        label = _BROKEN
                        nodes[one], nodes[other] = {label: 1.0}, {label: 1.0}
                        broken |= {one, other}
                edges.setdefault((one, other), {})[label] = weight
            else:
                raise InputError(f"{name}, line {number}: not a line of a label graph: {', '.join(row)[:60]!r}")
        except InputError:
            raise
        except ValueError:
            raise InputError(f"{name}, line {number}: the weight is no number: {', '.join(row)[:60]!r}") from None
    for primitive in [end for pair in edges for end in pair]:
        nodes.setdefault(primitive, {"_": 1.0})
    _spread(nodes, edges, grouped, broken)
    return LabelGraph(
        {primitive: labels.keys() for primitive, labels in nodes.items()},
        {pair: labels.keys() for pair, labels in edges.items()},
    )


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text.splitlines())
    try:
        for fields in reader:
            row = list(map(str.strip, fields))
            if any(row) and not row[0].startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from None


def _spread(
    nodes: dict[str, Weights],
    edges: dict[tuple[str, str], Weights],
    grouped: set[tuple[str, str]],
    broken: set[str],
) -> None:
    """What is grouped with a broken primitive is broken too."""
    todo = set(broken)
    while todo:
        primitive = todo.pop()
        for pair in [pair for pair in grouped if primitive in pair]:
            grouped.remove(pair)
            edges[pair] = {_BROKEN: 1.0}
            for end in pair:
                nodes[end] = {_BROKEN: 1.0}
                todo.add(end)


def merges(graph: Graph) -> dict[tuple[str, str], Set[str]]:
    """The edges inside objects: pairs of primitives with a label that both and the edge have."""
    nodes = graph.nodes()
    return {
        (one, other): common
        for (one, other), labels in graph.edges().items()
        if not labels.isdisjoint(nodes[one]) and (common := labels & nodes[one] & nodes[other]) and labels != NO_EDGE
    }


def segment(graph: Graph) -> Segments:
    """The objects and their relations. For each of its labels a primitive is in one object: itself and all that an
    edge with this label, in either direction, joins to it. A relation's label stands on all pairs of primitives."""
    nodes, edges = graph.nodes(), graph.edges()
    groups: dict[str, dict[str, set[str]]] = {}
    for (one, other), common in merges(graph).items():
        for primitive, neighbor in ((one, other), (other, one)):
            by_label = groups.setdefault(primitive, {label: {primitive} for label in nodes[primitive]})
            for label in common:
                by_label[label].add(neighbor)
    found = Segments({}, {}, {})
    members: dict[str, list[Primitives]] = {}  # a primitive's objects, by its labels
    for primitive, labels in nodes.items():
        by_label = groups.get(primitive)
        for label in labels:
            item = frozenset([primitive] if by_label is None else by_label[label])
            found.objects.setdefault(item, set()).add(label)
            members.setdefault(primitive, []).append(item)
        found.first[primitive] = members[primitive][0]
    for (one, other), labels in edges.items():
        possible = labels - nodes[one] - nodes[other]
        if not possible or labels == NO_EDGE:
            continue
        for parent, child in product(members[one], members[other]):
            if parent == child:
                continue
            for pair in product(sorted(parent), sorted(child)) if len(parent) + len(child) > 2 else ():
                if (common := edges.get(pair, NO_EDGE)) == NO_EDGE:
                    break
                possible &= common  # stays so for the next objects of these two, as in LgEval
            else:
                if possible:
                    found.relations.setdefault((parent, child), set()).update(possible)
    return found
