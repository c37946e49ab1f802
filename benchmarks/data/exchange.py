r"""Exchange: new training expressions, in which a part of one stands in the same role in another.

CROHME's training expressions are only 4,832 formulas, and few have scripts inside scripts. Here an argument or a
script of one expression is replaced by what stands in that role in another, drawn with its own strokes at the size of
the old one. The rest makes room as a writer would have: what follows on the line moves, fraction bars and roots grow.
The choice depends on the training expressions alone, not on the training seed.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hmerbench.benchmarks.data.expression_tree import Line, Node, parse
from hmerbench.benchmarks.data.ink import Canvas, Ink, Stroke, Symbol, Symbols, extent
from hmerbench.benchmarks.data.samples import Sample

GENERATOR = 2  # key of the random draws; a change of what is exchanged or drawn must also raise config.SCHEMA
TRIES = 8  # to find a part that differs from the one it replaces
MAX_TOKENS = 20  # of a part that is put into another expression
TALLER = 3.0  # a part that would be more than so many times taller than the one it replaces is drawn smaller

Part = tuple[Sample, Line]


def exchanged(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` expressions made of each sample with known ink, which take turns in training; longer parts are
    more likely to be put in."""
    trees = [parse(sample.tokens) if sample.ink else None for sample in samples]
    donors: dict[str, list[Part]] = defaultdict(list)
    for sample, tree in zip(samples, trees, strict=True):
        for line in _replaceable(tree):
            if line.stop - line.start <= MAX_TOKENS:
                donors[line.role].append((sample, line))
    ends = {role: np.cumsum([line.stop - line.start for _, line in parts]) for role, parts in donors.items()}
    all_made = []
    for sample, tree in zip(samples, trees, strict=True):
        if tree and (places := [place for place in _replaceable(tree) if place.role in ends]):
            draw = np.random.default_rng((GENERATOR, zlib.crc32(sample.id.encode())))
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
            taller = max(high[1] - low[1] - (old_high[1] - old_low[1]), 0.0)
            self._raise(node.start, taller)
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
