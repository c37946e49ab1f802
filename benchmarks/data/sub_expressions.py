r"""Sub-expressions: additional, shorter training expressions, cut out of the pen strokes of the training set.

A well-formed part of one line of an expression (`x ^ { 2 } + 1` of `\frac { x ^ { 2 } + 1 } { y }`) becomes a training
expression of its own. Its strokes are rendered at the size at which CROHME's images show an expression, as if nothing
else had been written (Le, Indurkhya and Nakagawa, Pattern Recognition Letters 128: "decomposition"). The cuts
depend on the expression alone, neither on the training seed nor on the other expressions.
"""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from hmerbench.benchmarks.data.expression_tree import parse
from hmerbench.benchmarks.data.ink import INKLESS, Canvas, Ink, Symbol
from hmerbench.benchmarks.data.samples import Sample

GENERATOR = 1  # key of the random draws; a change of what is cut or drawn must also raise config.SCHEMA

SYMBOL_HEIGHT = 28  # px, mean of a CROHME image (median over train; it varies by a fifth)
MAX_ENLARGEMENT = 2.5  # relative to the size in the whole expression

CLOSING = {"(": ")", "[": "]", r"\{": r"\}"}
# No part begins or ends with one of these, as no expression does; but a minus may begin one.
INFIX = frozenset("+-=</>,.!|") | {r"\times", r"\div", r"\pm", r"\leq", r"\geq", r"\neq", r"\rightarrow"}
INFIX |= {r"\in", r"\cdot", r"\exists", r"\forall"}

Span = tuple[int, int]  # token positions [start, stop)


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
    draw, lengths = np.random.default_rng((GENERATOR, zlib.crc32(id_.encode()))), np.diff(spans)[:, 0]
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
