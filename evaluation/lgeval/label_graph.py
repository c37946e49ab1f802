"""Label graphs (.lg) as LgEval reads them: labels on primitives (strokes, or paths in a symLG) and on pairs of them.

A file may mix two forms. By object: `O, id, label, weight, primitive, ...` and `R, parent, child, label, weight`
(or `EO`). By primitive: `N, primitive, label, weight` and `E, from, to, label, weight`. An object of several primitives
is a clique of edges with its label; a relation holds from every primitive of the parent to every one of the child.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from itertools import product
from typing import NamedTuple

from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.symlg import SymLG

Primitives = frozenset[str]
Weights = dict[str, float]  # label -> weight, in the order of the file

ABSENT = frozenset(["ABSENT"])  # the label of a node that only the other graph has
NO_EDGE = frozenset(["_"])
_BROKEN = "MergeError"
MAX_EDGES = 1_000_000  # of one file; one object of 1,000 primitives has as many and takes 0.4 GB


class LabelGraph(NamedTuple):
    """A label graph by primitive, as `read` makes it: labels of primitives, and of pairs (from, to)."""

    nodes: Mapping[str, Set[str]]
    edges: Mapping[tuple[str, str], Set[str]]


Graph = LabelGraph | SymLG  # what can be compared; the primitives of a symLG are its paths


class Segments(NamedTuple):
    """A label graph by object. An object is its set of primitives; two with the same set are one with both labels."""

    objects: dict[Primitives, set[str]]
    relations: dict[tuple[Primitives, Primitives], set[str]]
    first: dict[str, Primitives]  # primitive -> its object by its first label; few primitives have another


def read(text: str, name: str = "label graph") -> LabelGraph:
    """Parse an .lg file as LgEval does: a relation of objects that no line before it defines is left out, a primitive
    without a line is labeled "_". Raises InputError naming a line that does not belong to a label graph."""
    lines = _Lines()
    for number, row in _rows(text, name):
        try:
            fault = "" if lines.add(row) else "not a line of a label graph"
        except ValueError:
            fault = "the weight is not a number"
        except OverflowError:
            fault = f"more than {MAX_EDGES:,} pairs of primitives"
        if fault:
            raise InputError(f"{name}, line {number}: {fault}: {', '.join(row)[:60]!r}")
    for primitive in [end for pair in lines.edges for end in pair]:
        lines.nodes.setdefault(primitive, {"_": 1.0})
    lines.spread_broken()
    return LabelGraph(
        {primitive: labels.keys() for primitive, labels in lines.nodes.items()},
        {pair: labels.keys() for pair, labels in lines.edges.items()},
    )


class _Lines:
    """Accumulates the lines of a file."""

    def __init__(self) -> None:
        self.nodes: defaultdict[str, Weights] = defaultdict(dict)
        self.edges: defaultdict[tuple[str, str], Weights] = defaultdict(dict)
        self.objects: dict[str, list[str]] = {}
        self.grouped: set[tuple[str, str]] = set()  # pairs joined by "*" edges
        self.broken: set[str] = set()

    def add(self, row: list[str]) -> bool:
        """Add a line; False if it is not one of a label graph. Raises ValueError for a weight that is not a number."""
        match row:
            case ["O", name, label, weight, _, *_]:
                self.objects[name] = members = row[4:]
                for one in members:
                    self.nodes[one][label] = float(weight)
                self._relate(members, members, label, float(weight))
            case ["R" | "EO", parent, child, label, weight, *_]:
                self._relate(self.objects.get(parent, []), self.objects.get(child, []), label, float(weight))
            case ["N", one, label, *rest]:
                self.nodes[one][label] = float(rest[0]) if rest else 1.0
            case ["E", one, other, label, *rest]:
                self._edge(one, other, label, float(rest[0]) if rest else 1.0)
            case _:
                return False
        return True

    def _relate(self, parents: list[str], children: list[str], label: str, weight: float) -> None:
        if len(self.edges) + len(parents) * len(children) > MAX_EDGES:
            raise OverflowError
        for one, other in product(parents, children):
            if one != other:
                self.edges[one, other][label] = weight

    def _edge(self, one: str, other: str, label: str, weight: float) -> None:
        nodes = self.nodes
        if one == other:
            if one in nodes:
                nodes[one][label] = weight
            return
        if label == "*":  # the older notation of an object, whose label is that of its primitives
            if one in nodes and nodes[one] == nodes.get(other):
                label = next(iter(nodes[one]))
                self.grouped.add((one, other))
            else:
                label = _BROKEN
                nodes[one], nodes[other] = {label: 1.0}, {label: 1.0}
                self.broken |= {one, other}
        self.edges[one, other][label] = weight

    def spread_broken(self) -> None:
        """Mark whatever is grouped with a broken primitive as broken."""
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
    reader = csv.reader(lines(text))
    try:
        for fields in reader:
            row = list(map(str.strip, fields))
            if any(row) and not row[0].startswith("#"):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from None


def merges(graph: Graph) -> dict[tuple[str, str], Set[str]]:
    """The edges within objects: pairs of primitives -> the labels that both primitives and the edge have."""
    nodes = graph.nodes
    return {
        (one, other): common
        for (one, other), labels in graph.edges.items()
        if not labels.isdisjoint(nodes[one]) and (common := labels & nodes[one] & nodes[other]) and labels != NO_EDGE
    }


def segment(graph: Graph) -> Segments:
    """The objects and their relations. For each of its labels a primitive is in one object: itself and all that an
    edge with this label, in either direction, joins to it. A relation's label is on every edge from parent to child."""
    nodes, edges = graph.nodes, graph.edges
    groups: dict[str, dict[str, set[str]]] = {}  # primitive -> label -> its object
    for (one, other), common in merges(graph).items():
        for primitive, neighbor in ((one, other), (other, one)):
            by_label = groups.setdefault(primitive, {label: {primitive} for label in nodes[primitive]})
            for label in common:
                by_label[label].add(neighbor)
    members = {  # primitive -> its objects, in the order of its labels
        primitive: [frozenset(groups[primitive][label] if primitive in groups else {primitive}) for label in labels]
        for primitive, labels in nodes.items()
    }
    segments = Segments({}, {}, {primitive: items[0] for primitive, items in members.items()})
    for primitive, labels in nodes.items():
        for item, label in zip(members[primitive], labels, strict=True):
            segments.objects.setdefault(item, set()).add(label)
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
                possible &= common  # also for the remaining objects of these two primitives, as in LgEval
            else:
                if possible:
                    segments.relations.setdefault((parent, child), set()).update(possible)
    return segments
