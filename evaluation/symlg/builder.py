"""Rows, scripts, fractions and roots -> symLG, by the rules of the official conversion, the odd ones included
(MathML -> mml2lg.pl -> update_nodeTags.py)."""

import re
from typing import NamedTuple

from evaluation.symlg.graph import RELATIONS, Object, Relation, SymLG, Unconverted
from evaluation.symlg.latex_commands import LABELS


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
