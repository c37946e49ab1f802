"""Formulas as trees, and back, as the program of DenseWAP-TD's authors has it (Zhang et al., ICML 2020).

Every symbol but braces, ^ and _ is a node, numbered from 1 in the order of the caption; \\limits is dropped. A node
hangs on an earlier one, its parent, in one of seven relations. The first one's parent is the root, number 0.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

RELATIONS = ("Above", "Below", "Inside", "Right", "Sub", "Sup", "Start")
STRUCTURE = ("{", "}", "^", "_", "\\limits")  # words that are no nodes
WITH_LIMITS = ("\\sum", "\\int", "\\lim")  # whose scripts stand below and above
ILLEGAL = "illegal"  # stands in LaTeX for what a tree cannot say


class Node(NamedTuple):
    """A symbol, the number of its parent, and its relation to it."""

    symbol: str
    parent: int
    relation: str


class NoTree(ValueError):
    """A caption that has no tree; the message says why."""


def to_tree(caption: Sequence[str]) -> list[Node]:
    """The nodes of a caption's LaTeX tokens. Raises NoTree for captions that the authors' converter does not take."""
    tokens = [token for token in caption if token != "\\limits"]
    if not tokens:
        raise NoTree("no symbols")
    if tokens[0] in STRUCTURE:
        raise NoTree(f"begins with {tokens[0]}")
    if ("\\sqrt", "[") in pairwise(tokens):
        raise NoTree("a root with an index")
    tree = [Node(tokens[0], 0, "Start")]
    groups = list[tuple[int, str]]()  # of those open: the node they hang on, the relation of the next symbol to it
    for i, token in enumerate(tokens[1:], start=1):
        before = tokens[i - 1]
        if before == "}" and not groups:
            raise NoTree("} without {")
        if token == "{":
            _open_group(tokens[:i], tree, groups)
        elif token == "}":
            if before == "}":  # a closed group stays until then: another one of the same node may follow
                groups.pop()
        elif token in ("^", "_"):
            if tokens[i + 1 : i + 2] != ["{"]:
                raise NoTree(f"{token} without a group")
        elif before == "{":
            tree.append(Node(token, *groups[-1]))
        else:
            tree.append(Node(token, groups.pop()[0] if before == "}" else len(tree), "Right"))
    return tree


def _open_group(before: Sequence[str], tree: Sequence[Node], groups: list[tuple[int, str]]) -> None:
    """Add the group that begins after the tokens `before`."""
    is_script = before[-1] in ("^", "_")
    hook = before[-2] if is_script else before[-1]
    base = groups.pop()[0] if hook == "}" else len(tree)
    symbol = tree[base - 1].symbol
    if is_script and hook not in ("{", "\\frac", "\\sqrt"):
        below_above = ("Below", "Above") if symbol in WITH_LIMITS else ("Sub", "Sup")
        relation = below_above[before[-1] == "^"]
    elif not is_script and symbol == "\\frac" and hook != "{":
        relation = "Below" if hook == "}" else "Above"
    elif not is_script and hook == "\\sqrt":
        relation = "Inside"
    else:
        raise NoTree(f"{' '.join(before[-1 - is_script :])} followed by {{")
    groups.append((base, relation))


def to_latex(tree: Sequence[Node]) -> list[str]:
    """LaTeX tokens of the symbols that hang on the first one; ILLEGAL for each of \\frac's parts that are not its own.

    Groups that take the same place come in the order of their numbers. As in the authors' program a relation that says
    no place, and more than one symbol that starts, are left out.
    """
    children = [list[int]() for _ in range(len(tree) + 1)]
    for number, node in enumerate(tree, start=1):
        children[node.parent].append(number)

    def parts(number: int, opening: Sequence[str], *relations: str) -> list[str | int]:
        found = [child for child in children[number] if tree[child - 1].relation in relations]
        return [part for child in found for part in (*opening, child, *["}"] * bool(opening))]

    latex, waiting = list[str](), list[str | int]([1] if tree else [])  # the next one last
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            latex.append(part)
            continue
        symbol = tree[part - 1].symbol
        latex.append(symbol)
        if symbol == "\\frac":
            rest = parts(part, ["{"], "Above") + parts(part, ["{"], "Below") + parts(part, [], "Right")
            rest += [ILLEGAL for child in children[part] if tree[child - 1].relation not in ("Above", "Below", "Right")]
        else:
            rest = parts(part, ["{"], "Inside") + parts(part, ["_", "{"], "Sub", "Below")
            rest += parts(part, ["^", "{"], "Sup", "Above") + parts(part, [], "Right")
        waiting.extend(reversed(rest))
    return latex
