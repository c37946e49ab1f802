"""LgEval's confusion matrices of labels (sumDiff)."""

from collections import Counter
from collections.abc import Iterable
from html import escape

from evaluation.lgeval.metrics import Comparison

Matrix = Counter[tuple[str, str]]  # (predicted label, true label) -> how often

STYLE = (
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
        parts = [f"<html><head><meta charset='utf-8'>{STYLE}</head><body><h2>LgEval Error Summary</h2>"]
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
