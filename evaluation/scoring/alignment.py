"""Where a prediction departs from the truth, symbol by symbol: for people to look at, never for a score.

The scorer knows a symbol by its path and does not align, so one symbol too many makes errors of all that follow. Here
two layout trees are aligned at least cost (a symbol read as another, left out or put in costs 1, and so does a
script that hangs on another relation), which tells what a reader would say. Where both graphs have the same paths the
two agree.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple

from evaluation.lgeval.metrics import compare
from evaluation.symlg import SymLG
from evaluation.symlg.latex_commands import BRACKETS, LABELS, SYMBOLS

_PATH = re.compile(r"(.*?)(R|Sub|Sup|Above|Below|Inside)")
SCRIPTS = ("Above", "Below", "Inside", "Sub", "Sup")
SAME_SIDE = {"Above": "Sup", "Sup": "Above", "Below": "Sub", "Sub": "Below"}
MAX_SYMBOLS, MAX_DEPTH = 500, 40  # of a tree; the largest of CROHME has 109 symbols
MAX_CELLS = 100_000  # pairs of symbols that are compared for one expression

Kind = Literal["label", "missing", "extra", "relation"]


class TooLarge(ValueError):
    """No expression that a page should draw; the message is the reason."""


@dataclass
class Tree:
    """The symbols of a graph in reading order (what hangs on a symbol comes before its right neighbour).

    Symbols that share a path are one, as for the scorer. `parents` are indices (-1: the root, or a symbol whose
    parent is not there), `relations` the last word of the path ("" for these).
    """

    labels: list[str]
    parents: list[int]
    relations: list[str]
    paths: list[str]
    children: list[dict[str, int]] = field(repr=False)

    @cached_property
    def sizes(self) -> list[int]:
        """Symbols of each: itself and what hangs on it, without its right neighbours."""
        sizes = [1] * len(self.labels)
        for index in reversed(range(len(sizes))):
            for relation in SCRIPTS:
                if (child := self.children[index].get(relation)) is not None:
                    sizes[index] += sum(sizes[member] for member in self.row(child))
        return sizes

    def row(self, first: int) -> list[int]:
        """A symbol and its right neighbours."""
        members = [first]
        while (following := self.children[members[-1]].get("R")) is not None:
            members.append(following)
        return members


def tree(graph: SymLG) -> Tree:
    """Raises TooLarge for more than MAX_SYMBOLS symbols or MAX_DEPTH scripts in each other."""
    nodes = graph.nodes()
    if len(nodes) > MAX_SYMBOLS:
        raise TooLarge(f"{len(nodes)} symbols, more than the {MAX_SYMBOLS} that are drawn")
    below: dict[str, list[tuple[str, str]]] = {}
    roots = []
    for path in nodes:
        match = _PATH.fullmatch(path)
        if match and match[1] in nodes:
            below.setdefault(match[1], []).append((match[2], path))
        else:
            roots.append(path)
    order = {word: place for place, word in enumerate((*SCRIPTS, "R"))}
    found = Tree([], [], [], [], [])
    stack = [(path, -1, "", 0) for path in sorted(roots, key=len, reverse=True)]
    while stack:
        path, parent, relation, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise TooLarge(f"more than {MAX_DEPTH} scripts in each other")
        index = len(found.labels)
        found.labels.append(" ".join(sorted(nodes[path])))
        found.parents.append(parent)
        found.relations.append(relation)
        found.paths.append(path)
        found.children.append({})
        if parent >= 0:
            found.children[parent][relation] = index
        for word, child in sorted(below.get(path, []), key=lambda item: order[item[0]], reverse=True):
            stack.append((child, index, word, depth + (word != "R")))
    return found


class Difference(NamedTuple):
    """`truth` and `prediction` are indices into the two trees; None where the symbol is in one of them only."""

    kind: Kind
    truth: int | None
    prediction: int | None


def differences(truth: Tree, prediction: Tree) -> list[Difference]:
    """What turns the truth into the prediction, in reading order. Raises TooLarge."""
    if len(truth.labels) * len(prediction.labels) > MAX_CELLS:
        raise TooLarge(f"{len(prediction.labels)} against {len(truth.labels)} symbols are too many to align")
    matches = _Alignment(truth, prediction).run()
    found = [
        Difference("label", t, p)
        for t, p in matches.items()
        if set(truth.labels[t].split()).isdisjoint(prediction.labels[p].split())
    ]
    partner = set(matches.values())
    missing = [t for t in range(len(truth.labels)) if t not in matches]
    extra = [p for p in range(len(prediction.labels)) if p not in partner]
    moved = dict(_moved(truth, prediction, matches, missing, extra))
    everyone = matches | moved
    relations = [(t, p) for t, p in everyone.items() if _hangs_elsewhere(truth, prediction, everyone, t, p)]
    found += [Difference("relation", t, p) for t, p in relations]
    found += [Difference("missing", t, None) for t in missing if t not in moved]
    gone = set(moved.values())
    found += [Difference("extra", None, p) for p in extra if p not in gone]
    backwards = {p: t for t, p in everyone.items()}

    def place(difference: Difference) -> tuple[float, int]:
        if difference.truth is not None:
            return difference.truth, 0
        assert difference.prediction is not None
        before = (backwards[p] for p in range(difference.prediction, -1, -1) if p in backwards)
        return next(before, -1) + 0.5, difference.prediction

    return sorted(found, key=place)


def _moved(
    truth: Tree, prediction: Tree, matches: dict[int, int], missing: list[int], extra: list[int]
) -> Iterator[tuple[int, int]]:
    """Left-out and put-in symbols that are one: the same label on the same parent, in another relation."""
    known = dict(matches)
    for t in missing:
        for p in extra:
            parent = known.get(truth.parents[t])
            if truth.labels[t] == prediction.labels[p] and parent == prediction.parents[p] and p not in known.values():
                known[t] = p
                yield t, p
                break


def _hangs_elsewhere(truth: Tree, prediction: Tree, everyone: dict[int, int], t: int, p: int) -> bool:
    same_parent = everyone.get(truth.parents[t]) == prediction.parents[p] and truth.parents[t] >= 0
    return same_parent and truth.relations[t] != prediction.relations[p]


class _Alignment:
    """Edit distance of rows, whose members cost what their own rows cost; every table is kept for the way back."""

    def __init__(self, truth: Tree, prediction: Tree) -> None:
        self.truth, self.prediction = truth, prediction
        self.tables: dict[tuple[int, int], list[list[int]]] = {}

    def run(self) -> dict[int, int]:
        """Matched symbols: index in the truth -> index in the prediction."""
        matches: dict[int, int] = {}
        rows = list(zip(*(self._roots(tree) for tree in (self.truth, self.prediction)), strict=False))
        while rows:
            t, p = rows.pop()
            for a, b in self._way(t, p):
                matches[a] = b
                rows += self._pairs(a, b)
        return matches

    @staticmethod
    def _roots(tree: Tree) -> list[int]:
        return [index for index, parent in enumerate(tree.parents) if parent < 0]

    def _pairs(self, a: int, b: int) -> list[tuple[int, int]]:
        """The rows of two symbols that belong together: of one relation, then of one side, then what is left."""
        mine = {r: c for r, c in self.truth.children[a].items() if r != "R"}
        other = {r: c for r, c in self.prediction.children[b].items() if r != "R"}
        pairs = []
        for accept in (lambda r, q: r == q, lambda r, q: SAME_SIDE.get(r) == q, lambda r, q: True):
            for r, q in [(r, q) for r in SCRIPTS for q in SCRIPTS if accept(r, q)]:
                if r in mine and q in other:
                    pairs.append((mine.pop(r), other.pop(q)))
        return pairs

    def _cost(self, a: int, b: int) -> int:
        """Of reading symbol `a` as symbol `b`, with all that hangs on them."""
        cost = int(set(self.truth.labels[a].split()).isdisjoint(self.prediction.labels[b].split()))
        below, above = self.truth.children[a], self.prediction.children[b]
        if below or above:
            pairs = self._pairs(a, b)
            for t, p in pairs:
                cost += self._table(t, p)[0][0] + (self.truth.relations[t] != self.prediction.relations[p])
            cost += sum(self._whole(self.truth, c, {t for t, _ in pairs}) for r, c in below.items() if r != "R")
            cost += sum(self._whole(self.prediction, c, {p for _, p in pairs}) for r, c in above.items() if r != "R")
        return cost

    @staticmethod
    def _whole(tree: Tree, first: int, matched: set[int]) -> int:
        return 0 if first in matched else sum(tree.sizes[member] for member in tree.row(first))

    def _table(self, t: int, p: int) -> list[list[int]]:
        """table[i][j]: cost of the row that begins with t, from its i-th symbol on, against p's from its j-th on."""
        if (t, p) in self.tables:
            return self.tables[t, p]
        left, right = self.truth.row(t), self.prediction.row(p)
        line = [0] * (len(right) + 1)
        for j, b in reversed(list(enumerate(right))):
            line[j] = line[j + 1] + self.prediction.sizes[b]
        table = [line]
        for a in reversed(left):
            size, after, line = self.truth.sizes[a], line, [0] * (len(right) + 1)
            line[-1] = after[-1] + size
            for j, b in reversed(list(enumerate(right))):
                line[j] = min(
                    after[j] + size,
                    line[j + 1] + self.prediction.sizes[b],
                    after[j + 1] + self._cost(a, b),
                )
            table.append(line)
        table.reverse()
        self.tables[t, p] = table
        return table

    def _way(self, t: int, p: int) -> Iterator[tuple[int, int]]:
        """Matched symbols of two rows. Of equal ways the one that matches from the left: what follows a symbol
        that was read in another place is then found to have moved."""
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
    """One phrase a difference; symbols are counted from 1 in the truth's reading order. Neighbours that are
    missing or too much make one phrase."""
    return [_phrase(truth, prediction, group) for group in _groups(found)]


def _groups(found: Iterable[Difference]) -> Iterator[list[Difference]]:
    group: list[Difference] = []
    for item in found:
        last = group[-1] if group else None
        follows = last is not None and last.kind == item.kind and item.kind in ("missing", "extra")
        if follows and last is not None and _index(item) != _index(last) + 1:
            follows = False
        if group and not follows:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _index(item: Difference) -> int:
    index = item.truth if item.truth is not None else item.prediction
    assert index is not None
    return index


def _phrase(truth: Tree, prediction: Tree, group: list[Difference]) -> str:
    kind, t, p = group[0]
    if kind == "label" and t is not None and p is not None:
        return f"symbol {t + 1}: {truth.labels[t]} read as {prediction.labels[p]}"
    if kind == "relation" and t is not None and p is not None:
        parent = truth.labels[truth.parents[t]]
        relations = f"{_relation(truth, t)} of {parent} read as {_relation(prediction, p)}"
        return f"symbol {t + 1}: {truth.labels[t]}, {relations}"
    tree = truth if kind == "missing" else prediction
    first, last = _index(group[0]), _index(group[-1])
    names = " ".join(tree.labels[_index(item)] for item in group)
    where = "" if tree.parents[first] < 0 else f" ({_relation(tree, first)} of {tree.labels[tree.parents[first]]})"
    if kind == "extra":
        return f"too much: {names}{where}"
    return f"symbol{'s' * (last > first)} {first + 1}{f'–{last + 1}' * (last > first)} missing: {names}{where}"


def _relation(tree: Tree, index: int) -> str:
    return {"R": "Right", "": "start"}.get(tree.relations[index], tree.relations[index])


def relations_in_words(truth: SymLG, prediction: SymLG, limit: int = 12) -> list[str]:
    """The scorer's relation errors between two graphs of the same paths, at most `limit` of them."""
    nodes = truth.nodes()
    phrases = []
    for parent, child, found, true in compare(prediction, truth).edges:
        ends = f"between {' '.join(sorted(nodes[parent]))} and {' '.join(sorted(nodes[child]))}"
        if found == "_":
            phrases.append(f"relation {true} missing {ends}")
        elif true == "_":
            phrases.append(f"relation {found} too much {ends}")
        else:
            phrases.append(f"relation {found} instead of {true} {ends}")
    return phrases[:limit] + [f"and {len(phrases) - limit} more"] * (len(phrases) > limit)


# --- tokens -------------------------------------------------------------------------------------------------------


def symbols_of(tokens: Sequence[str], graph: SymLG, tree: Tree) -> list[int] | None:
    """For every token the index of its symbol in the tree, -1 for braces, scripts and \\limits.

    The reader makes its objects in the order of `_made`; None where that does not hold for this text.
    """
    expected = list(_labels(tokens))
    written = [place for place in _made(tokens) if expected[place]]
    objects = [item for item in graph.objects if item.label]
    if [item.label for item in objects] != [expected[place] for place in written]:
        return None
    at, found = {path: index for index, path in enumerate(tree.paths)}, [-1] * len(tokens)
    for place, item in zip(written, objects, strict=True):
        found[place] = at[item.path]
    return found


def _made(tokens: Sequence[str]) -> list[int]:
    """The places of the tokens in the order in which their objects are made: a root's index after its radicand."""
    order = list(range(len(tokens)))
    for root in reversed(range(len(tokens) - 1)):
        if tokens[root] == r"\sqrt" and tokens[root + 1] == "[":
            index_end = _closing(tokens, root + 1)
            end = _closing(tokens, index_end) if list(tokens[index_end : index_end + 1]) == ["{"] else index_end + 1
            order[root + 1 : end] = order[index_end:end] + order[root + 1 : index_end]
    return order


def _closing(tokens: Sequence[str], start: int) -> int:
    """The place after what closes the bracket or brace at `start`."""
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
    """The label that each token's symbol has; "" for a token that is no symbol."""
    structure = {"{", "}", "_", "^", r"\limits"}
    roots = 0  # indices of roots that are open
    for before, token in zip_longest(("", *tokens[:-1]), tokens, fillvalue=""):
        if token == "[" and before == r"\sqrt":
            roots += 1
            yield ""
        elif token == "]" and roots:
            roots -= 1
            yield ""
        elif token in structure:
            yield ""
        elif token == r"\frac":
            yield "-"
        elif token == r"\sqrt":
            yield r"\sqrt"
        else:
            text = SYMBOLS.get(token) or BRACKETS.get(token) or token
            yield LABELS.get(text, text).replace(",", "COMMA", 1)
