r"""What ground truths write in one of two ways: limits, and what is inside a root.

*Limits.* What stands above or below an operator such as \sum is Above or Below in a symLG if its LaTeX has \limits, and
Sup or Sub if not, though the picture is the same: the truth of some test sets of CROHME has Sub and Sup there, of
others Above and Below (`limits` in benchmarks/datasets/crohme.yaml), and a network writes what the captions of its
training had. In a neutral graph both are Sub and Sup.

*Roots.* A root without index is Inside-related to the first member of its radicand, or to the second too: it depends on
the version of convert2symLG.
"""

import re
from collections import Counter
from collections.abc import Iterable, Set

from hmerbench.evaluation.lgeval.label_graph import Graph, LabelGraph
from hmerbench.evaluation.symlg import from_latex

# Operators that TeX sets limits above and below of, in displayed formulas or always, and integrals, which take them
# after \limits.
_NAMES = """
sum prod coprod int iint iiint oint bigcup bigcap bigvee bigwedge bigoplus bigotimes bigodot biguplus bigsqcup
lim limsup liminf max min sup inf det gcd Pr
"""
COMMANDS = frozenset("\\" + name for name in _NAMES.split())
OPERATORS = frozenset(item.label for command in COMMANDS for item in from_latex(command).objects)

TWO_CHILDREN = "two-children Inside (convert2symLG 1.4)"
ONE_CHILD = "one-child Inside (convert2symLG 1.5)"
UNDECIDED = "undecided"

_WORD = re.compile("[A-Z][a-z]*")
_SCRIPTS = {"Above": "Sup", "Below": "Sub"}


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


def _renamed(path: str, turned: Set[str]) -> str:
    """A path in which each step to one of these nodes is Sup or Sub."""
    before, after = "", ""
    for word in _WORD.findall(path):
        before += word
        after += _SCRIPTS[word] if before in turned and word in _SCRIPTS else word
    return after


def convention(graphs: Iterable[Graph]) -> tuple[str, Counter[str]]:
    """Which Inside relations most roots of some graphs have, and how many roots have which. A root tells only if it has
    no index and its radicand has two members."""
    roots: Counter[str] = Counter()
    for graph in graphs:
        nodes, edges = graph.nodes, graph.edges
        inside: dict[str, set[str]] = {}
        for (parent, child), labels in edges.items():
            if "Inside" in labels and r"\sqrt" in nodes[parent]:
                inside.setdefault(parent, set()).add(child)
        if not inside:
            continue
        indexed = {parent for (parent, _), labels in edges.items() if "Above" in labels}
        right = {parent: child for (parent, child), labels in edges.items() if not labels.isdisjoint(("Right", "R"))}
        for root, members in inside.items():
            followed = {right[member] for member in members if member in right}
            if followed and root not in indexed:
                roots[TWO_CHILDREN if followed & members else ONE_CHILD] += 1
    return roots.most_common(1)[0][0] if roots else UNDECIDED, roots
