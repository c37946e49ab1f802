"""Where a prediction departs from the truth, symbol by symbol: for people to read, never for a score.

The scorer identifies a symbol by its path and does not align, so one extra symbol makes errors of all that follow.
Here two layout trees are aligned at least cost (1 for a substituted, missing or extra symbol, and for a script attached
by another relation), which finds the differences that a reader would name. Where both graphs have the same paths, the
two methods agree.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, product
from typing import Literal, NamedTuple

from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.lgeval.metrics import compare
from hmerbench.evaluation.symlg import SymLG
from hmerbench.evaluation.symlg.latex_commands import LABELS, SYMBOLS

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
    children: list[dict[str, int]] = field(repr=False)

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
    children: dict[str, list[tuple[str, str]]] = {}
    roots = []
    for path in nodes:
        match = _PATH.fullmatch(path)
        if match and match[1] in nodes:
            children.setdefault(match[1], []).append((match[2], path))
        else:
            roots.append(path)
    order = {word: place for place, word in enumerate((*SCRIPTS, "R"))}
    found = Tree([], [], [], [], [])
    stack = [(path, -1, "", 0) for path in sorted(roots, key=len, reverse=True)]
    while stack:
        path, parent, relation, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise TooLarge(f"more than {MAX_DEPTH} nested scripts")
        index = len(found.labels)
        found.labels.append(" ".join(sorted(nodes[path])))
        found.parents.append(parent)
        found.relations.append(relation)
        found.paths.append(path)
        found.children.append({})
        if parent >= 0:
            found.children[parent][relation] = index
        for word, child in sorted(children.get(path, []), key=lambda item: order[item[0]], reverse=True):
            stack.append((child, index, word, depth + (word != "R")))
    return found


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
    partners = _Alignment(truth, prediction).run()
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


class _Alignment:
    """The edit distance of rows, where substituting symbols costs the distance of their own rows; keeps all tables."""

    def __init__(self, truth: Tree, prediction: Tree) -> None:
        self.truth, self.prediction = self.trees = truth, prediction
        self.tables: dict[tuple[int, int], list[list[int]]] = {}

    def run(self) -> dict[int, int]:
        """Matched symbols: index in the truth -> index in the prediction."""
        matches: dict[int, int] = {}
        roots = ([index for index, parent in enumerate(tree.parents) if parent < 0] for tree in self.trees)
        rows = list(zip(*roots, strict=False))
        while rows:
            for a, b in self._matches(*rows.pop()):
                matches[a] = b
                rows += self._pairs(a, b)
        return matches

    def _pairs(self, a: int, b: int) -> list[tuple[int, int]]:
        """The corresponding rows of two symbols."""
        true, predicted = dict(self.truth.children[a]), dict(self.prediction.children[b])
        return [(true.pop(r), predicted.pop(q)) for r, q in PARTNERS if r in true and q in predicted]

    def _cost(self, a: int, b: int) -> int:
        """The cost of reading symbol `a` as symbol `b`, scripts included: corresponding rows cost their distance, all
        others their symbols."""
        cost = self.truth.sizes[a] - 1 + self.prediction.sizes[b] - 1
        cost += _unlike(self.truth.labels[a], self.prediction.labels[b])
        for t, p in self._pairs(a, b):
            table = self._table(t, p)
            cost += table[0][0] - table[0][-1] - table[-1][0]
            cost += self.truth.relations[t] != self.prediction.relations[p]
        return cost

    def _table(self, t: int, p: int) -> list[list[int]]:
        """table[i][j]: the distance from the row beginning with t, at its i-th symbol, to that of p, at its j-th."""
        if (t, p) in self.tables:
            return self.tables[t, p]
        left, right = self.truth.row(t), self.prediction.row(p)
        table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
        for j in reversed(range(len(right))):
            table[-1][j] = table[-1][j + 1] + self.prediction.sizes[right[j]]
        for i in reversed(range(len(left))):
            line, after, size = table[i], table[i + 1], self.truth.sizes[left[i]]
            line[-1] = after[-1] + size
            for j in reversed(range(len(right))):
                put_in = line[j + 1] + self.prediction.sizes[right[j]]
                line[j] = min(after[j] + size, put_in, after[j + 1] + self._cost(left[i], right[j]))
        self.tables[t, p] = table
        return table

    def _matches(self, t: int, p: int) -> Iterator[tuple[int, int]]:
        """The matched symbols of two rows. Of equal alignments, the one that matches from the left: what follows a
        symbol that was read in another place then counts as moved."""
        table, left, right = self._table(t, p), self.truth.row(t), self.prediction.row(p)
        i, j = 0, 0
        while i < len(left) and j < len(right):
            a, b = left[i], right[j]
            if table[i][j] == table[i + 1][j + 1] + self._cost(a, b):
                yield a, b
                i, j = i + 1, j + 1
            elif table[i][j] == table[i + 1][j] + self.truth.sizes[a]:
                i += 1
            else:
                j += 1


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
    for parent, child, found, true in compare(prediction, truth).edges:
        what = f"{found} instead of {true}"
        if "_" in (found, true):
            what = f"{true} missing" if found == "_" else f"{found} extra"
        ends = f"between {' '.join(sorted(nodes[parent]))} and {' '.join(sorted(nodes[child]))}"
        phrases.append(f"relation {what} {ends}")
    return phrases[:MAX_PHRASES] + [f"and {len(phrases) - MAX_PHRASES} more"] * (len(phrases) > MAX_PHRASES)


# --- tokens -------------------------------------------------------------------------------------------------------


def symbols_of(tokens: Sequence[str], graph: SymLG, tree: Tree) -> list[int] | None:
    """For every token the index of its symbol in the tree, -1 for braces, script marks and \\limits.

    Assumes that the converter creates objects in `_creation_order`; None where that does not hold for this text.
    """
    expected = list(_labels(tokens))
    written = [place for place in _creation_order(tokens) if expected[place]]
    objects = [item for item in graph.objects if item.label]
    if [item.label for item in objects] != [expected[place] for place in written]:
        return None
    index, symbols = {path: index for index, path in enumerate(tree.paths)}, [-1] * len(tokens)
    for place, item in zip(written, objects, strict=True):
        symbols[place] = index[item.path]
    return symbols


def _creation_order(tokens: Sequence[str]) -> list[int]:
    """The places of the tokens in the order in which their objects are created: a root's index after its radicand."""
    order = list(range(len(tokens)))
    for root in reversed(range(len(tokens) - 1)):
        if tokens[root] == r"\sqrt" and tokens[root + 1] == "[":
            index_end = _closing(tokens, root + 1)
            end = _closing(tokens, index_end) if list(tokens[index_end : index_end + 1]) == ["{"] else index_end + 1
            order[root + 1 : end] = order[index_end:end] + order[root + 1 : index_end]
    return order


def _closing(tokens: Sequence[str], start: int) -> int:
    """The place after the partner of the bracket or brace at `start`."""
    open_: list[str] = []
    for place in range(start, len(tokens)):
        token = tokens[place]
        if token == "{" or (token == "[" and tokens[place - 1] == r"\sqrt"):
            open_.append("}" if token == "{" else "]")
        elif open_ and token == open_[-1]:
            open_.pop()
            if not open_:
                return place + 1
    return len(tokens)


def _labels(tokens: Sequence[str]) -> Iterator[str]:
    """The label of each token's symbol; "" for a token that is not a symbol."""
    open_indices, previous = 0, ""  # an index is the [ ... ] of a root
    for token in tokens:
        opens, closes = token == "[" and previous == r"\sqrt", token == "]" and open_indices > 0
        open_indices += opens - closes
        if opens or closes or token in ("{", "}", "_", "^", r"\limits"):
            yield ""
        elif token == r"\frac":
            yield "-"
        else:
            text = SYMBOLS.get(token, token)
            yield LABELS.get(text, text).replace(",", "COMMA")
        previous = token
