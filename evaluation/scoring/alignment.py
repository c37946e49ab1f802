"""Where a prediction departs from the truth, symbol by symbol: for people to read, never for a score.

The scorer identifies a symbol by its path and does not align, so one extra symbol makes errors of all that follow.
Here two layout trees are aligned at least cost (1 for a substituted, missing or extra symbol, and for a script attached
by another relation), which finds the differences that a reader would name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby, product
from typing import Literal, NamedTuple

from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.lgeval.metrics import compare_graphs
from hmerbench.evaluation.symlg import SymLG

_PATH = re.compile(r"(.*?)(R|Sub|Sup|Above|Below|Inside)")
SCRIPTS = ("Above", "Below", "Inside", "Sub", "Sup")
_SIDES = {"Above": "top", "Sup": "top", "Below": "bottom", "Sub": "bottom", "Inside": "within"}
# Which rows of two symbols correspond: those of one relation, then those of one side, then the rest.
PARTNERS = sorted(product(SCRIPTS, repeat=2), key=lambda pair: (pair[0] != pair[1], _SIDES[pair[0]] != _SIDES[pair[1]]))
MAX_SYMBOLS, MAX_DEPTH = 500, 40  # of a tree; the largest of CROHME has 109 symbols
MAX_CELLS = 100_000  # pairs of symbols to compare for one expression
MAX_PHRASES = 12  # relation errors told of one expression


class TooLarge(ValueError):
    """The expression is too large to draw or to align; the message is the reason."""


@dataclass
class Tree:
    """The symbols of a graph in reading order (a symbol's scripts come before its right neighbor).

    Symbols that share a path are one, as for the scorer. `parents` holds indices (-1: the root, or a symbol whose
    parent is missing), `relations` the last word of each path ("" where there is no parent).
    """

    labels: list[str]
    parents: list[int]
    relations: list[str]
    paths: list[str]
    children: list[dict[str, int]]

    @cached_property
    def sizes(self) -> list[int]:
        """The size of each subtree: a symbol and its scripts, without its right neighbors."""
        sizes = [1] * len(self.labels)
        for index in reversed(range(len(sizes))):
            for relation in SCRIPTS:
                if (child := self.children[index].get(relation)) is not None:
                    sizes[index] += sum(sizes[member] for member in self.row(child))
        return sizes

    def row(self, first: int) -> list[int]:
        """A symbol and its right neighbors."""
        members = [first]
        while (following := self.children[members[-1]].get("R")) is not None:
            members.append(following)
        return members


def tree(graph: Graph) -> Tree:
    """The layout tree of a graph. Raises TooLarge for more than MAX_SYMBOLS symbols or MAX_DEPTH nested scripts."""
    nodes = graph.nodes
    if len(nodes) > MAX_SYMBOLS:
        raise TooLarge(f"{len(nodes)} symbols, more than the {MAX_SYMBOLS} that are drawn")
    order = {word: rank for rank, word in enumerate((*SCRIPTS, "R"))}
    steps: dict[str, tuple[str, str]] = {}  # path -> that of its parent, and the relation
    places: dict[str, tuple[int, ...]] = {}  # path -> what puts it into reading order: its root, then its relations
    for number, path in enumerate(sorted(nodes, key=len, reverse=True)[::-1]):  # parents first
        match = _PATH.fullmatch(path)
        steps[path] = (match[1], match[2]) if match and match[1] in nodes else ("", "")
        parent, relation = steps[path]
        places[path] = (*places[parent], order[relation]) if relation else (number,)
        if sum(rank != order["R"] for rank in places[path][1:]) > MAX_DEPTH:
            raise TooLarge(f"more than {MAX_DEPTH} nested scripts")
    paths = sorted(places, key=places.__getitem__)
    index = {path: number for number, path in enumerate(paths)}
    parents, relations = ([index.get(steps[path][0], -1) for path in paths], [steps[path][1] for path in paths])
    children: list[dict[str, int]] = [{} for _ in paths]
    for number, (parent, relation) in enumerate(zip(parents, relations, strict=True)):
        if relation:
            children[parent][relation] = number
    return Tree([" ".join(sorted(nodes[path])) for path in paths], parents, relations, paths, children)


class Difference(NamedTuple):
    """`truth` and `prediction` are indices into the two trees; None where only the other tree has the symbol."""

    kind: Literal["label", "missing", "extra", "relation"]
    truth: int | None
    prediction: int | None

    @property
    def index(self) -> int:
        """The index in the truth; for an extra symbol, the index in the prediction."""
        index = self.prediction if self.truth is None else self.truth
        assert index is not None
        return index


def differences(truth: Tree, prediction: Tree) -> list[Difference]:
    """The edits that turn the truth into the prediction, in reading order. Raises TooLarge."""
    if len(truth.labels) * len(prediction.labels) > MAX_CELLS:
        raise TooLarge(f"{len(prediction.labels)} against {len(truth.labels)} symbols are too many to align")
    partners = _partners(truth, prediction)
    found = [Difference("label", t, p) for t, p in partners.items() if _unlike(truth.labels[t], prediction.labels[p])]
    inverse = {p: t for t, p in partners.items()}
    missing = [t for t in range(len(truth.labels)) if t not in partners]
    extra = [p for p in range(len(prediction.labels)) if p not in inverse]
    for t, p in product(missing, extra):  # the same label on the same parent: moved to another relation
        same_parent = partners.get(truth.parents[t]) == prediction.parents[p]
        if t not in partners and p not in inverse and same_parent and truth.labels[t] == prediction.labels[p]:
            partners[t], inverse[p] = p, t
    for t, p in partners.items():
        same_parent = partners.get(truth.parents[t]) == prediction.parents[p]
        if same_parent and truth.relations[t] != prediction.relations[p]:
            found.append(Difference("relation", t, p))
    found += [Difference("missing", t, None) for t in missing if t not in partners]
    found += [Difference("extra", None, p) for p in extra if p not in inverse]

    def place(difference: Difference) -> tuple[float, int]:
        if difference.truth is not None:
            return difference.truth, 0
        before = (inverse[p] for p in range(difference.index, -1, -1) if p in inverse)
        return next(before, -1) + 0.5, difference.index

    return sorted(found, key=place)


def _unlike(one: str, other: str) -> bool:
    """Whether two symbols have no label in common."""
    return set(one.split()).isdisjoint(other.split())


def _partners(truth: Tree, prediction: Tree) -> dict[int, int]:
    """Matched symbols, index in the truth -> index in the prediction, at the least edit distance of rows, where
    substituting symbols costs the distance of their own rows."""

    def rows_of(a: int, b: int) -> list[tuple[int, int]]:
        """The corresponding rows of two symbols."""
        true, predicted = dict(truth.children[a]), dict(prediction.children[b])
        return [(true.pop(r), predicted.pop(q)) for r, q in PARTNERS if r in true and q in predicted]

    def cost(a: int, b: int) -> int:
        """The cost of reading symbol `a` as symbol `b`, scripts included: corresponding rows cost their distance, all
        others their symbols."""
        total = truth.sizes[a] - 1 + prediction.sizes[b] - 1 + _unlike(truth.labels[a], prediction.labels[b])
        for t, p in rows_of(a, b):
            distance = distances(t, p)
            total += distance[0][0] - distance[0][-1] - distance[-1][0]
            total += truth.relations[t] != prediction.relations[p]
        return total

    @cache
    def distances(t: int, p: int) -> list[list[int]]:
        """[i][j]: the distance from the row beginning with t, at its i-th symbol, to that of p, at its j-th."""
        left, right = truth.row(t), prediction.row(p)
        table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
        for j in reversed(range(len(right))):
            table[-1][j] = table[-1][j + 1] + prediction.sizes[right[j]]
        for i in reversed(range(len(left))):
            line, after, size = table[i], table[i + 1], truth.sizes[left[i]]
            line[-1] = after[-1] + size
            for j in reversed(range(len(right))):
                put_in = line[j + 1] + prediction.sizes[right[j]]
                line[j] = min(after[j] + size, put_in, after[j + 1] + cost(left[i], right[j]))
        return table

    partners: dict[int, int] = {}
    roots = ([index for index, parent in enumerate(tree.parents) if parent < 0] for tree in (truth, prediction))
    rows = list(zip(*roots, strict=False))
    while rows:
        t, p = rows.pop()
        table, left, right, i, j = distances(t, p), truth.row(t), prediction.row(p), 0, 0
        # Of equal alignments, the one that matches from the left: what follows a symbol that was read in another place
        # then counts as moved.
        while i < len(left) and j < len(right):
            a, b = left[i], right[j]
            if table[i][j] == table[i + 1][j + 1] + cost(a, b):
                partners[a] = b
                rows += rows_of(a, b)
                i, j = i + 1, j + 1
            elif table[i][j] == table[i + 1][j] + truth.sizes[a]:
                i += 1
            else:
                j += 1
    return partners


# --- in words -----------------------------------------------------------------------------------------------------


def in_words(truth: Tree, prediction: Tree, found: Sequence[Difference]) -> list[str]:
    """One phrase per difference; symbols are counted from 1 in the truth's reading order. Adjacent missing or extra
    symbols share a phrase."""

    def run_key(numbered: tuple[int, Difference]) -> tuple[str, int]:
        place, item = numbered
        return (item.kind, item.index - place) if item.kind in ("missing", "extra") else ("", place)

    return [_phrase(truth, prediction, [item for _, item in group]) for _, group in groupby(enumerate(found), run_key)]


def _phrase(truth: Tree, prediction: Tree, group: list[Difference]) -> str:
    kind, t, p = group[0]
    if t is not None and p is not None:
        if kind == "label":
            return f"symbol {t + 1}: {truth.labels[t]} read as {prediction.labels[p]}"
        relations = f"{_relation(truth, t)} of {truth.labels[truth.parents[t]]} read as {_relation(prediction, p)}"
        return f"symbol {t + 1}: {truth.labels[t]}, {relations}"
    tree = truth if kind == "missing" else prediction
    first, last = group[0].index, group[-1].index
    names = " ".join(tree.labels[item.index] for item in group)
    where = "" if tree.parents[first] < 0 else f" ({_relation(tree, first)} of {tree.labels[tree.parents[first]]})"
    if kind == "extra":
        return f"extra: {names}{where}"
    numbers = f"s {first + 1}–{last + 1}" if last > first else f" {first + 1}"
    return f"symbol{numbers} missing: {names}{where}"


def _relation(tree: Tree, index: int) -> str:
    return {"R": "Right", "": "start"}.get(tree.relations[index], tree.relations[index])


def relations_in_words(truth: Graph, prediction: Graph) -> list[str]:
    """The scorer's relation errors between two graphs of the same paths, at most MAX_PHRASES of them."""
    nodes = truth.nodes
    phrases = []
    for parent, child, found, true in compare_graphs(prediction, truth).edges:
        what = f"{found} instead of {true}"
        if "_" in (found, true):
            what = f"{true} missing" if found == "_" else f"{found} extra"
        ends = f"between {' '.join(sorted(nodes[parent]))} and {' '.join(sorted(nodes[child]))}"
        phrases.append(f"relation {what} {ends}")
    return phrases[:MAX_PHRASES] + [f"and {len(phrases) - MAX_PHRASES} more"] * (len(phrases) > MAX_PHRASES)


# --- tokens -------------------------------------------------------------------------------------------------------


def symbols_of(latex: str, graph: SymLG, tree: Tree) -> list[int]:
    """For every part between blanks the index in the tree of the symbol that it begins with; -1 for braces, script
    marks and other parts that begin with none."""
    index = {path: number for number, path in enumerate(tree.paths)}
    made = {item.place: index[item.path] for item in graph.objects}
    return [made.get(part.start(), -1) for part in re.finditer(r"\S+", latex)]
