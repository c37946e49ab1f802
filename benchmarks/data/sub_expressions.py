r"""Sub-expressions: more, and shorter, training expressions, cut out of the pen strokes of the training set.

A well-formed part of one line of an expression (`x ^ { 2 } + 1` of `\frac { x ^ { 2 } + 1 } { y }`) becomes a training
expression of its own. Its strokes are drawn again in the size in which CROHME's images show an expression, as if the
part had been all that was written (Le, Indurkhya and Nakagawa, Pattern Recognition Letters 128, 2019: "decomposition").
What is cut depends on the expression alone, not on the seed of a training nor on the other expressions.
"""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from benchmarks.data.ink import INKLESS, Canvas, Ink, Symbol
from benchmarks.data.samples import Sample

GENERATOR = 1  # key of its draws; whoever changes what is cut or drawn raises config.SCHEMA, too: another run

SYMBOL_HEIGHT = 28  # px, the mean of an image of CROHME (median over train; it varies by a fifth)
ENLARGED = 2.5  # times the size in the whole expression at most

CLOSING = {"(": ")", "[": "]", r"\{": r"\}"}
# No part begins or ends with one of these, as no expression does; a minus may begin one.
BETWEEN = frozenset("+-=</>,.!|") | {r"\times", r"\div", r"\pm", r"\leq", r"\geq", r"\neq", r"\rightarrow"}
BETWEEN |= {r"\in", r"\cdot", r"\exists", r"\forall"}

Span = tuple[int, int]  # of tokens: from, to before


def sub_expressions(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` parts of each sample whose ink is known, longer ones more often, drawn as images."""
    cut = []
    for sample in samples:
        if not sample.ink or not (spans := parts(sample.tokens)):
            continue
        draw, symbols = np.random.default_rng((GENERATOR, zlib.crc32(sample.id.encode()))), sample.ink.symbols
        lengths = np.array([stop - start for start, stop in spans])
        chosen = draw.choice(len(spans), min(count, len(spans)), replace=False, p=lengths / lengths.sum())
        largest = ENLARGED * SYMBOL_HEIGHT / _mean_height(symbols.values())
        for start, stop in (spans[index] for index in chosen):
            part = {place - start: symbol for place, symbol in symbols.items() if start <= place < stop}
            canvas = Canvas.of(part.values(), min(largest, SYMBOL_HEIGHT / _mean_height(part.values())))
            name, image = f"{sample.id}-{start}-{stop}", canvas.draw(part.values())
            cut.append(Sample(name, sample.tokens[start:stop], image, Ink(part, canvas)))
    return cut


def _mean_height(symbols: Iterable[Symbol]) -> float:
    return max(1e-9, float(np.mean([symbol.extent[1] for symbol in symbols])))


def parts(tokens: Sequence[str]) -> list[Span]:
    """The spans of a caption that are expressions by themselves: of two symbols at least, and less than all."""
    found = set()
    for line in lines(tokens):
        for first in range(len(line)):
            open_brackets: list[str] = []
            for last in range(first, len(line)):
                start, stop = line[first][0], line[last][1]
                token = tokens[line[last][0]]
                if token in CLOSING:
                    open_brackets.append(CLOSING[token])
                elif token in CLOSING.values() and (not open_brackets or open_brackets.pop() != token):
                    break
                minus = tokens[start] == "-" and last > first
                lone = token in BETWEEN or (tokens[start] in BETWEEN and not minus)
                symbols = sum(token not in INKLESS for token in tokens[start:stop])
                if not open_brackets and not lone and symbols > 1 and (start, stop) != (0, len(tokens)):
                    found.add((start, stop))
    return sorted(found)


def lines(tokens: Sequence[str]) -> list[list[Span]]:
    """The lines of a caption (itself, numerators, scripts …), each as the spans of its symbols with all they carry.

    None of a caption that is not well-formed.
    """
    found: list[list[Span]] = []

    def line(place: int, end: str | None) -> int:
        """Reads to the token `end`, or to the end of the caption; returns the place after it."""
        spans: list[Span] = []
        found.append(spans)
        while place < len(tokens) and tokens[place] != end:
            start, place = place, after_symbol(place)
            while place < len(tokens) and tokens[place] in ("^", "_", r"\limits"):
                place = place + 1 if tokens[place] == r"\limits" else after_group(place + 1)
            spans.append((start, place))
        if end is not None and place == len(tokens):
            raise ValueError(f"no {end} closes it")
        return place + 1

    def after_symbol(place: int) -> int:
        if tokens[place] in ("{", "}", "^", "_"):
            raise ValueError("a group or a script of nothing")
        if tokens[place] == r"\frac":
            return after_group(after_group(place + 1))
        if tokens[place] == r"\sqrt":
            index = tokens[place + 1] == "["
            return after_group(line(place + 2, "]") if index else place + 1)
        return place + 1

    def after_group(place: int) -> int:
        return line(place + 1, "}") if tokens[place] == "{" else place + 1

    try:
        line(0, None)
    except (ValueError, IndexError, RecursionError):
        return []
    return found
