"""LgEval's confusion matrices of labels (sumDiff)."""

from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.lgeval.metrics import Comparison

Matrix = Counter[tuple[str, str]]  # (predicted label, true label) -> how often

STYLE = (
    "<style>body { font-family: sans-serif } table { border-collapse: collapse } "
    "td, th { border: 1px solid lightgray; padding: 4px; text-align: right } "
    "tr:hover { background: #e8eef8 }</style>"
)


class Section(NamedTuple):
    """One matrix with its title and the labels of its rows and columns."""

    title: str
    counts: Matrix
    labels: list[str]


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
    titles = (
        f"I. Node Label Confusion Matrix: {len(node_labels)} unique labels. "
        "ABSENT: a node missing in the output or target graph",
        f"II. Edge Label Confusion Matrix (Short): {len(relations)} unique relationship labels + * (merge)",
        f"III. Edge Label Confusion Matrix (Full): {len(edge_labels)} unique labels for "
        "relationships and node groupings for specific symbol types",
    )
    labels = map(sorted, (node_labels, relations | {"*"}, edge_labels))
    return [Section(*parts) for parts in zip(titles, (nodes, short, edges), labels, strict=True)]


def csv(sections: Iterable[Section], name: str, date: str) -> str:
    """ConfusionMatrices.csv: rows are output labels, columns true labels."""
    parts = []
    for title, counts, labels in sections:
        lines = [title, "Output:" + "".join(f",'{label}'" for label in labels)]
        lines += [f"'{a}'" + "".join(f",{counts[a, b] or ''}" for b in labels) for a in labels]
        parts.append("\n".join(lines))
    head = f"LgEval Error Summary for: {name}\n{date}\n\nNOTE: This file contains 3 confusion matrices.\n\n"
    return head + "\n\n\n".join(parts) + "\n"


def html(sections: Iterable[Section], name: str, date: str) -> str:
    """ConfusionMatrices.html: the same tables."""
    parts = [f"<html><head><meta charset='utf-8'>{STYLE}</head><body><h2>LgEval Error Summary</h2>"]
    parts.append(f"{escape(date)}<br><b>File:</b> {escape(name)}<p>Output labels in the left column.</p>")
    for title, counts, labels in sections:
        parts.append(f"<h2>{escape(title)}</h2><table><tr><th><i>(Out:Rows)</i></th>")
        parts.append("".join(f"<th>{escape(label)}</th>" for label in labels) + "</tr>")
        for a in labels:
            cells = "".join(f"<td>{counts[a, b] or ''}</td>" for b in labels)
            parts.append(f"<tr><th>{escape(a)}</th>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n</body></html>\n"
