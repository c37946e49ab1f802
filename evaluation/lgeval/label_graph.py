"""Label graphs (.lg) as LgEval reads them: labels on primitives (strokes, or paths in a symLG) and on pairs of them.

Two forms may stand in one file. By object: `O, id, label, weight, primitive, ...` and `R, parent, child, label, weight`
(or `EO`). By primitive: `N, primitive, label, weight` and `E, from, to, label, weight`. An object of several primitives
is a clique of edges with its label; a relation holds from every primitive of the parent to every one of the child.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Set
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
    lines = _Lines()
    for number, row in _rows(text, name):
        try:
            known = lines.add(row)
        except ValueError:
            raise InputError(f"{name}, line {number}: the weight is no number: {', '.join(row)[:60]!r}") from None
        if not known:
            raise InputError(f"{name}, line {number}: not a line of a label graph: {', '.join(row)[:60]!r}")
    for primitive in [end for pair in lines.edges for end in pair]:
        lines.nodes.setdefault(primitive, {"_": 1.0})
    lines.spread()
    return LabelGraph(
        {primitive: labels.keys() for primitive, labels in lines.nodes.items()},
        {pair: labels.keys() for pair, labels in lines.edges.items()},
    )


class _Lines:
    """What the lines of a file add up to."""

    def __init__(self) -> None:
        self.nodes: dict[str, Weights] = {}
        self.edges: dict[tuple[str, str], Weights] = {}
        self.objects: dict[str, list[str]] = {}
        self.grouped: set[tuple[str, str]] = set()  # by "*" edges
        self.broken: set[str] = set()

    def add(self, row: list[str]) -> bool:
        """Adds a line; whether it is one of a label graph. Raises ValueError for a weight that is no number."""
        kind, count = row[0], len(row)
        if kind == "O" and count > 4:
            label, weight, members = row[2], float(row[3]), row[4:]
            self.objects[row[1]] = members
            for one in members:
                self.nodes.setdefault(one, {})[label] = weight
            self._relate(members, members, label, weight)
        elif kind in ("R", "EO") and count > 4:
            self._relate(self.objects.get(row[1], ()), self.objects.get(row[2], ()), row[3], float(row[4]))
        elif kind == "N" and count > 2:
            self.nodes.setdefault(row[1], {})[row[2]] = float(row[3]) if count > 3 else 1.0
        elif kind == "E" and count > 3:
            self._edge(row[1], row[2], row[3], float(row[4]) if count > 4 else 1.0)
        else:
            return False
        return True

    def _relate(self, parents: Iterable[str], children: Iterable[str], label: str, weight: float) -> None:
        for one in parents:
            for other in children:
                if one != other:
                    self.edges.setdefault((one, other), {})[label] = weight

    def _edge(self, one: str, other: str, label: str, weight: float) -> None:
        nodes = self.nodes
        if one == other:
            if one in nodes:
                nodes[one][label] = weight
            return
        if label == "*":  # the older form of an object: the label is that of its primitives
            if one in nodes and nodes[one] == nodes.get(other):
                label = next(iter(nodes[one]))
                self.grouped.add((one, other))
            else:
                label = _BROKEN
                nodes[one], nodes[other] = {label: 1.0}, {label: 1.0}
                self.broken |= {one, other}
        self.edges.setdefault((one, other), {})[label] = weight

    def spread(self) -> None:
        """What is grouped with a broken primitive is broken too."""
        todo = set(self.broken)
        while todo:
            primitive = todo.pop()
            for pair in [pair for pair in self.grouped if primitive in pair]:
                self.grouped.remove(pair)
                self.edges[pair] = {_BROKEN: 1.0}
                for end in pair:
                    self.nodes[end] = {_BROKEN: 1.0}
                    todo.add(end)


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text.splitlines())
    try:
        for fields in reader:
            row = list(map(str.strip, fields))
            if any(row) and not row[0].startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from None


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
