r"""Symbol substitution: at every visit, some symbols of a training expression are written by other hands.

CROHME's 8,834 training expressions are 4,832 formulas, which a network learns by heart and then reads without looking;
of the formulas of a test set it knows 2 in 100. Here a letter becomes another letter, a digit another digit, any other
symbol the same one as somebody else wrote it. The strokes come from the training set itself, have about the same
proportions, and take the place of those that stood there: image and caption keep their sizes.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np

from benchmarks.data.ink import Symbol
from benchmarks.data.samples import Sample

# Tokens that can take one another's place: a small letter in that of a tall one would look like a capital.
LOOK_ALIKES = (
    frozenset("0123456789"),
    frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    frozenset("acemnorsuvwxz") | {r"\alpha", r"\pi", r"\sigma"},
    frozenset("bdfhiklt") | {r"\beta", r"\theta", r"\lambda", r"\Delta"},
    frozenset("gjpqy") | {r"\gamma", r"\mu", r"\phi"},
)
NEVER_SUBSTITUTED = frozenset({r"\frac", r"\sqrt", "-", ".", ","})  # a mere stroke, or drawn around other symbols
PROPORTION_TOLERANCE = 0.25  # by how much the logarithms of width / height of two symbols may differ
MAX_INSTANCES = 400  # instances of a token to choose from: rare symbols come more often than they are written
LINE_THICKNESS = 0.1  # of its length: a symbol no thicker than that is a line, which has no thickness to fit


class Substitution:
    """Writes each symbol of an expression whose ink is known anew with probability `share`."""

    def __init__(self, samples: Iterable[Sample], share: float) -> None:
        self.share = share
        by_token: dict[str, list[Symbol]] = defaultdict(list)
        for sample in samples:
            for symbol in sample.ink.symbols.values() if sample.ink else ():
                if symbol.token not in NEVER_SUBSTITUTED:
                    by_token[symbol.token].append(symbol)
        pools: dict[frozenset[str], list[Symbol]] = defaultdict(list)
        for token, symbols in by_token.items():
            pools[alike(token)] += symbols[:: -(-len(symbols) // MAX_INSTANCES)]
        self.pools = {tokens: sorted(symbols, key=proportion) for tokens, symbols in pools.items()}
        self.proportions = {tokens: [proportion(symbol) for symbol in pool] for tokens, pool in self.pools.items()}

    def __call__(self, sample: Sample, draw: np.random.Generator) -> Sample:
        """The expression with other symbols, its image of the same size; `sample` itself where nothing is rewritten.

        Draws from `draw` alone: the same generator gives the same expression.
        """
        if sample.ink is None:
            return sample
        symbols, others = sample.ink.symbols, dict[int, Symbol]()
        for (place, symbol), chance in zip(symbols.items(), draw.random(len(symbols)), strict=True):
            if chance < self.share and (other := self.other(symbol, draw)):
                others[place] = other
        if not others:
            return sample
        tokens = [others[place].token if place in others else token for place, token in enumerate(sample.tokens)]
        image, (height, width) = sample.ink.canvas.draw((symbols | others).values()), sample.image.shape
        if image.shape != (height, width):  # samples are shrunk when they are loaded
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        return replace(sample, tokens=tuple(tokens), image=image)

    def other(self, symbol: Symbol, draw: np.random.Generator) -> Symbol | None:
        """One to take its place, in its box."""
        tokens = alike(symbol.token)
        if not (proportions := self.proportions.get(tokens)):
            return None
        first = bisect_left(proportions, proportion(symbol) - PROPORTION_TOLERANCE)
        last = bisect_right(proportions, proportion(symbol) + PROPORTION_TOLERANCE)
        return fitted(self.pools[tokens][draw.integers(first, last)], symbol) if first < last else None


def alike(token: str) -> frozenset[str]:
    """The tokens that may take its place."""
    return next((tokens for tokens in LOOK_ALIKES if token in tokens), frozenset([token]))


def proportion(symbol: Symbol) -> float:
    """The logarithm of width / height, both with a twentieth of the longer side added: lines have proportions, too."""
    width, height = symbol.extent + 0.05 * max(*symbol.extent, 1e-9)
    return float(np.log(width / height))


def fitted(symbol: Symbol, place: Symbol) -> Symbol:
    """`symbol`, moved and scaled into the box of `place`."""
    factors = place.extent / np.maximum(symbol.extent, 1e-9)
    thin = symbol.extent < LINE_THICKNESS * symbol.extent.max()
    if thin.any():
        factors[:] = factors[~thin]
    center, target = symbol.low + symbol.extent / 2, place.low + place.extent / 2
    return Symbol(symbol.token, tuple((stroke - center) * factors + target for stroke in symbol.strokes))
