"""Random augmentation of training images: the authors' scaling, affine maps, stroke width and elastic displacements;
and substitution, in which some symbols are replaced by others' handwriting.

A distortion is drawn before any pixel is touched, so that batches can be planned by size.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from hmerbench.benchmarks.config import Augmentation, Data
from hmerbench.benchmarks.data.ink import Symbol
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.sizes import rounded, within_limits

THICKER, THINNER = 1, 2  # changes of the stroke width; 0 is none
Draw = np.random.Generator


def rescale(image: np.ndarray, factor: float) -> np.ndarray:
    """The authors' resize: sides of round-half-even(side * factor), at least 1, sampled bilinearly at 1/factor."""
    if factor == 1:
        return image
    if min(sides(image)) * factor > 0.5:
        return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
    height, width = (rounded(side * factor) for side in sides(image))  # OpenCV would round a side to 0 and fail
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)


def sides(image: np.ndarray) -> tuple[int, int]:
    height, width = image.shape
    return height, width


def small_enough(samples: Iterable[Sample], data: Data) -> list[Sample]:
    """Without images over `data.max_area`."""
    return [sample for sample in samples if sample.image.size <= data.max_area]


def scaled(samples: Iterable[Sample], data: Data, scale: float = 1.0) -> list[Sample]:
    """Drop images over `data.max_area` and scale the rest by `data.scale` (area average), once for all epochs.

    A search at several sizes multiplies that factor by `scale`.
    """
    kept, factor = small_enough(samples, data), data.scale * scale
    return kept if factor == 1 else [replace(sample, image=_rescaled(sample.image, factor)) for sample in kept]


def _rescaled(image: np.ndarray, scale: float) -> np.ndarray:
    factor = scale * within_limits(*sides(image))
    size = rounded(image.shape[1] * factor), rounded(image.shape[0] * factor)
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)


@dataclass(frozen=True)
class Distortion:
    """The augmentation of one image in one epoch."""

    factor: float
    limit: float  # a second scaling, into the authors' range of sides
    matrix: np.ndarray | None  # float [2,2]; None = the authors' plain scaling by `factor`, then by `limit`
    height: int
    width: int

    def apply(self, image: np.ndarray, augmentation: Augmentation | None, draw: Draw) -> np.ndarray:
        """uint8 [h,w] -> uint8 [self.height, self.width]"""
        if self.matrix is None:
            return rescale(rescale(image, self.factor), self.limit)
        assert augmentation is not None
        stroke, coarse = self.effects(augmentation, draw)
        kernel = np.ones((2, 2), np.uint8)
        if stroke == THICKER:
            image = cv2.dilate(image, kernel)
        elif stroke == THINNER:  # blended with the original, so that no stroke vanishes
            image = cv2.addWeighted(cv2.erode(image, kernel), 0.6, image, 0.4, 0)
        (height, width), size = image.shape, (self.width, self.height)
        offset = np.array([self.width / 2, self.height / 2]) - self.matrix @ np.array([width / 2, height / 2])
        forward = np.hstack([self.matrix, offset[:, None]])  # affine map [2,3], center to center
        if coarse is None:
            return cv2.warpAffine(image, forward, size, flags=cv2.INTER_LINEAR)
        inverse = cv2.invertAffineTransform(forward).astype(np.float32)
        field = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
        y, x = np.mgrid[0 : self.height, 0 : self.width].astype(np.float32)
        for axis, (to_x, to_y, shift) in enumerate(inverse):
            field[..., axis] += to_x * x + to_y * y + shift
        return cv2.remap(image, field, None, cv2.INTER_LINEAR)  # type: ignore[call-overload] (its stubs want two maps)

    def effects(self, augmentation: Augmentation, draw: Draw) -> tuple[int, np.ndarray | None]:
        """Draw the effects besides the matrix: the change of the stroke width, and a coarse float32 [h,w,2] grid of
        elastic displacements (x, y) in pixels, or None."""
        stroke, coarse = 0, None
        if augmentation.thickness and draw.random() < augmentation.thickness:
            stroke = THICKER if draw.random() < 0.5 else THINNER
        if pixels := augmentation.elastic:
            shape = self.height // 24 + 2, self.width // 24 + 2, 2
            coarse = draw.uniform(-pixels, pixels, shape).astype(np.float32)
        return stroke, coarse


def distort(augmentation: Augmentation | None, height: int, width: int, draw: Draw, scale: float = 1.0) -> Distortion:
    """Draw a distortion for an image of height x width; `scale` is the factor by which stored images were shrunk."""
    factor = draw.uniform(*augmentation.scale) if augmentation and augmentation.scale else 1.0
    if augmentation is None or augmentation.only_scale:
        h, w = (rounded(side * factor) for side in (height, width))
        limit = within_limits(h, w, scale)
        return Distortion(factor, limit, None, rounded(h * limit), rounded(w * limit))
    wide = np.exp(draw.uniform(-1, 1) * np.log1p(augmentation.stretch))
    angle = np.radians(draw.uniform(-1, 1) * augmentation.rotation)
    slant = draw.uniform(-1, 1) * augmentation.shear
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = factor * turn @ np.array([[wide, slant], [0.0, 1.0 / wide]])
    w, h = np.abs(matrix) @ (width, height)
    limit = within_limits(int(np.ceil(h)), int(np.ceil(w)), scale)
    return Distortion(factor, limit, matrix * limit, *(max(1, int(np.ceil(side * limit))) for side in (h, w)))


# -------------------------------------------------------------------------------------------------------- substitution


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
    """Replaces each symbol of an expression with known ink with probability `share`, in every epoch anew.

    CROHME's training expressions are only 4,832 formulas, which a network memorizes and then reads without looking; of
    a test set's formulas it knows 2 in 100. Here a letter becomes another letter, a digit another digit, and any other
    symbol the same symbol by another writer. The strokes come from the training set itself, have similar proportions
    and are fitted into the box of the symbol they replace: image and caption keep their sizes.
    """

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
