"""MathML as a tree, made by the readers of LaTeX and MathML, and its conversion to symLG by the rules of the official
one, quirks included (process_mml.py, mml2lg.pl, update_nodeTags.py of convert2symLG)."""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from hmerbench.evaluation.symlg.editions import PAPER, Edition
from hmerbench.evaluation.symlg.graph import MAX_SYMBOLS, RELATIONS, Object, Relation, SymLG, Unconverted
from hmerbench.evaluation.symlg.latex_commands import LABELS


class Element(NamedTuple):
    """One element of MathML. A leaf (mi, mo, mn) has a text; all others have children. The text of an mrow says what
    it is if not a group: "fenced" (in brackets) or "text". `place`: as of an Object."""

    tag: str
    text: str = ""
    children: "tuple[Element, ...]" = ()
    place: int = -1


LEAVES = ("mi", "mo", "mn")
OMITTED = ("mspace", "mstyle", "mtext", "mphantom", "menclose")  # convert2symLG drops them with their content
SPACE = Element("mspace")

_UPRIGHT = (r"\mathrm", r"\mathup")  # styles in which a letter stays the character that it is
_PRIMES = {"−": "-", "′": "'", "″": "''", "‴": "'''", "⁗": "''''", "ʹ": "'"}


def row(parts: Sequence[Element]) -> Element:
    """A row of parts; a single part needs none."""
    return parts[0] if len(parts) == 1 else Element("mrow", children=tuple(parts))


def fenced(opening: str, parts: Sequence[Element], closing: str) -> Element:
    """A row in brackets, which does not count as a group."""
    before, after = ((Element("mo", text),) if text else () for text in (opening, closing))
    return Element("mrow", "fenced", (*before, *parts, *after))


def is_group(part: Element) -> bool:
    """Whether an element is { ... } with other than one member."""
    return part.tag == "mrow" and not part.text


def ungrouped(parts: Sequence[Element]) -> Sequence[Element]:
    """The parts, or the members of the only part if that is a group."""
    return parts[0].children if len(parts) == 1 and is_group(parts[0]) else parts


def is_symbol(part: Element) -> bool:
    r"""Whether an element is one symbol or letter; \sin and its like are not."""
    return part.tag == "mi" or (part.tag == "mo" and not (len(part.text) > 1 and part.text[0].isalpha()))


def name_of(part: Element) -> str | None:
    r"""The name that \operatorname { part } has; None if the part is more than a name. Raises Unconverted for bold and
    other letters, which pandoc replaces."""
    names = [_name(member) for member in (part.children if is_group(part) else (part,))]
    return None if None in names else "".join(name or "" for name in names)


def _name(part: Element, styled: bool = False) -> str | None:
    if part.tag == "mstyle" and part.text not in _UPRIGHT:
        raise Unconverted(f"{part.text} in the name of an operator")
    if part.tag == "mstyle":
        names = [_name(member, styled=True) for member in part.children]
        return None if None in names else "".join(name or "" for name in names)
    if part.tag == "mo" and not styled:
        return _PRIMES.get(part.text, part.text) if is_symbol(part) else None
    return part.text if part.tag in LEAVES else None


# --- to symLG -----------------------------------------------------------------------------------------------------


ROWS = ("math", "mrow", "semantics")
TABLES = {"mtable": "*M", "mtr": "*R", "mtd": "*Cell"}
OWN_LABELS = {"mfrac": "-", "msqrt": r"\sqrt", "mroot": r"\sqrt", **TABLES}  # elements that are symbols themselves


class Item(NamedTuple):
    """One member of a row: its leftmost symbol, and the symbol to which scripts and the next item attach."""

    first: int | None
    main: int | None


class Members:
    """Those of a row, nested rows flattened. Empty groups vanish, but one at the end is remembered:
    a script on the row then starts a member of its own, attached to nothing."""

    def __init__(self, parts: list["Item | Members"]) -> None:
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


Fragment = Item | Members

# The converter writes labels into an XML file as they are: one with such a character is the last thing read from it.
_BREAKS = frozenset("&<")

# The relations that each MathML element creates: from its own symbol to its children,
PARTS = {"mfrac": ("Above", "Below"), "msqrt": ("Inside",), "mroot": ("Inside", "Above")}
# or from its first child to the following ones.
SCRIPTS = {
    "msub": ("Sub",),
    "msup": ("Sup",),
    "munder": ("Below",),
    "mover": ("Above",),
    "msubsup": ("Sub", "Sup"),
    "munderover": ("Below", "Above"),
}
# On a row these attach their script to the last member; the others treat the row as one member.
SHIFTED = ("msub", "msup")


class Symbol(NamedTuple):
    """An Object to be, which the converter would give the id `name`_`number`; `number` is its place in the document."""

    label: str
    name: str
    number: int
    place: int


class Builder:
    """Collects symbols and relations while the elements are converted from the leaves up."""

    def __init__(self, edition: Edition) -> None:
        self.edition = edition
        self.symbols: list[Symbol] = []
        self.edges: dict[tuple[int, int], str] = {}
        self.drawn: list[int | None] = []  # fractions and roots, which the converter lists after all other symbols
        self.lost: list[int | None] = []  # from the first label that ends the reading of that list
        self.rows: dict[int | None, list[int]] = {}  # matrix row -> its cells
        self.tables: list[list[list[int]]] = []  # cells of each matrix, row by row

    def symbol(self, text: str, number: int, place: int) -> Item:
        """Add a symbol, given the character or name that MathML has for it."""
        label = LABELS.get(text, text)
        if not label.isascii() and max(label) <= "\xff":
            raise Unconverted(f"{label!r} has no label (the official converter crashes on it)")
        label = label.replace(",", "COMMA")
        item = self.object(label, label, number, place)
        if self.lost or not _BREAKS.isdisjoint(label):
            self.lost.append(item.main)
        return item

    def object(self, label: str, name: str, number: int, place: int = -1) -> Item:
        """Add an object without relations."""
        if len(self.symbols) == MAX_SYMBOLS:  # tokens are counted before, but one may be a number of many digits
            raise Unconverted(f"more than {MAX_SYMBOLS} symbols")
        at = len(self.symbols)
        self.symbols.append(Symbol(label, name, number, place))
        return Item(at, at)

    def build(self, root: Element, number: int) -> Fragment:
        """Convert an element and its descendants, without recursion; `number` is its place in the document."""
        done: list[list[Fragment]] = [[]]
        todo: list[tuple[Element, Item | None, bool]] = [(root, None, False)]
        while todo:
            element, own, finished = todo.pop()
            if element.tag == "mn" and len(element.text) > 1 and self.edition.splits_numbers:
                element = _digits(element.text)
            tag, text, children, place = element
            if finished:
                parts = done.pop()
                done[-1].append(self.element(tag, own, parts))
                continue
            if tag in LEAVES:
                done[-1].append(self.symbol(text, number, place))
                number += 1
                continue
            if tag in OWN_LABELS:
                own = self.object(OWN_LABELS[tag], "", number, place)
                self.drawn += [own.main] if tag in PARTS else []
            number += 1
            done.append([])
            todo.append((element, own, True))
            todo += [(child, None, False) for child in reversed(children) if child.tag not in OMITTED]
        return done[0][0]

    def element(self, tag: str, own: Item | None, parts: list[Fragment]) -> Fragment:
        """Convert an element whose parts are converted; `own` is its object, if it has one."""
        if tag in SCRIPTS:
            return self.script(tag, parts)
        if own is None:
            return parts[0] if len(parts) == 1 else Members(parts)
        if tag in TABLES:
            return self.table(tag, own, parts)
        if tag == "msqrt":
            radicand = Members(parts)
            if len(radicand.items) > 1 and self.edition.second_inside:  # as convert2symLG 1.4 does
                self.link(own.main, radicand.items[1].first, "Inside")
            parts = [radicand]
        return self.hang(own, parts[:2], PARTS[tag])

    def table(self, tag: str, own: Item, parts: list[Fragment]) -> Item:
        """Chain rows by Nrow and the cells of a row by NcellR; a cell has no relation to its content."""
        if tag == "mtd":
            self.close(Members(parts))
            return own
        members = [part.main for part in parts if isinstance(part, Item) and part.main is not None]
        self.chain(members, "Nrow" if tag == "mtable" else "NcellR")
        if tag == "mtr":
            self.rows[own.main] = members
        else:
            self.tables.append([self.rows.get(row, []) for row in members])
        return own

    def columns(self) -> None:
        """Add columns as objects (COL_1, ...), chained by Ncol, and chain the cells of each by NcellC."""
        count = 0
        for rows in self.tables:
            columns = []
            for cells in list(zip_longest(*rows)) or [()]:
                count += 1
                columns.append(self.object("*C", "COL", count).main)
                self.chain(cells, "NcellC")
            self.chain(columns, "Ncol")

    def chain(self, members: Sequence[int | None], relation: str) -> None:
        """Relate each member to the next."""
        for one, other in pairwise(members):
            self.link(one, other, relation)

    def link(self, parent: int | None, child: int | None, relation: str) -> None:
        """Add a relation if both ends are objects."""
        if parent is not None and child is not None:
            self.edges[parent, child] = relation

    def close(self, part: Fragment) -> Item:
        """Link each member of a row to the next symbol, and return the row as one member."""
        if isinstance(part, Item):
            return part
        following = None
        for item in reversed(part.items):
            self.link(item.main, following, "Right")
            if item.first is not None:
                following = item.first
        return Item(following, None if part.ends_empty or not part.items else part.items[-1].main)

    def script(self, tag: str, parts: list[Fragment]) -> Fragment:
        """Attach sub- and superscripts, limits and accents: `parts` is the base, then its scripts."""
        if not parts:
            return Item(None, None)
        base, *scripts = parts
        if isinstance(base, Members) and base.items and tag in SHIFTED and scripts:
            last = Item(None, None) if base.ends_empty else base.items.pop()
            base.items.append(self.hang(last, scripts, SCRIPTS[tag]))
            return base
        return self.hang(self.close(base), scripts, SCRIPTS[tag])

    def hang(self, base: Item, parts: list[Fragment], relations: tuple[str, ...]) -> Item:
        """Relate a symbol to the first symbol of each part; the result starts with the first symbol of them all."""
        members = [self.close(part) for part in parts]
        for member, relation in zip(members, relations, strict=False):
            self.link(base.main, member.first, relation)
        return Item(next((item.first for item in (base, *members) if item.first is not None), None), base.main)

    def graph(self) -> SymLG:
        """Give every symbol its path. Of several parents, in the order of the converter's file (sorted as text), the
        first by a relation other than Inside counts, else the last."""
        self.columns()
        parents: dict[int, list[tuple[int, str]]] = {}
        for (parent, child), relation in self.edges.items():
            parents.setdefault(child, []).append((parent, relation))

        def in_file(step: tuple[int, str]) -> tuple[str, tuple[int, str]]:
            symbol = self.symbols[step[0]]
            return f"{symbol.name}_{symbol.number}]", step

        parent_of: dict[int, tuple[int, str]] = {}
        for child, steps in parents.items():
            steps.sort(key=in_file)
            parent_of[child] = next((step for step in steps if step[1] != "Inside"), steps[-1])
        paths: dict[int, str] = {}
        for number in range(len(self.symbols)):
            chain = [number]
            while chain[-1] in parent_of and chain[-1] not in paths:
                chain.append(parent_of[chain[-1]][0])
            path = paths.setdefault(chain.pop(), "O")
            for at in reversed(chain):
                relation = parent_of[at][1]
                path = paths[at] = path + RELATIONS.get(relation, relation)
        ids = [f"{symbol.name}_{number}" for number, symbol in enumerate(self.symbols, 1)]
        lost = {*self.lost, *self.drawn} if self.lost else set()
        every = enumerate(zip(ids, self.symbols, strict=True))
        objects = (Object(id_, one.label, paths[at], one.place) for at, (id_, one) in every if at not in lost)
        edges = ((a, b, relation) for (a, b), relation in self.edges.items() if not lost & {a, b})
        return SymLG(tuple(objects), tuple(Relation(ids[a], ids[b], relation) for a, b, relation in edges))


def graph_of(root: Element, number: int = 1, edition: Edition = PAPER.edition) -> SymLG:
    """The symLG of an element; `number` is its place among the elements of the formula, as the converter counts."""
    builder = Builder(edition)
    builder.close(builder.build(root, number))
    return builder.graph()


def _digits(text: str) -> Element:
    """A number as nested rows of a digit and the rest (convert2symLG 1.5)."""
    row = Element("mn", text[-1])
    for digit in reversed(text[:-1]):
        row = Element("mrow", children=(Element("mn", digit), row))
    return row
