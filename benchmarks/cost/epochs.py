"""The real shapes of a training: every padded batch of its epochs and of its validation, and what they add up to.

What an operator does to a batch is a polynomial in few quantities of its shape, so the cost of a whole epoch is a
polynomial in their sums. The coefficients are found from a dozen shapes and checked on others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from benchmarks.config import Config
from benchmarks.data.batching import TrainingSet, evaluation_batches, padded_steps
from benchmarks.data.samples import Sample


class Shape(NamedTuple):
    """A batch: images, their padded sides in pixels, steps of the longest label (its start included)."""

    b: int
    height: int
    width: int
    steps: int


@dataclass(frozen=True)
class Epoch:
    """All micro-batches of an epoch."""

    shapes: list[Shape]
    images: int
    pixels: int  # of the augmented images
    tokens: int  # of the labels, one direction

    @property
    def padded_pixels(self) -> int:
        return sum(s.b * s.height * s.width for s in self.shapes)

    @property
    def padded_tokens(self) -> int:
        return sum(s.b * (s.steps - 1) for s in self.shapes)


def epoch_of(training: TrainingSet, epoch: int) -> Epoch:
    """The epoch as training goes through it, without touching a pixel."""
    shapes, images, pixels, tokens = [], 0, 0, 0
    by_shape = training.config.training.batching.order == "shape"
    for indices in training.plan(epoch):
        distortions = [training.distortion(epoch, index)[0] for index in indices]
        lengths = [len(training.samples[index].tokens) for index in indices]
        height, width = training.shape([(d.height, d.width) for d in distortions])
        steps = max(lengths) + 1
        if by_shape:
            steps = padded_steps(steps)
        shapes.append(Shape(len(indices), height, width, steps))
        images += len(indices)
        pixels += sum(d.height * d.width for d in distortions)
        tokens += sum(lengths)
    return Epoch(shapes, images, pixels, tokens)


def epochs_of(config: Config, training: TrainingSet) -> list[tuple[int, Epoch]]:
    """(how often, which) of all epochs: those of the curriculum one by one; the others differ by chance, one stands
    for them. The last is a full one."""
    total = config.training.epochs
    short = min(config.training.batching.curriculum, total - 1)
    return [*((1, epoch_of(training, epoch)) for epoch in range(short)), (total - short, epoch_of(training, short))]


def searches_of(config: Config, samples: Iterable[Sample]) -> list[Shape]:
    """The batches of a search; each takes as many steps as its longest label and two (start, end)."""
    shapes = []
    for batch in evaluation_batches(samples, config, config.search.batch_size):
        b, _, height, width = batch.images.shape
        shapes.append(Shape(b, height, width, min(max(map(len, batch.tokens)) + 2, config.search.max_len)))
    return shapes


# ------------------------------------------------------------------------------------------------- polynomials

Basis = Callable[[Shape], list[float]]


def areas(shape: Shape) -> list[int]:
    """Pixels of an image, and of its maps at every halving of the sides, down to a sixteenth."""
    height, width, found = shape.height, shape.width, []
    for _ in range(5):
        found.append(height * width)
        height, width = -(-height // 2), -(-width // 2)
    return found


def encoder_basis(shape: Shape) -> list[float]:
    return [1, shape.b, *(shape.b * area for area in areas(shape))]


def decoder_basis(shape: Shape, stride: int) -> list[float]:
    """Words, cells, and words x cells, of all images."""
    b, t, cells = shape.b, shape.steps, areas(shape)[-1 if stride == 16 else -2]
    return [1, t, t * t, b, b * t, b * t * t, b * cells, b * t * cells, b * t * t * cells]


def search_basis(shape: Shape, stride: int) -> list[float]:
    """A search, whose keys grow with the steps."""
    b, t, cells = shape.b, shape.steps, areas(shape)[-1 if stride == 16 else -2]
    return [1, t, b, b * t, b * cells, b * t * cells, b * t * t, b * t * t * cells]


class Polynomial:
    """Costs [K] of a batch as a polynomial of its shape, fitted to those known. `growing`: no coefficient below 0, for
    costs that are no exact polynomial and are wanted of shapes beyond the known ones."""

    def __init__(self, basis: Basis, known: dict[Shape, np.ndarray], growing: bool = False) -> None:
        self.basis = basis
        table, costs = np.array([basis(shape) for shape in known], float), np.array([*known.values()])
        scale = table.max(axis=0)
        if growing:
            found = np.stack([nnls(table / scale, column)[0] for column in costs.T], axis=1)
        else:
            found = np.linalg.lstsq(table / scale, costs, rcond=None)[0]
        self.coefficients = found / scale[:, None]

    def __call__(self, shapes: Iterable[Shape]) -> np.ndarray:
        """The cost [K] of all shapes together."""
        return np.sum([self.basis(shape) for shape in shapes], axis=0) @ self.coefficients

    def error(self, known: dict[Shape, np.ndarray]) -> float:
        """The largest relative error on shapes that were not fitted."""
        return max(float(np.max(np.abs(self([s]) - costs) / np.maximum(costs, 1))) for s, costs in known.items())


def probes(count: int, sides: tuple[int, int], steps: tuple[int, int], images: tuple[int, int]) -> list[Shape]:
    """Shapes that tell all terms apart, drawn within the limits (the last excluded); odd sides, too."""
    draw = np.random.default_rng(7)
    limits = images, sides, sides, steps
    return [Shape(*(int(draw.integers(*limit)) for limit in limits)) for _ in range(count)]


def spread(shapes: list[Shape], count: int) -> list[Shape]:
    """Some of the shapes, evenly from the smallest to the largest."""
    order = sorted(set(shapes), key=lambda s: (s.b * s.height * s.width, s))
    return [order[i] for i in sorted({(2 * k + 1) * len(order) // (2 * count) for k in range(count)})]
