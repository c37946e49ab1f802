r"""New training expressions, made of the pen strokes of the training set: parts of its expressions, and expressions in
which a part of one stands in the same role in another. And which captions a training has seen that way.

Parts: a well-formed part of one line (`x ^ { 2 } + 1` of `\frac { x ^ { 2 } + 1 } { y }`) becomes an expression of its
own. Its strokes are rendered at the size at which CROHME's images show an expression, as if nothing else had been
written (Le, Indurkhya and Nakagawa, Pattern Recognition Letters 128: "decomposition"). The cuts depend on the
expression alone.

Exchange: CROHME's training expressions are only 4,832 formulas, and few have scripts inside scripts. An argument or a
script of one expression is replaced by what stands in that role in another, drawn with its own strokes at the size of
the old one. The rest makes room as a writer would have: what follows on the line moves, fraction bars and roots grow.
The choice depends on the training expressions alone.

Neither depends on the training seed; a change of what is made or drawn must also raise config.SCHEMA.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.ink import INKLESS, Canvas, Ink, Stroke, Symbol, Symbols, extent
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation.datasets import TRAIN

CUTS, EXCHANGES = 1, 2  # keys of the random draws

SYMBOL_HEIGHT = 28  # px, mean of a CROHME image (median over train; it varies by a fifth)
MAX_ENLARGEMENT = 2.5  # relative to the size in the whole expression

CLOSING = {"(": ")", "[": "]", r"\{": r"\}"}
# No part begins or ends with one of these, as no expression does; but a minus may begin one.
INFIX = frozenset("+-=</>,.!|") | {r"\times", r"\div", r"\pm", r"\leq", r"\geq", r"\neq", r"\rightarrow"}
INFIX |= {r"\in", r"\cdot", r"\exists", r"\forall"}

Span = tuple[int, int]  # token positions [start, stop)
Caption = tuple[str, ...]

# ----------------------------------------------------------------------------------------------- the tree of a caption


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
    r"""The tree of a caption; None if it is not well-formed. `x ^ { 2 } + \sqrt { y }` is a line of three symbols; 2 is
    the superscript of the first, y the radicand of the third."""

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


# --------------------------------------------------------------------------------------------------------------- parts


def sub_expressions(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` parts of each sample with known ink, rendered as images; longer parts are more likely.

    Those of one sample take turns in training.
    """
    made = []
    for sample in samples:
        if not sample.ink or not (spans := cut(sample.id, sample.tokens, count)):
            continue
        symbols = sample.ink.symbols
        max_scale = MAX_ENLARGEMENT * SYMBOL_HEIGHT / _mean_height(symbols.values())
        for number, (start, stop) in enumerate(spans):
            part = {place - start: symbol for place, symbol in symbols.items() if start <= place < stop}
            canvas = Canvas.of(part.values(), min(max_scale, SYMBOL_HEIGHT / _mean_height(part.values())))
            name, image = f"{sample.id}-{start}-{stop}", canvas.draw(part.values())
            made.append(Sample(name, sample.tokens[start:stop], image, Ink(part, canvas), number, len(spans)))
    return made


def cut(id_: str, tokens: Sequence[str], count: int) -> list[Span]:
    """The spans of at most `count` parts of an expression, drawn by its id alone."""
    if not (spans := parts(tokens)):
        return []
    draw, lengths = np.random.default_rng((CUTS, zlib.crc32(id_.encode()))), np.diff(spans)[:, 0]
    chosen = draw.choice(len(spans), min(count, len(spans)), replace=False, p=lengths / lengths.sum())
    return [spans[index] for index in chosen]


def _mean_height(symbols: Iterable[Symbol]) -> float:
    return max(1e-9, float(np.mean([symbol.extent[1] for symbol in symbols])))


def parts(tokens: Sequence[str]) -> list[Span]:
    """Spans of a caption that are expressions by themselves: at least two symbols, but not the whole caption."""
    spans = set()
    tree = parse(tokens)
    for line in (each.symbols for each in tree.all_lines()) if tree else ():
        for first in range(len(line)):
            open_brackets: list[str] = []
            for last in range(first, len(line)):
                start, stop = line[first].start, line[last].stop
                token = tokens[line[last].start]
                if token in CLOSING:
                    open_brackets.append(CLOSING[token])
                elif token in CLOSING.values() and (not open_brackets or open_brackets.pop() != token):
                    break
                minus = tokens[start] == "-" and last > first
                dangling = token in INFIX or (tokens[start] in INFIX and not minus)
                symbols = sum(token not in INKLESS for token in tokens[start:stop])
                if not open_brackets and not dangling and symbols > 1 and (start, stop) != (0, len(tokens)):
                    spans.add((start, stop))
    return sorted(spans)


# ------------------------------------------------------------------------------------------------------------ exchange


TRIES = 8  # to find a part that differs from the one it replaces
MAX_TOKENS = 20  # of a part that is put into another expression
TALLER = 3.0  # a part that would be more than so many times taller than the one it replaces is drawn smaller


def exchanged(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` expressions made of each sample with known ink, which take turns in training; longer parts are
    more likely to be put in."""
    trees = [parse(sample.tokens) if sample.ink else None for sample in samples]
    donors: dict[str, list[tuple[Sample, Line]]] = defaultdict(list)
    for sample, tree in zip(samples, trees, strict=True):
        for line in _replaceable(tree):
            if line.stop - line.start <= MAX_TOKENS:
                donors[line.role].append((sample, line))
    ends = {role: np.cumsum([line.stop - line.start for _, line in parts]) for role, parts in donors.items()}
    all_made = []
    for sample, tree in zip(samples, trees, strict=True):
        if tree and (places := [place for place in _replaceable(tree) if place.role in ends]):
            draw = np.random.default_rng((EXCHANGES, zlib.crc32(sample.id.encode())))
            made = []
            for number in range(count):
                place = places[draw.integers(len(places))]
                for _ in range(TRIES):
                    end = ends[place.role]
                    donor, part = donors[place.role][np.searchsorted(end, draw.integers(end[-1]), side="right")]
                    if donor.tokens[part.start : part.stop] != sample.tokens[place.start : place.stop]:
                        made.append(_exchange(sample, tree, place, donor, part, f"{sample.id}-x{number}"))
                        break
            all_made += [replace(one, number=number, turns=len(made)) for number, one in enumerate(made)]
    return all_made


def _replaceable(tree: Line | None) -> list[Line]:
    return [line for line in tree.all_lines() if line.role and line.symbols] if tree else []


def _exchange(sample: Sample, tree: Line, place: Line, donor: Sample, part: Line, name: str) -> Sample:
    """`sample` with `part` of `donor` in place of its own line `place`."""
    assert sample.ink and donor.ink
    new = {number: donor.ink.symbols[number] for number in range(part.start, part.stop) if number in donor.ink.symbols}
    ink = _Layout(sample.ink.symbols, place, new)
    ink.settle(tree)
    longer = (part.stop - part.start) - (place.stop - place.start)
    symbols = {number if number < place.stop else number + longer: symbol for number, symbol in ink.symbols.items()}
    symbols |= {number - part.start + place.start: symbol for number, symbol in ink.new.items()}
    symbols = dict(sorted(symbols.items()))
    tokens = (*sample.tokens[: place.start], *donor.tokens[part.start : part.stop], *sample.tokens[place.stop :])
    canvas = Canvas.of(symbols.values(), sample.ink.canvas.scale)
    return Sample(name, tokens, canvas.draw(symbols.values()), Ink(symbols, canvas))


class _Layout:
    """The symbols of an expression while one of its lines is replaced; pen units, x to the right, y down."""

    def __init__(self, symbols: Symbols, place: Line, new: Symbols):
        self.place, self.before = place, symbols
        self.symbols = {number: one for number, one in symbols.items() if not place.start <= number < place.stop}
        old = [symbols[number] for number in range(place.start, place.stop) if number in symbols]
        old_height, new_height = (extent(each)[1][1] for each in (old, new.values()))
        factor = _size(old) / _size(new.values())
        factor = min(factor, TALLER * max(old_height, _size(old)) / (new_height * factor) * factor)
        self.new = {number: _mapped(symbol, lambda points: points * factor) for number, symbol in new.items()}

    def settle(self, line: Line) -> None:
        """Bring everything on a line around the replaced one, which is on it or within it, into place again."""
        for number, node in enumerate(line.symbols):
            inner = next((each for each in node.lines if each.start <= self.place.start < each.stop), None)
            if inner:
                if inner is not self.place:
                    self.settle(inner)
                self._fit(node, inner)
                grown = self._box(node.start, node.stop)[1][0] - _corners(self._old(node.start, node.stop))[1][0]
                for later in line.symbols[number + 1 :]:
                    self._move(later.start, later.stop, (grown, 0.0))
                return

    def _fit(self, node: Node, line: Line) -> None:
        """Place a changed argument or script of `node`, and let a fraction's bar or a root's sign grow with it."""
        old_low, old_high = _corners(self._old(line.start, line.stop))
        low, high = self._box(line.start, line.stop)
        upward = line.role in ("numerator", "superscript", "radicand", "index")
        down = old_high[1] - high[1] if upward else old_low[1] - low[1]
        right = old_low[0] - low[0]
        wider = (high[0] - low[0]) - (old_high[0] - old_low[0])
        if line.role in ("numerator", "denominator"):
            other = next(each for each in node.lines if each is not line)
            bar = self.symbols[node.start]
            other_low, other_high = self._box(other.start, other.stop)
            widest = max(old_high[0] - old_low[0], other_high[0] - other_low[0])
            grown = max(high[0] - low[0], other_high[0] - other_low[0]) - widest
            grown = max(grown, -0.5 * bar.extent[0])
            self._stretch(node.start, bar.low[0], grown)
            self._move(other.start, other.stop, (grown / 2, 0.0))
            right += (grown - wider) / 2
        elif line.role == "radicand":
            self._stretch(node.start, old_low[0], wider)
            self._raise(node.start, max(high[1] - low[1] - (old_high[1] - old_low[1]), 0.0))
        self._move(line.start, line.stop, (right, down))

    def _old(self, start: int, stop: int) -> list[Symbol]:
        return [self.before[number] for number in range(start, stop) if number in self.before]

    def _box(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Corners of what stands now at the token positions [start, stop)."""
        inside = start <= self.place.start < stop
        kept = [self.symbols[number] for number in range(start, stop) if number in self.symbols]
        return _corners([*kept, *(self.new.values() if inside else ())])

    def _move(self, start: int, stop: int, shift: tuple[float, float]) -> None:
        for number in [number for number in self.symbols if start <= number < stop]:
            self.symbols[number] = _mapped(self.symbols[number], lambda points: points + shift)
        if start <= self.place.start < stop:
            self.new = {n: _mapped(symbol, lambda points: points + shift) for n, symbol in self.new.items()}

    def _stretch(self, number: int, begin: float, by: float) -> None:
        """Move the right end of a symbol by `by`; what lies left of `begin` stays as it is."""
        symbol = self.symbols[number]
        width = symbol.low[0] + symbol.extent[0] - begin
        if width <= 0:
            return
        factor = max(1 + by / width, 0.2)

        def change(points: Stroke) -> Stroke:
            x = points[:, 0]
            return np.stack([np.where(x > begin, begin + (x - begin) * factor, x), points[:, 1]], axis=1)

        self.symbols[number] = _mapped(symbol, change)

    def _raise(self, number: int, by: float) -> None:
        """Move the upper end of a symbol up by `by`."""
        symbol = self.symbols[number]
        bottom, factor = symbol.low[1] + symbol.extent[1], 1 + by / max(symbol.extent[1], 1e-9)
        self.symbols[number] = _mapped(symbol, lambda points: (points - (0, bottom)) * (1, factor) + (0, bottom))


def _mapped(symbol: Symbol, change: Callable[[Stroke], Stroke]) -> Symbol:
    return Symbol(symbol.token, tuple(change(stroke) for stroke in symbol.strokes))


def _corners(symbols: Iterable[Symbol]) -> tuple[np.ndarray, np.ndarray]:
    low, size = extent(symbols)
    return low, low + size


def _size(symbols: Iterable[Symbol]) -> float:
    """The size of writing: the median over the symbols of the longer side, bars and roots left out."""
    sides = [symbol.extent.max() for symbol in symbols if symbol.token not in (r"\frac", r"\sqrt", "-")]
    return max(1e-9, float(np.median(sides or [symbol.extent.max() for symbol in symbols])))


# -------------------------------------------------------------------------------------------- what a training has seen


def seen(archive: Archive, data: Data, wanted: set[Caption]) -> set[Caption]:
    """Those of the `wanted` captions that a training with these settings has, also as a part of an expression or put
    together from two; formulas that substituted symbols happen to spell are not counted. Held-out ones are, as they
    select the epoch. Raises UserError without pen strokes if they are needed."""
    wanted = {caption for caption in wanted if len(caption) <= data.max_tokens}  # longer ones are left out
    training = {id_: tuple(tokens) for id_, tokens in evenly([*archive.captions(TRAIN).items()], data.limit)}
    found = wanted & {*training.values()}
    if data.sub_expressions:
        found |= _parts(archive, training, data.sub_expressions, wanted - found)
    if data.exchanged:
        made = exchanged(with_ink(archive.samples(TRAIN, data.max_area, data.limit), archive.inkml), data.exchanged)
        found |= wanted & {sample.tokens for sample in made}
    return found


def _parts(archive: Archive, training: dict[str, Caption], count: int, wanted: set[Caption]) -> set[Caption]:
    """The wanted captions among parts; only of expressions that have one are the pen strokes read."""
    of = {id_: {tokens[a:b] for a, b in cut(id_, tokens, count)} & wanted for id_, tokens in training.items()}
    hits = [Sample(id_, training[id_], archive.image(TRAIN, id_)) for id_, found in of.items() if found]
    ink = archive.inkml
    with suppress(UserError):  # none of these has strokes
        hits = with_ink(hits, ink) if hits else []
    return {part for sample in hits if sample.ink for part in of[sample.id]}
