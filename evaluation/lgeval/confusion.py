"""LgEval's confusion matrices (sumDiff) and structure confusion histograms (confHist)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from evaluation.lgeval.metrics import Comparison
from evaluation.symlg import SymLG

Matrix = Counter[tuple[str, str]]  # (predicted label, true label) -> how often

_STYLE = (
    "<style>body { font-family: sans-serif } table { border-collapse: collapse } "
    "td, th { border: 1px solid lightgray; padding: 4px; text-align: right } "
    "tr:hover { background: #e8eef8 }</style>"
)


class Confusions:
    """Three matrices of errors: symbol labels; relations, with merges as one class "*"; all edge labels."""

    def __init__(self, comparisons: Iterable[Comparison], truth_labels: Iterable[str]) -> None:
        self.nodes: Matrix = Counter()
        self.edges: Matrix = Counter()
        for comparison in comparisons:
            self.nodes.update((found, true) for _, found, true in comparison.nodes)
            self.edges.update((found, true) for _, _, found, true in comparison.edges)
        symbols = {label for pair in self.nodes for label in pair} | set(truth_labels)
        self.relations = {label for pair in self.edges for label in pair} - symbols
        self.short: Matrix = Counter()
        for (found, true), count in self.edges.items():
            self.short[self._merged(found), self._merged(true)] += count

    def _merged(self, label: str) -> str:
        return label if label in self.relations else "*"

    def _sections(self) -> list[tuple[str, Matrix, list[str]]]:
        node_labels = _labels(self.nodes)
        edge_labels = _labels(self.edges)
        return [
            (
                f"I. Node Label Confusion Matrix: {len(node_labels)} unique labels. "
                "ABSENT: a node missing in the output or target graph",
                self.nodes,
                node_labels,
            ),
            (
                f"II. Edge Label Confusion Matrix (Short): {len(self.relations)} unique relationship labels "
                "+ * (merge)",
                self.short,
                sorted(self.relations | {"*"}),
            ),
            (
                f"III. Edge Label Confusion Matrix (Full): {len(edge_labels)} unique labels for "
                "relationships and node groupings for specific symbol types",
                self.edges,
                edge_labels,
            ),
        ]

    def csv(self, name: str, date: str) -> str:
        """ConfusionMatrices.csv: rows are output labels, columns true labels."""
        parts = []
        for title, matrix, labels in self._sections():
            lines = [title, "Output:" + "".join(f",'{label}'" for label in labels)]
            lines += [f"'{a}'" + "".join(f",{matrix[a, b] or ''}" for b in labels) for a in labels]
            parts.append("\n".join(lines))
        head = f"LgEval Error Summary for: {name}\n{date}\n\n"
        head += "NOTE: This file contains 3 confusion matrices.\n\n"
        return head + "\n\n\n".join(parts) + "\n"

    def html(self, name: str, date: str) -> str:
        """ConfusionMatrices.html: the same tables."""
        parts = [f"<html><head><meta charset='utf-8'>{_STYLE}</head><body><h2>LgEval Error Summary</h2>"]
        parts.append(f"{escape(date)}<br><b>File:</b> {escape(name)}<p>Output labels in the left column.</p>")
        for title, matrix, labels in self._sections():
            parts.append(f"<h2>{escape(title)}</h2><table><tr><th><i>(Out:Rows)</i></th>")
            parts.append("".join(f"<th>{escape(label)}</th>" for label in labels) + "</tr>")
            for a in labels:
                cells = "".join(f"<td>{matrix[a, b] or ''}</td>" for b in labels)
                parts.append(f"<tr><th>{escape(a)}</th>{cells}</tr>")
            parts.append("</table>")
        return "\n".join(parts) + "\n</body></html>\n"


def _labels(matrix: Matrix) -> list[str]:
    return sorted({label for pair in matrix for label in pair})


# --- structure confusions ---------------------------------------------------------------------------------


def substructures(graph: SymLG, size: int) -> Iterator[frozenset[str]]:
    """Every connected set of `size` nodes that grows from one node along relations, once."""
    edges = graph.edges()
    current = {frozenset([path]) for path in graph.nodes()}
    for _ in range(size - 1):
        current = {group | {b} for group in current for a, b in edges if a in group and b not in group}
    yield from current


def describe(graph: SymLG, paths: Iterable[str]) -> str:
    """A substructure in words: the labels in path order, with the relations among them."""
    nodes, edges = graph.nodes(), graph.edges()
    order = sorted(paths, key=lambda path: (len(path), path))
    place = {path: k for k, path in enumerate(order)}
    labels = ["/".join(sorted(nodes.get(path, {"ABSENT"}))) for path in order]
    inner = sorted((place[a], place[b], sorted(words)) for (a, b), words in edges.items() if {a, b} <= place.keys())
    relations = [f"{labels[a]} -{'/'.join(words)}-> {labels[b]}" for a, b, words in inner]
    alone = [labels[k] for k in range(len(order)) if not any(k in (a, b) for a, b, _ in inner)]
    return ", ".join(relations + alone)


def structure_confusions(pairs: Iterable[tuple[str, SymLG, SymLG]], size: int) -> dict[str, Counter[str]]:
    """Of (name, prediction, truth) triples: wrongly read true substructure -> what stands there -> count."""
    table: dict[str, Counter[str]] = {}
    for _, prediction, truth in pairs:
        for group in substructures(truth, size):
            true, found = describe(truth, group), describe(prediction, group)
            if true != found:
                table.setdefault(true, Counter())[found] += 1
    return table


def histogram_html(title: str, tables: Sequence[tuple[str, dict[str, Counter[str]]]], least: int, date: str) -> str:
    """The confHist page: true structures by how often they are wrong, each with what was found instead."""
    parts = [f"<html><head><meta charset='utf-8'>{_STYLE}</head><body>"]
    parts.append("<h2>Structure Confusion Histograms</h2>")
    parts.append(f"{escape(date)}<p><b>{escape(title)}</b></p>")
    for name, table in tables:
        errors = sum(found.total() for found in table.values())
        parts.append(f"<h2>{escape(name)}</h2><p>{len(table)} incorrect targets, {errors} errors.</p><table>")
        for true, found in sorted(table.items(), key=lambda item: (-item[1].total(), item[0])):
            if found.total() < least:
                continue
            shown = [(text, count) for text, count in found.most_common() if count >= least]
            other = found.total() - sum(count for _, count in shown)
            cells = "".join(f"<td>{count}: {escape(text)}</td>" for text, count in shown)
            cells += f"<td>{other}: other errors</td>" if other else ""
            parts.append(f"<tr><th>{found.total()} errors: {escape(true)}</th>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</body></html>\n"
