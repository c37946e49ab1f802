r"""A comparison that does not depend on whether \limits was written.

What stands above or below an operator such as \sum is Above or Below in a symLG if its LaTeX has \limits, and Sup or
Sub if not, though the picture is the same: the truth of some test sets of CROHME has Sub and Sup there, of others Above
and Below (`limits` in benchmarks/datasets/crohme.yaml), and a network writes what the captions of its training
had. Here both are Sub and Sup, in both graphs.
"""

import re
from collections.abc import Set

from hmerbench.evaluation.lgeval.label_graph import Graph, LabelGraph
from hmerbench.evaluation.symlg import from_latex

# Operators that TeX sets limits above and below of, in displayed formulas or always, and integrals, which take them
# after \limits.
COMMANDS = frozenset(
    [
        r"\sum",
        r"\prod",
        r"\coprod",
        r"\int",
        r"\iint",
        r"\iiint",
        r"\oint",
        r"\bigcup",
        r"\bigcap",
        r"\bigvee",
        r"\bigwedge",
        r"\bigoplus",
        r"\bigotimes",
        r"\bigodot",
        r"\biguplus",
        r"\bigsqcup",
        r"\lim",
        r"\limsup",
        r"\liminf",
        r"\max",
        r"\min",
        r"\sup",
        r"\inf",
        r"\det",
        r"\gcd",
        r"\Pr",
    ]
)
OPERATORS = frozenset(item.label for command in COMMANDS for item in from_latex(command).objects)

_WORD = re.compile("[A-Z][a-z]*")
_SCRIPTS: dict[str, str] = {"Above": "Sup", "Below": "Sub"}


def neutral(graph: Graph) -> LabelGraph:
    """The graph with Sup for Above and Sub for Below wherever the upper end is an operator that takes limits."""
    nodes, edges = graph.nodes, graph.edges
    turned = {child for (parent, child), labels in edges.items() if _turns(nodes[parent], labels)}
    if not turned:
        return LabelGraph(nodes, edges)
    paths = {path: _renamed(path, turned) for path in nodes}
    renamed: dict[str, set[str]] = {}
    for path, labels in nodes.items():
        renamed.setdefault(paths[path], set()).update(labels)
    relations: dict[tuple[str, str], set[str]] = {}
    for (parent, child), labels in edges.items():
        if _turns(nodes[parent], labels):
            labels = {_SCRIPTS.get(label, label) for label in labels}
        relations.setdefault((paths[parent], paths[child]), set()).update(labels)
    return LabelGraph(renamed, relations)


def takes_limits(graph: Graph) -> bool:
    """Whether it has an operator that takes limits; without one, they make no difference to it."""
    return any(not labels.isdisjoint(OPERATORS) for labels in graph.nodes.values())


def _turns(parent: Set[str], labels: Set[str]) -> bool:
    return not parent.isdisjoint(OPERATORS) and not labels.isdisjoint(_SCRIPTS.keys())


def _renamed(path: str, turned: set[str]) -> str:
    """A path in which each step to one of these nodes is Sup or Sub."""
    before: str = ""
    after: str = ""
    for word in _WORD.findall(path):
        before += word
        after += _SCRIPTS[word] if before in turned and word in _SCRIPTS else word
    return after
