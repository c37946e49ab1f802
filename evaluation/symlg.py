"""Symbol layout trees ("symLG"): the graphs the CROHME scorer compares.

A symbol is an object with a label and a *path*: "O" for the root, then one word for every relation from
the root to it (R for Right; Sub, Sup, Above, Below, Inside in full). The path is the symbol's identity in
the evaluation; object ids carry no meaning. Two symbols may share a path (the scorer then merges them).

`Builder` turns rows, scripts, fractions and roots into such a graph by the rules of the official
conversion (MathML -> mml2lg.pl -> update_nodeTags.py), the odd ones included.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from evaluation import InputError
from evaluation.commands import LABELS

# The paths of a row of n symbols hold n * n / 2 letters. The longest caption of CROHME has 204 tokens.
MAX_SYMBOLS = 10_000

RELATIONS = {"Right": "R", "Sub": "Sub", "Sup": "Sup", "Above": "Above", "Below": "Below", "Inside": "Inside"}


class Unconverted(ValueError):
    """The expression has no symLG; the message is the reason."""


class Object(NamedTuple):
    id: str
    label: str
    path: str


class Relation(NamedTuple):
    parent: str
    child: str
    label: str


class SymLG(NamedTuple):
    objects: tuple[Object, ...]
    relations: tuple[Relation, ...]

    def nodes(self) -> dict[str, set[str]]:
        """Path -> labels of the symbols there."""
        nodes: dict[str, set[str]] = {}
        for item in self.objects:
            nodes.setdefault(item.path, set()).add(item.label)
        return nodes

    def edges(self) -> dict[tuple[str, str], set[str]]:
        """(parent path, child path) -> relations between them."""
        path = {item.id: item.path for item in self.objects}
        edges: dict[tuple[str, str], set[str]] = {}
        for parent, child, label in self.relations:
            if path[parent] != path[child]:
                edges.setdefault((path[parent], path[child]), set()).add(label)
        return edges

    def content(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """What two symLGs must share to be the same: ids and the order of lines left out."""
        path = {item.id: item.path for item in self.objects}
        return (
            sorted((item.path, item.label) for item in self.objects),
            sorted((path[parent], path[child], label) for parent, child, label in self.relations),
        )


EMPTY_GRAPH = SymLG((), ())
# Stands for a ground truth that has no symLG: wrong for every prediction, also with three errors allowed.
UNREADABLE = SymLG(tuple(Object(f"?_{k}", "UNCONVERTED", f"?{k}") for k in range(4)), ())


def from_latex(latex: str | Sequence[str]) -> SymLG:
    """The symLG of tokenised CROHME LaTeX, as pandoc 1.19 reads it. Raises Unconverted with the reason."""
    from evaluation import latex as reader  # latex.py builds with this module

    return reader.convert(latex if isinstance(latex, str) else " ".join(latex))


def read(text: str, name: str = "symLG") -> SymLG:
    """Parse the .lg text format (O, R and EO lines; N lines as one-symbol objects). Raises InputError."""
    objects: dict[str, Object] = {}
    relations: list[Relation] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        kind, count = fields[0], len(fields)
        if kind == "O" and count == 5:
            objects[fields[1]] = Object(fields[1], fields[2], fields[4])
        elif kind == "N" and count in (3, 4):
            objects[f"N_{number}"] = Object(f"N_{number}", fields[2], fields[1])
        elif kind in ("R", "EO") and count == 5:
            relations.append(Relation(*fields[1:4]))
        elif kind == "O" and count > 5:
            raise InputError(f"{name}, line {number}: object of several primitives; run lg2symlg on it first")
        else:
            raise InputError(f"{name}, line {number}: not a symLG line: {line.strip()[:60]!r}")
    # A few ground truths have relations of objects they do not define; LgEval ignores those, so must we.
    known = tuple(relation for relation in relations if relation.parent in objects and relation.child in objects)
    return SymLG(tuple(objects.values()), known)


def with_paths(text: str, name: str = "label graph") -> str:
    """A label graph over any primitives as symLG: O lines get the path their relations give (lg2symlg)."""
    parents: dict[str, tuple[str, str]] = {}
    lines = text.splitlines()
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if fields[0] in ("R", "EO") and len(fields) == 5:
            _, parent, child, relation, _ = fields
            if child not in parents or parents[child][1] == "Inside":
                parents[child] = (parent, relation)
    if len(parents) > MAX_SYMBOLS:
        raise InputError(f"{name}: more than {MAX_SYMBOLS} relations")
    out = []
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if fields[0] == "O" and len(fields) >= 4:
            words, at = [], fields[1]
            while at in parents:
                at, relation = parents[at]
                words.append(RELATIONS.get(relation, relation))
                if len(words) > len(parents):
                    raise InputError(f"{name}: the relations of object {fields[1]!r} run in a circle")
            line = ", ".join([*fields[:4], "O" + "".join(reversed(words))])
        out.append(line)
    return "\n".join(out) + "\n"


def write(graph: SymLG, name: str) -> str:
    """The official text of a symLG; `name` is the id in its first line."""
    lines = [f"# IUD, {name}", f"# Objects({len(graph.objects)}):"]
    lines += [f"O, {item.id}, {item.label}, 1.0, {item.path}" for item in graph.objects]
    lines += ["", "# Relations from SRT:"]
    lines += [f"R, {parent}, {child}, {label}, 1.0" for parent, child, label in sorted(graph.relations)]
    return "\n".join(lines) + "\n"


# --- from expressions to graphs ---------------------------------------------------------------------------


class Item(NamedTuple):
    """One member of a row: its leftmost symbol, and the symbol that scripts and the next item hang on."""

    first: int | None
    main: int | None


class Row:
    """Members of a row, nested rows flattened. Empty groups vanish, but one at the end is remembered:
    a script put on the row then starts a member of its own, with nothing to hang on."""

    __slots__ = ("ends_empty", "items")

    def __init__(self, parts: list["Item | Row"]) -> None:
        self.items: list[Item] = []
        self.ends_empty = False
        for part in parts:
            if isinstance(part, Item):
                self.items.append(part)
                self.ends_empty = False
            elif part.items:
                self.items = self.items + part.items if self.items else part.items
                self.ends_empty = part.ends_empty
            else:
                self.ends_empty = True


Fragment = Item | Row

# Which MathML element gives which relations, from its first child to the following ones.
SCRIPTS = {
    "msub": ("Sub",),
    "msup": ("Sup",),
    "munder": ("Below",),
    "mover": ("Above",),
    "msubsup": ("Sub", "Sup"),
    "munderover": ("Below", "Above"),
}
# On a row these put their script on its last member; the others take the row as one member.
SHIFTED = ("msub", "msup")

_LATIN1 = re.compile(r"[\x00-\xff]*[\x80-\xff][\x00-\xff]*")


class Builder:
    """Collects symbols and relations while an expression is read from the leaves up."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.names: list[str] = []
        self.edges: list[tuple[int, int, str]] = []

    def symbol(self, text: str, bare: bool = False) -> Item:
        """A symbol by the character or name MathML has for it; `bare` ones carry no label in their id."""
        label = LABELS.get(text, text)
        if _LATIN1.fullmatch(label):
            raise Unconverted(f"{label!r} has no label (the official converter crashes on it)")
        label = label.replace(",", "COMMA")
        self.labels.append(label)
        self.names.append("" if bare else label)
        number = len(self.labels) - 1
        return Item(number, number)

    def mark(self) -> tuple[int, int]:
        return len(self.labels), len(self.edges)

    def forget(self, mark: tuple[int, int]) -> None:
        """Drop what was built since `mark`: the content of an element that the conversion leaves out."""
        del self.labels[mark[0] :], self.names[mark[0] :], self.edges[mark[1] :]

    def link(self, parent: int | None, child: int | None, relation: str) -> None:
        if parent is not None and child is not None:
            self.edges.append((parent, child, relation))

    def close(self, part: Fragment) -> Item:
        """Link the members of a row, each to the next symbol, and see the row as one member."""
        if isinstance(part, Item):
            return part
        following = None
        for item in reversed(part.items):
            self.link(item.main, following, "Right")
            if item.first is not None:
                following = item.first
        return Item(following, None if part.ends_empty or not part.items else part.items[-1].main)

    def script(self, tag: str, parts: list[Fragment]) -> Fragment:
        """Sub- and superscripts, limits and accents: `parts` is the base and then what hangs on it."""
        if not parts:
            return Item(None, None)
        base, *rest = parts
        scripts = [self.close(part) for part in rest]
        if isinstance(base, Row) and base.items and tag in SHIFTED and scripts:
            last = Item(None, None) if base.ends_empty else base.items.pop()
            base.items.append(self._hang(tag, last, scripts))
            return base
        return self._hang(tag, self.close(base), scripts)

    def _hang(self, tag: str, base: Item, scripts: list[Item]) -> Item:
        for script, relation in zip(scripts, SCRIPTS[tag], strict=False):
            self.link(base.main, script.first, relation)
        first = next((item.first for item in (base, *scripts) if item.first is not None), None)
        return Item(first, base.main)

    def fraction(self, bar: Item, parts: list[Fragment]) -> Item:
        for part, relation in zip(parts, ("Above", "Below"), strict=False):
            self.link(bar.main, self.close(part).first, relation)
        return bar

    def root(self, sign: Item, parts: list[Fragment], indexed: bool) -> Item:
        """A root with its radicand and, if `indexed`, its index. Without one, a radicand of two members or
        more gets a second Inside relation, to the first symbol of its second member (as the converter
        does)."""
        members = parts[0].items if parts and isinstance(parts[0], Row) else []
        second = members[1].first if len(members) > 1 and not indexed else None
        for part, relation in zip(parts, ("Inside", "Above"), strict=False):
            self.link(sign.main, self.close(part).first, relation)
        self.link(sign.main, second, "Inside")
        return sign

    def graph(self, part: Fragment) -> SymLG:
        """Give every symbol its path. Of two parents the first decides, which is the one by Right (see root)."""
        self.close(part)
        above: list[tuple[int, str] | None] = [None] * len(self.labels)
        for parent, child, relation in self.edges:
            if above[child] is None:
                above[child] = (parent, relation)
        paths = [""] * len(self.labels)
        for number in range(len(paths)):
            chain, at = [], number
            while not paths[at]:
                chain.append(at)
                step = above[at]
                if step is None:
                    paths[at] = "O"
                    break
                at = step[0]
            for at in reversed(chain):
                step = above[at]
                if step is not None:
                    paths[at] = paths[step[0]] + RELATIONS[step[1]]
        ids = [f"{name}_{number}" for number, name in enumerate(self.names, 1)]
        objects = tuple(map(Object._make, zip(ids, self.labels, paths, strict=True)))
        return SymLG(objects, tuple(Relation(ids[a], ids[b], relation) for a, b, relation in self.edges))
