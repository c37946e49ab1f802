r"""Symbol substitution: in every epoch, some symbols of a training expression are replaced by others' handwriting.

CROHME's training expressions are only 4,832 formulas, which a network memorizes and then reads without looking;
of a test set's formulas it knows 2 in 100. Here a letter becomes another letter, a digit another digit, and any other
symbol the same symbol by another writer. The strokes come from the training set itself, have similar proportions and
are fitted into the box of the symbol they replace: image and caption keep their sizes.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np

from hmerbench.benchmarks.data.ink import Symbol
from hmerbench.benchmarks.data.samples import Sample

# Tokens that can replace one another, grouped by height: a small letter in place of a tall one looks like a capital.
INTERCHANGEABLE = (
    frozenset("0123456789"),
    frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    frozenset("acemnorsuvwxz") | {r"\alpha", r"\pi", r"\sigma"},
    frozenset("bdfhiklt") | {r"\beta", r"\theta", r"\lambda", r"\Delta"},
    frozenset("gjpqy") | {r"\gamma", r"\mu", r"\phi"},
)
NEVER_SUBSTITUTED = frozenset({r"\frac", r"\sqrt", "-", ".", ","})  # mere strokes, or drawn around other symbols
PROPORTION_TOLERANCE = 0.25  # largest difference of log(width / height)
MAX_INSTANCES = 400  # of a token to choose from, so that rare symbols become more frequent
LINE_THICKNESS = 0.1  # of its length: a symbol thinner than that is a line, whose thickness is not fitted


class Substitution:
    """Replaces each symbol of an expression with known ink with probability `share`."""

    def __init__(self, samples: Iterable[Sample], share: float) -> None:
        self.share = share
        by_token: dict[str, list[Symbol]] = defaultdict(list)
        for sample in samples:
            for symbol in sample.ink.symbols.values() if sample.ink else ():
                if symbol.token not in NEVER_SUBSTITUTED:
                    by_token[symbol.token].append(symbol)
        pools: dict[frozenset[str], list[Symbol]] = defaultdict(list)
        for token, symbols in by_token.items():
            pools[replacements(token)] += symbols[:: -(-len(symbols) // MAX_INSTANCES)]
        self.pools = {tokens: sorted(symbols, key=proportion) for tokens, symbols in pools.items()}
        self.proportions = {tokens: [proportion(symbol) for symbol in pool] for tokens, pool in self.pools.items()}

    def __call__(self, sample: Sample, draw: np.random.Generator) -> Sample:
        """The expression with other symbols, and an image of the same size; `sample` itself if nothing is replaced.

        All random numbers come from `draw`: the same generator gives the same expression.
        """
        if sample.ink is None:
            return sample
        symbols, drawn = sample.ink.symbols, dict[int, Symbol]()
        for (place, symbol), chance in zip(symbols.items(), draw.random(len(symbols)), strict=True):
            if chance < self.share and (replacement := self._replacement(symbol, draw)):
                drawn[place] = replacement
        if not drawn:
            return sample
        tokens = [drawn[place].token if place in drawn else token for place, token in enumerate(sample.tokens)]
        image, (height, width) = sample.ink.canvas.draw((symbols | drawn).values()), sample.image.shape
        if image.shape != (height, width):  # it was shrunk when it was loaded
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        return replace(sample, tokens=tuple(tokens), image=image)

    def _replacement(self, symbol: Symbol, draw: np.random.Generator) -> Symbol | None:
        """A symbol of similar proportions, fitted into the box of `symbol`."""
        tokens = replacements(symbol.token)
        if not (proportions := self.proportions.get(tokens)):
            return None
        first = bisect_left(proportions, proportion(symbol) - PROPORTION_TOLERANCE)
        last = bisect_right(proportions, proportion(symbol) + PROPORTION_TOLERANCE)
        return fitted(self.pools[tokens][draw.integers(first, last)], symbol) if first < last else None


def replacements(token: str) -> frozenset[str]:
    """The tokens that may replace `token`, itself included."""
    return next((tokens for tokens in INTERCHANGEABLE if token in tokens), frozenset([token]))


def proportion(symbol: Symbol) -> float:
    """log(width / height), each side plus a twentieth of the longer one, so that it is finite for lines."""
    width, height = symbol.extent + 0.05 * max(*symbol.extent, 1e-9)
    return float(np.log(width / height))


def fitted(symbol: Symbol, place: Symbol) -> Symbol:
    """`symbol`, moved and scaled into the bounding box of `place`."""
    factors = place.extent / np.maximum(symbol.extent, 1e-9)
    thin = symbol.extent < LINE_THICKNESS * symbol.extent.max()
    if thin.any():
        factors[:] = factors[~thin]
    center, target = symbol.low + symbol.extent / 2, place.low + place.extent / 2
    return Symbol(symbol.token, tuple((stroke - center) * factors + target for stroke in symbol.strokes))
