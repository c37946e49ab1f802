r"""A caption as a tree: lines of symbols, each with its arguments and scripts, which are lines themselves.

`x ^ { 2 } + \sqrt { y }` is a line of three symbols; 2 is the superscript of the first, y the radicand of the third.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ROLES = {"^": "superscript", "_": "subscript"}


@dataclass(frozen=True)
class Line:
    """Symbols side by side. `start` and `stop` are token positions, braces and brackets around the line left out.

    `role` is what the line is to the symbol that it belongs to: numerator, denominator, radicand, index, superscript or
    subscript; empty for the whole caption.
    """

    role: str
    start: int
    stop: int
    symbols: "tuple[Node, ...]"

    def all_lines(self) -> "Iterator[Line]":
        """This line and all within it, in the order in which they begin."""
        yield self
        for symbol in self.symbols:
            for line in symbol.lines:
                yield from line.all_lines()


@dataclass(frozen=True)
class Node:
    """A symbol at token position `start` with its arguments and scripts; `stop` is the position after the last."""

    start: int
    stop: int
    lines: tuple[Line, ...]


def parse(tokens: Sequence[str]) -> Line | None:
    """The tree of a caption; None if it is not well-formed."""

    def read_line(role: str, place: int, end: str | None) -> tuple[Line, int]:
        """A line up to the token `end`, or to the end of the caption, and the position after it."""
        first, symbols = place, list[Node]()
        while place < len(tokens) and tokens[place] != end:
            start, (lines, place) = place, read_symbol(place)
            while place < len(tokens) and tokens[place] in ("^", "_", r"\limits"):
                if tokens[place] == r"\limits":
                    place += 1
                    continue
                script, place = read_group(ROLES[tokens[place]], place + 1)
                lines.append(script)
            symbols.append(Node(start, place, tuple(lines)))
        if end is not None and place == len(tokens):
            raise ValueError(f"missing {end}")
        return Line(role, first, place, tuple(symbols)), place + 1

    def read_symbol(place: int) -> tuple[list[Line], int]:
        """The arguments of the symbol at `place`, and the position after them."""
        if tokens[place] in ("{", "}", "^", "_"):
            raise ValueError(f"{tokens[place]} without a symbol before it")
        arguments, roles = list[Line](), {r"\frac": ("numerator", "denominator"), r"\sqrt": ("radicand",)}
        token, place = tokens[place], place + 1
        if token == r"\sqrt" and tokens[place] == "[":
            index, place = read_line("index", place + 1, "]")
            arguments.append(index)
        for role in roles.get(token, ()):
            argument, place = read_group(role, place)
            arguments.append(argument)
        return arguments, place

    def read_group(role: str, place: int) -> tuple[Line, int]:
        if tokens[place] == "{":
            return read_line(role, place + 1, "}")
        return Line(role, place, place + 1, (Node(place, place + 1, ()),)), place + 1

    try:
        return read_line("", 0, None)[0]
    except (ValueError, IndexError, RecursionError):
        return None
