"""What is confused with what: LgEval's matrices of labels (sumDiff), and its histograms of structures (confHist), which
say which connected substructures of the truth are misread."""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Set
from html import escape
from itertools import product
from typing import TypeVar

from hmerbench.evaluation.lgeval.label_graph import ABSENT, NO_EDGE, Graph, LabelGraph, Primitives, segment
from hmerbench.evaluation.lgeval.metrics import Comparison

STYLE = (
    "<style>body { font-family: sans-serif } table { border-collapse: collapse } "
    "td, th { border: 1px solid lightgray; padding: 4px; text-align: right } "
    "tr:hover { background: #e8eef8 }</style>"
)
Node = TypeVar("Node", bound=Hashable)
Matrix = Counter[tuple[str, str]]  # (predicted label, true label) -> how often
Section = tuple[str, Matrix, Set[str]]  # the title of a matrix, the matrix, the labels of its rows and columns
# objects -> their primitives -> predicted -> count
Histogram = defaultdict["Pattern", defaultdict["Pattern", Counter["Pattern"]]]


def matrices(compared: Iterable[tuple[Comparison, Graph]]) -> list[Section]:
    """The three matrices of label errors, from comparisons and their truths: symbols; relations, with all merges as one
    class "*"; all edge labels."""
    nodes: Matrix = Counter()
    edges: Matrix = Counter()
    truth_labels: set[str] = set()
    for comparison, truth in compared:
        truth_labels.update(*truth.nodes.values())
        nodes.update(row[-2:] for row in comparison.nodes)
        edges.update(row[-2:] for row in comparison.edges)
    node_labels, edge_labels = ({label for pair in matrix for label in pair} for matrix in (nodes, edges))
    relations = edge_labels - node_labels - truth_labels
    short: Matrix = Counter()
    for (predicted, true), count in edges.items():
        short[predicted if predicted in relations else "*", true if true in relations else "*"] += count
    absent = "ABSENT: a node missing in the output or target graph"
    full = "unique labels for relationships and node groupings for specific symbol types"
    matrix = "Edge Label Confusion Matrix"
    return [
        (f"I. Node Label Confusion Matrix: {len(node_labels)} unique labels. {absent}", nodes, node_labels),
        (f"II. {matrix} (Short): {len(relations)} unique relationship labels + * (merge)", short, relations | {"*"}),
        (f"III. {matrix} (Full): {len(edge_labels)} {full}", edges, edge_labels),
    ]


def csv_of(sections: Iterable[Section], name: str, date: str) -> str:
    """ConfusionMatrices.csv: rows are output labels, columns true labels."""
    parts = []
    for title, counts, unsorted in sections:
        labels = sorted(unsorted)
        lines = [title, "Output:" + "".join(f",'{label}'" for label in labels)]
        lines += [f"'{a}'" + "".join(f",{counts[a, b] or ''}" for b in labels) for a in labels]
        parts.append("\n".join(lines))
    head = f"LgEval Error Summary for: {name}\n{date}\n\nNOTE: This file contains 3 confusion matrices.\n\n"
    return head + "\n\n\n".join(parts) + "\n"


def html_of(sections: Iterable[Section], name: str, date: str) -> str:
    """ConfusionMatrices.html: the same tables."""
    parts = [f"<html><head><meta charset='utf-8'>{STYLE}</head><body><h2>LgEval Error Summary</h2>"]
    parts.append(f"{escape(date)}<br><b>File:</b> {escape(name)}<p>Output labels in the left column.</p>")
    for title, counts, unsorted in sections:
        labels = sorted(unsorted)
        parts.append(f"<h2>{escape(title)}</h2><table><tr><th><i>(Out:Rows)</i></th>")
        parts.append("".join(f"<th>{escape(label)}</th>" for label in labels) + "</tr>")
        for a in labels:
            cells = "".join(f"<td>{counts[a, b] or ''}</td>" for b in labels)
            parts.append(f"<tr><th>{escape(a)}</th>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</body></html>\n"


# --- histograms of structures -------------------------------------------------------------------------------------


class Pattern:
    """A small graph whose nodes have labels but no names; patterns are equal if they are isomorphic, as in LgEval.

    `text` describes it; the descriptions of equal patterns may differ in order.
    """

    def __init__(self, nodes: Mapping[Node, Set[str]], edges: Mapping[tuple[Node, Node], Set[str]], text: str) -> None:
        index = {node: place for place, node in enumerate(nodes)}
        self.text = text
        self.edges = {
            (index[source], index[target]): frozenset(labels)
            for (source, target), labels in edges.items()
            if source in index and target in index and labels != NO_EDGE
        }
        names = [sorted(labels) for labels in nodes.values()]
        adjacent: list[list[str]] = [[] for _ in index]
        for (source, target), labels in self.edges.items():
            adjacent[source].append(f"to {sorted(labels)} {names[target]}")
            adjacent[target].append(f"from {sorted(labels)} {names[source]}")
        # What an isomorphism preserves of each node: its labels and those of its edges and neighbors.
        self.node_keys = [f"{name} {sorted(near)}" for name, near in zip(names, adjacent, strict=True)]

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.node_keys)))

    def __eq__(self, other: object) -> bool:
        """Search for an isomorphism: map the nodes in order, each to a free node that fits the earlier ones."""
        if not isinstance(other, Pattern) or sorted(self.node_keys) != sorted(other.node_keys):
            return False
        stack: list[list[int]] = [[]]  # partial maps: the images of this graph's first nodes
        while stack and len(stack[-1]) < len(self.node_keys):
            images = stack.pop()
            stack += [[*images, image] for image in range(len(self.node_keys)) if self._fits(other, images, image)]
        return bool(stack)

    def _fits(self, other: "Pattern", images: list[int], image: int) -> bool:
        node = len(images)
        return (
            self.node_keys[node] == other.node_keys[image]
            and image not in images
            and all(
                self.edges.get((node, earlier)) == other.edges.get((image, earlier_image))
                and self.edges.get((earlier, node)) == other.edges.get((earlier_image, image))
                for earlier, earlier_image in enumerate(images)
            )
        )


def object_histogram(pairs: Iterable[tuple[Graph, Graph]], size: int) -> Histogram:
    """Count, over (prediction, truth) pairs, the connected sets of `size` true objects that contain an error."""
    histogram: Histogram = defaultdict(lambda: defaultdict(Counter))
    for prediction, truth in _completed(pairs):
        objects, relations, _ = segment(truth)
        wrong = _wrong_objects(prediction, truth)
        wrong_relations = {
            ends
            for ends in relations
            if any(prediction.edges.get((a, b)) != truth.edges[a, b] for a in ends[0] for b in ends[1])
        }
        labels = {primitives: truth.nodes[min(primitives)] for primitives in objects}
        edges = {(a, b): truth.edges[min(a), min(b)] for a, b in relations}
        for group in substructures(objects, relations, size):
            if group & wrong or (size > 1 and any(a in group and b in group for a, b in wrong_relations)):
                members = {item: _letters(labels[item]) if size == 1 else labels[item] for item in group}
                primitives = frozenset().union(*group)
                target = Pattern(members, edges, _describe(objects, relations, group))
                histogram[target][_subgraph(truth, primitives)][_subgraph(prediction, primitives)] += 1
    return histogram


def primitive_histogram(pairs: Iterable[tuple[Graph, Graph]], sizes: Collection[int]) -> Histogram:
    """The same for sets of true primitives; here a target and its primitives are one pattern."""
    histogram: Histogram = defaultdict(lambda: defaultdict(Counter))
    for (prediction, truth), size in product(_completed(pairs), sizes):
        for group in substructures(truth.nodes, truth.edges, size):
            true, predicted = _subgraph(truth, group, letters=size == 1), _subgraph(prediction, group)
            if true != predicted:
                histogram[true][true][predicted] += 1
    return histogram


def substructures(nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]], size: int) -> Iterator[frozenset[Node]]:
    """Yield once each set of `size` nodes that grows from a single node along directed edges, in their order."""
    edges = list(edges)
    current = dict.fromkeys(frozenset([node]) for node in nodes)
    for _ in range(size - 1):
        current = dict.fromkeys(group | {b} for group in current for a, b in edges if a in group and b not in group)
    yield from current


def _completed(pairs: Iterable[tuple[Graph, Graph]]) -> Iterator[list[LabelGraph]]:
    """Pairs of graphs, to each of which the nodes that only the other has are added as ABSENT."""
    for pair in pairs:
        absent = {node: ABSENT for graph in pair for node in graph.nodes}
        yield [LabelGraph({**absent, **graph.nodes}, graph.edges) for graph in pair]


def _wrong_objects(prediction: LabelGraph, truth: LabelGraph) -> set[Primitives]:
    predicted, nodes, true_nodes = segment(prediction).first, prediction.nodes, truth.nodes
    wrong = set()
    for primitive, item in segment(truth).first.items():
        if "ABSENT" in nodes[primitive] | true_nodes[primitive]:
            differs = len(nodes) > 1
        else:
            differs = nodes[min(item)] != true_nodes[min(item)]
        if differs or predicted[primitive] != item:
            wrong.add(item)
    return wrong


def _letters(labels: Set[str]) -> Set[str]:
    """LgEval compares single nodes by the letters of their labels."""
    return frozenset("".join(labels))


def _subgraph(graph: LabelGraph, primitives: Primitives, letters: bool = False) -> Pattern:
    """The pattern of the subgraph on some primitives."""
    nodes = {one: graph.nodes[one] for one in sorted(primitives)}
    edges = {pair: graph.edges[pair] for pair in graph.edges if nodes.keys() >= {*pair}}
    objects, relations, _ = segment(LabelGraph(nodes, edges))
    words = _describe(objects, relations, objects)
    return Pattern({one: _letters(labels) for one, labels in nodes.items()} if letters else nodes, edges, words)


def _describe(
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


def page(title: str, tables: Mapping[str, Histogram], min_count: int) -> str:
    """The confHist page: true structures by how often they are wrong, each with what was predicted instead."""
    parts = [
        f"<html><head><meta charset='utf-8'>{STYLE}</head><body>",
        "<h2>Structure Confusion Histograms</h2>",
        f"{escape(time.strftime('%c'))}<p><b>{escape(title)}</b></p>",
    ]
    for name, table in tables.items():
        confusions = {
            target: Counter({(true, read): n for true, counts in by_target.items() for read, n in counts.items()})
            for target, by_target in table.items()
        }
        errors = sum(counts.total() for counts in confusions.values())
        parts.append(f"<h2>{escape(name)}</h2><p>{len(table)} incorrect targets, {errors} errors.</p><table>")
        for target, counts in sorted(confusions.items(), key=lambda item: (-item[1].total(), item[0].text)):
            if counts.total() < min_count:
                continue
            shown = [(read.text, count) for (_, read), count in counts.most_common() if count >= min_count]
            other = counts.total() - sum(count for _, count in shown)
            cells = "".join(f"<td>{count}: {escape(text)}</td>" for text, count in shown)
            cells += f"<td>{other}: other errors</td>" if other else ""
            parts.append(f"<tr><th>{counts.total()} errors: {escape(target.text)}</th>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</body></html>\n"
