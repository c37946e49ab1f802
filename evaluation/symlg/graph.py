"""Symbol layout trees ("symLG"): the graphs that the CROHME scorer compares.

A symbol is an object with a label and a *path*: "O" for the root, then one word for every relation from
the root to it (R for Right; Sub, Sup, Above, Below, Inside in full). The path is the symbol's identity in
the evaluation; object ids carry no meaning. Two symbols may share a path (the scorer then merges them).
"""

from typing import NamedTuple

from hmerbench.evaluation import InputError, lines

# The paths of a row of n symbols hold n * n / 2 letters. The longest caption of CROHME has 204 tokens.
MAX_SYMBOLS = 10_000
MAX_CHARACTERS = 20 * MAX_SYMBOLS

RELATIONS = {"Right": "R", "Sub": "Sub", "Sup": "Sup", "Above": "Above", "Below": "Below", "Inside": "Inside"}


class Unconverted(ValueError):
    """The expression has no symLG; the message is the reason, in one line whatever text it quotes."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


def bounded(text: str) -> str:
    """The text. Raises Unconverted for one so long that reading it takes much memory."""
    if len(text) > MAX_CHARACTERS:
        raise Unconverted(f"{len(text)} characters, more than the {MAX_CHARACTERS} that are read")
    return text


class Object(NamedTuple):
    """A symbol: its id in the file, its label, the relations that lead from the root to it, and the place in the LaTeX
    where what makes it begins (-1: not known)."""

    id: str
    label: str
    path: str
    place: int = -1


class Relation(NamedTuple):
    """A relation between two objects by their ids; its label is a key of RELATIONS."""

    parent: str
    child: str
    label: str


class SymLG(NamedTuple):
    """A symbol layout graph; the identity of a symbol is its path."""

    objects: tuple[Object, ...]
    relations: tuple[Relation, ...]

    @property
    def nodes(self) -> dict[str, set[str]]:
        """Path -> labels of the symbols there."""
        nodes: dict[str, set[str]] = {}
        for item in self.objects:
            nodes.setdefault(item.path, set()).add(item.label)
        return nodes

    @property
    def edges(self) -> dict[tuple[str, str], set[str]]:
        """(parent path, child path) -> relations between them."""
        path = {item.id: item.path for item in self.objects}
        edges: dict[tuple[str, str], set[str]] = {}
        for parent, child, label in self.relations:
            if path[parent] != path[child]:
                edges.setdefault((path[parent], path[child]), set()).add(label)
        return edges


EMPTY_GRAPH = SymLG((), ())
# Stands in for a ground truth without a symLG: every prediction has more than three errors against it.
UNREADABLE = SymLG(tuple(Object(f"?_{k}", "UNCONVERTED", f"?{k}") for k in range(4)), ())


def with_paths(text: str, name: str = "label graph") -> str:
    """Turn a label graph over any primitives into a symLG: each O line gets the path that the relations give its object
    (lg2symlg)."""
    rewritten = lines(text)
    rows = [[field.strip() for field in line.split(",")] for line in rewritten]
    parents: dict[str, tuple[str, str]] = {}
    for fields in rows:
        if fields[0] in ("R", "EO") and len(fields) >= 5:
            _, parent, child, relation, *_ = fields
            if child not in parents or parents[child][1] == "Inside":
                parents[child] = (parent, relation)
    if len(parents) > MAX_SYMBOLS:
        raise InputError(f"{name}: more than {MAX_SYMBOLS} relations")
    for place, fields in enumerate(rows):
        if fields[0] == "O" and len(fields) >= 4:
            words, at = [], fields[1]
            while at in parents:
                at, relation = parents[at]
                words.append(RELATIONS.get(relation, relation))
                if len(words) > len(parents):
                    raise InputError(f"{name}: the relations of object {fields[1]!r} form a cycle")
            rewritten[place] = ", ".join([*fields[:4], "O" + "".join(reversed(words))])
    return "\n".join(rewritten) + "\n"


def lg_text(graph: SymLG, name: str) -> str:
    """The official text of a symLG; `name` is the id in its first line."""
    lines = [f"# IUD, {name}", f"# Objects({len(graph.objects)}):"]
    lines += [f"O, {item.id}, {item.label}, 1.0, {item.path}" for item in graph.objects]
    lines += ["", "# Relations from SRT:"]
    lines += [f"R, {parent}, {child}, {label}, 1.0" for parent, child, label in sorted(graph.relations)]
    return "\n".join(lines) + "\n"
