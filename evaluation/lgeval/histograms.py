"""LgEval's structure confusion histograms (confHist): which connected pieces of the truth are read wrongly."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Set
from html import escape
from itertools import product
from typing import TypeVar

from evaluation.lgeval.confusion import STYLE
from evaluation.lgeval.label_graph import ABSENT, NO_EDGE, Graph, LabelGraph, Primitives, segment

Node = TypeVar("Node", bound=Hashable)
Histogram = dict["Pattern", dict["Pattern", Counter["Pattern"]]]  # objects -> their primitives -> as read -> count


class Pattern:
    """A small graph whose nodes have labels but no names: two are equal where they are isomorphic, as for LgEval.

    `text` says it in words; of equal patterns one may be worded in another order.
    """

    def __init__(self, nodes: Mapping[Node, Set[str]], edges: Mapping[tuple[Node, Node], Set[str]], text: str) -> None:
        at = {node: index for index, node in enumerate(nodes)}
        self.text = text
        self.edges = {
            (at[one], at[other]): frozenset(labels)
            for (one, other), labels in edges.items()
            if one in at and other in at and labels != NO_EDGE
        }
        names = [sorted(labels) for labels in nodes.values()]
        around: list[list[str]] = [[] for _ in at]
        for (one, other), labels in self.edges.items():
            around[one].append(f"to {sorted(labels)} {names[other]}")
            around[other].append(f"from {sorted(labels)} {names[one]}")
        self.signs = [f"{name} {sorted(near)}" for name, near in zip(names, around, strict=True)]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.signs)))

    def __eq__(self, other: object) -> bool:
        """By search: the nodes of this one, in order, each on a free node of the other that fits those before."""
        if not isinstance(other, Pattern) or sorted(self.signs) != sorted(other.signs):
            return False
        found: list[list[int]] = [[]]  # for the first nodes of this one, those of the other
        while found and len(found[-1]) < len(self.signs):
            images = found.pop()
            found += [[*images, image] for image in range(len(self.signs)) if self._fits(other, images, image)]
        return bool(found)

    def _fits(self, other: "Pattern", images: list[int], image: int) -> bool:
        at = len(images)
        return (
            self.signs[at] == other.signs[image]
            and image not in images
            and all(
                self.edges.get((at, k)) == other.edges.get((image, known))
                and self.edges.get((k, at)) == other.edges.get((known, image))
                for k, known in enumerate(images)
            )
        )


def object_histogram(pairs: Iterable[tuple[Graph, Graph]], size: int) -> Histogram:
    """Of (prediction, truth) pairs, every connected set of `size` true objects with an error in it."""
    found: Histogram = {}
    for prediction, truth in pairs:
        prediction, truth = _completed(prediction, truth), _completed(truth, prediction)
        objects, relations, _ = segment(truth)
        wrong = _wrong_objects(prediction, truth)
        wrong_relations = {
            ends
            for ends in relations
            if any(prediction.edges().get((a, b)) != truth.edges()[a, b] for a in ends[0] for b in ends[1])
        }
        labels = {primitives: truth.nodes()[min(primitives)] for primitives in objects}
        edges = {(a, b): truth.edges()[min(a), min(b)] for a, b in relations}
        for group in substructures(objects, relations, size):
            if group & wrong or (size > 1 and any(a in group and b in group for a, b in wrong_relations)):
                members = {item: _letters(labels[item]) if size == 1 else labels[item] for item in group}
                primitives = frozenset().union(*group)
                target = Pattern(members, edges, _words(objects, relations, group))
                by_target = found.setdefault(target, {})
                by_target.setdefault(_piece(truth, primitives), Counter())[_piece(prediction, primitives)] += 1
    return found


def primitive_histogram(pairs: Iterable[tuple[Graph, Graph]], sizes: Collection[int]) -> Histogram:
    """The same for sets of true primitives; target and its primitives are one here."""
    found: Histogram = {}
    for prediction, truth in pairs:
        prediction, truth = _completed(prediction, truth), _completed(truth, prediction)
        for size in sizes:
            for group in substructures(truth.nodes(), truth.edges(), size):
                true, read = _piece(truth, group, letters=size == 1), _piece(prediction, group)
                if true != read:
                    found.setdefault(true, {}).setdefault(true, Counter())[read] += 1
    return found


def substructures(nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]], size: int) -> Iterator[frozenset[Node]]:
    """Every connected set of `size` nodes that grows from one node along the edges, once."""
    edges = list(edges)
    current = {frozenset([node]) for node in nodes}
    for _ in range(size - 1):
        current = {group | {b} for group in current for a, b in edges if a in group and b not in group}
    yield from current


def _completed(graph: Graph, other: Graph) -> LabelGraph:
    """A graph with the other's nodes, absent ones as such."""
    return LabelGraph({**dict.fromkeys(other.nodes(), ABSENT), **graph.nodes()}, graph.edges())


def _wrong_objects(prediction: LabelGraph, truth: LabelGraph) -> set[Primitives]:
    found, nodes, true_nodes = segment(prediction).first, prediction.nodes(), truth.nodes()
    wrong = set()
    for primitive, item in segment(truth).first.items():
        if "ABSENT" in nodes[primitive] | true_nodes[primitive]:
            differs = len(nodes) > 1
        else:
            differs = nodes[min(item)] != true_nodes[min(item)]
        if differs or found[primitive] != item:
            wrong.add(item)
    return wrong


def _letters(labels: Set[str]) -> Set[str]:
    """LgEval compares single nodes by the letters of their labels."""
    return frozenset("".join(labels))


def _piece(graph: LabelGraph, primitives: Primitives, letters: bool = False) -> Pattern:
    """What stands on some primitives."""
    nodes = {one: graph.nodes()[one] for one in sorted(primitives)}
    edges = {pair: graph.edges()[pair] for pair in graph.edges() if nodes.keys() >= {*pair}}
    objects, relations, _ = segment(LabelGraph(nodes, edges))
    words = _words(objects, relations, objects)
    return Pattern({one: _letters(labels) for one, labels in nodes.items()} if letters else nodes, edges, words)


def _words(
    objects: Mapping[Primitives, Set[str]],
    relations: Mapping[tuple[Primitives, Primitives], Set[str]],
    group: Iterable[Primitives],
) -> str:
    names = {}
    for item in sorted(group, key=lambda item: (len(min(item)), sorted(item))):
        names[item] = "/".join(sorted(objects[item])) + (f" ({len(item)} primitives)" if len(item) > 1 else "")
    inner = [pair for pair in product(names, repeat=2) if pair in relations]
    related = [f"{names[a]} -{'/'.join(sorted(relations[a, b]))}-> {names[b]}" for a, b in inner]
    return ", ".join(related + [name for item, name in names.items() if not any(item in pair for pair in inner)])


def page(title: str, tables: Mapping[str, Histogram], least: int, date: str) -> str:
    """The confHist page: true structures by how often they are wrong, each with what was found instead."""
    parts = [
        f"<html><head><meta charset='utf-8'>{STYLE}</head><body>",
        "<h2>Structure Confusion Histograms</h2>",
        f"{escape(date)}<p><b>{escape(title)}</b></p>",
    ]
    for name, table in tables.items():
        found = {
            target: Counter({(true, read): n for true, counts in pieces.items() for read, n in counts.items()})
            for target, pieces in table.items()
        }
        errors = sum(counts.total() for counts in found.values())
        parts.append(f"<h2>{escape(name)}</h2><p>{len(table)} incorrect targets, {errors} errors.</p><table>")
        for target, counts in sorted(found.items(), key=lambda item: (-item[1].total(), item[0].text)):
            if counts.total() < least:
                continue
            shown = [(read.text, count) for (_, read), count in counts.most_common() if count >= least]
            other = counts.total() - sum(count for _, count in shown)
            cells = "".join(f"<td>{count}: {escape(text)}</td>" for text, count in shown)
            cells += f"<td>{other}: other errors</td>" if other else ""
            parts.append(f"<tr><th>{counts.total()} errors: {escape(target.text)}</th>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</body></html>\n"
