"""From samples to padded batches: size-aware grouping, padding, the plan of an epoch.

Every random number is drawn from a generator keyed by (seed, epoch, sample), so neither the order in which samples
are visited, nor the number of workers, nor a restart changes what a sample looks like.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from benchmarks.config import Config
from benchmarks.data.augmentation import Distortion, Draw, distort, load, rescale, sides
from benchmarks.data.samples import Sample
from benchmarks.data.substitution import Substitution

CELL = 16  # the encoder's largest stride: padded sides are multiples of it
STEPS = 8  # in order `shape`, labels are padded to multiples of it
STRETCH_OF_SHAPES = 1.12  # each width of the grid of padded shapes is this much larger than the one before
COARSE_CELL, COARSE_STRETCH = 32, 1.2  # the same of the coarse grid: heights are multiples of it
COARSE_STEPS = (8, 16, 24, 32, 48, 64, 96, 208)


T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """b images padded right and below to one size, with their labels."""

    ids: list[str]
    images: torch.Tensor  # uint8 [b,1,H,W], ink 255 on 0
    mask: torch.Tensor  # bool [b,H,W], True = padding
    tokens: list[tuple[str, ...]]

    def part(self, rows: slice) -> "Batch":
        """Some of its images, padded as before."""
        return Batch(self.ids[rows], self.images[rows], self.mask[rows], self.tokens[rows])


# ----------------------------------------------------------------------------------------------------- grouping


def area_batches(sizes: Sequence[tuple[int, int]], size: int, pixels: int) -> list[list[int]]:
    """The authors' batches: sort by area, then fill until `size` images or `pixels` (largest image x images)."""
    order = sorted(range(len(sizes)), key=lambda i: sizes[i][0] * sizes[i][1])
    batches: list[list[int]] = []
    current: list[int] = []
    largest = 0
    for index in order:
        area = sizes[index][0] * sizes[index][1]
        largest = max(largest, area)
        if current and (len(current) == size or largest * (len(current) + 1) > pixels):
            batches.append(current)
            current, largest = [], area
        current.append(index)
    return [*batches, current] if current else batches


def padded(height: int, width: int, coarse: bool = False) -> tuple[int, int]:
    """The smallest shape of the grid that holds height x width: a few dozen shapes serve every image.

    The coarse grid is for a GPU. On CROHME's training set (preset fast, 120 epochs, labels counted) the fine one gives
    1,285 shapes, of which the most frequent 384 serve 67 % of all batches; the coarse one 408 and 99.9 %, with 8 % more
    pixels.
    """
    cell, stretch = (COARSE_CELL, COARSE_STRETCH) if coarse else (CELL, STRETCH_OF_SHAPES)
    return -(-height // cell) * cell, next(w for w in _widths(stretch, coarse) if w >= width)


def padded_steps(steps: int, coarse: bool = False) -> int:
    """As `padded`, of the steps of a label."""
    fine = -(-steps // STEPS) * STEPS
    return next((few for few in COARSE_STEPS if few >= steps), fine) if coarse else fine


def _widths(stretch: float, up: bool) -> Iterator[int]:
    width = 2 * CELL
    while True:
        yield width
        cells = width * stretch / CELL
        width = max(width + CELL, (math.ceil(cells) if up else int(cells)) * CELL)


def shape_batches(
    sizes: Sequence[tuple[int, int]],
    lengths: Sequence[int],
    size: int,
    pixels: int,
    draw: Draw,
    coarse: bool = False,
) -> list[list[int]]:
    """Batches whose images share a padded shape; what does not fill a batch moves on to the next larger shape.

    Within a shape, labels of similar length meet (a factor of up to 1.5, drawn again each epoch, blurs the order):
    the decoder pays for the longest label of a batch.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index in np.argsort(np.asarray(lengths) * draw.uniform(1.0, 1.5, len(lengths)), kind="stable"):
        shapes.setdefault(padded(*sizes[index], coarse=coarse), []).append(int(index))
    batches: list[list[int]] = []
    higher: list[tuple[int, int]] = []  # (width, index) left over by the lower rows of the grid
    for height in sorted({h for h, _ in shapes}):
        for width, index in higher:
            shapes.setdefault((height, width), []).append(index)
        higher, waiting = [], list[tuple[int, int]]()
        for width in sorted(w for h, w in shapes if h == height):
            waiting += [(width, index) for index in shapes[height, width]]
            count = max(1, min(size, pixels // (height * width)))
            while len(waiting) >= count:
                batches.append([index for _, index in waiting[:count]])
                waiting = waiting[count:]
        higher = waiting
    rest = [index for _, index in sorted(higher)]
    while rest:
        tall, wide = (max(sizes[i][axis] for i in rest) for axis in (0, 1))
        count = max(1, min(size, pixels // (tall * wide)))
        batches.append(rest[:count])
        rest = rest[count:]
    return batches


def pad(images: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks uint8 [h,w] images into [b,1,H,W] and its mask [b,H,W] (True = padding); `shape` is at least that size."""
    height = max([i.shape[0] for i in images] + ([shape[0]] if shape else []))
    width = max([i.shape[1] for i in images] + ([shape[1]] if shape else []))
    stack = torch.zeros(len(images), 1, height, width, dtype=torch.uint8)
    mask = torch.ones(len(images), height, width, dtype=torch.bool)
    for row, image in enumerate(images):
        h, w = image.shape
        stack[row, 0, :h, :w] = torch.from_numpy(np.ascontiguousarray(image))
        mask[row, :h, :w] = False
    return stack, mask


# ------------------------------------------------------------------------------------------- epochs and evaluation


class TrainingSet:
    """The training batches of any epoch, each a pure function of (config, epoch, position)."""

    def __init__(self, samples: Iterable[Sample], config: Config, substitution: Substitution | None = None):
        self.config, self.substitution = config, substitution
        self.samples = [s for s in load(samples, config.data) if len(s.tokens) <= config.data.max_tokens]
        self.sizes = [sides(s.image) for s in self.samples]
        self.by_length = sorted(range(len(self.samples)), key=lambda i: len(self.samples[i].tokens))

    @property
    def coarse(self) -> bool:
        """Whether images are padded to the coarse grid of shapes."""
        return self.config.training.batching.coarse

    def plan(self, epoch: int) -> list[list[int]]:
        """The epoch's batches in order: sample numbers, padded to whole steps as a distributed sampler does."""
        batching = self.config.training.batching
        learnt = self.by_length[: self._learnt(epoch)]
        if batching.order == "area":
            learnt = sorted(learnt)
            batches = area_batches([self.sizes[i] for i in learnt], batching.size, batching.pixels)
        else:
            draws = (self.distortion(epoch, index)[0] for index in learnt)
            sizes = [(d.height, d.width) for d in draws]
            lengths = [len(self.samples[i].tokens) for i in learnt]
            draw = self._draw(epoch, len(self.samples) + 1)
            batches = shape_batches(sizes, lengths, batching.size, batching.pixels, draw, self.coarse)
        batches = [[learnt[i] for i in batch] for batch in batches]
        order = self._draw(epoch, len(self.samples)).permutation(len(batches))
        order = np.concatenate([order, order[: -len(order) % batching.micro_batches]])
        return [batches[i] for i in order]

    def _learnt(self, epoch: int) -> int:
        """How many expressions, shortest first, the curriculum has reached."""
        share = (epoch + 1) / (self.config.training.batching.curriculum + 1)
        return max(1, round(min(1.0, share) * len(self.samples)))

    def batch(self, epoch: int, indices: Sequence[int]) -> Batch:
        """Augmented and padded."""
        images, chosen = [], []
        for index in indices:
            sample = self.samples[index]
            if self.substitution:  # with a generator of its own: the distortions are the same without it
                sample = self.substitution(sample, np.random.default_rng((self.config.seed, epoch, index, 1)))
            distortion, draw = self.distortion(epoch, index)
            images.append(distortion.apply(sample.image, self.config.augmentation, draw))
            chosen.append(sample)
        shape = self.shape([sides(image) for image in images])
        return Batch([s.id for s in chosen], *pad(images, shape), [s.tokens for s in chosen])

    def shape(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The padded height and width of a batch of images of these sizes."""
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        if self.config.training.batching.order == "area":
            return height, width
        return padded(height, width, self.coarse)

    def distortion(self, epoch: int, index: int) -> tuple[Distortion, Draw]:
        """That of a sample in an epoch, and the generator that its effects are drawn from next."""
        draw = self._draw(epoch, index)
        return distort(self.config.augmentation, *self.sizes[index], draw, self.config.data.scale), draw

    def _draw(self, epoch: int, index: int) -> Draw:
        return np.random.default_rng((self.config.seed, epoch, index))


class PlansAhead:
    """The plans of epochs; the next one is made in a thread while an epoch is trained."""

    def __init__(self, plan: Callable[[int], list[list[int]]], epochs: int) -> None:
        self.plan, self.epochs = plan, epochs
        self.pool = ThreadPoolExecutor(1)
        self.coming: dict[int, Future[list[list[int]]]] = {}

    def __call__(self, epoch: int) -> list[list[int]]:
        now = self.coming.pop(epoch, None)
        plan = self.plan(epoch) if now is None else now.result()
        if epoch + 1 < self.epochs:
            self.coming = {epoch + 1: self.pool.submit(self.plan, epoch + 1)}
        return plan


def ahead(prepare: Callable[[int, list[int]], T], epoch: int, plan: Sequence[list[int]], workers: int) -> Iterator[T]:
    """The batches of `plan` in order, prepared by `workers` threads a little ahead of their use."""
    if not workers:
        yield from (prepare(epoch, indices) for indices in plan)
        return
    with ThreadPoolExecutor(workers) as pool:
        todo = iter(plan)
        coming = [pool.submit(prepare, epoch, indices) for indices in islice(todo, 4 * workers)]
        try:
            while coming:
                batch = coming.pop(0).result()
                coming += [pool.submit(prepare, epoch, indices) for indices in islice(todo, 1)]
                yield batch
        finally:
            for future in coming:
                future.cancel()


def evaluation_batches(samples: Iterable[Sample], config: Config, size: int, scale: float = 1.0) -> list[Batch]:
    """Un-augmented batches of at most `size` images times `scale`, within the authors' limits, grouped as in training.

    In order `shape` every image is padded to its own shape of the grid and meets only such images, so that what
    is recognized does not depend on its neighbours; in order `area` it does, as in the authors' program.
    """
    kept = [Sample(s.id, s.tokens, rescale(s.image, scale)) for s in load(samples, config.data)]
    images = []
    for sample in kept:
        draw = np.random.default_rng(0)  # nothing is drawn: no augmentation
        distortion = distort(None, *sides(sample.image), draw, config.data.scale)
        images.append(distortion.apply(sample.image, None, draw))
    pixels = config.training.batching.pixels
    if config.training.batching.order == "area":
        groups = [(None, group) for group in area_batches([sides(s.image) for s in kept], size, pixels)]
    else:
        alike: dict[tuple[int, int], list[int]] = {}
        for index, image in enumerate(images):
            alike.setdefault(padded(*sides(image), config.training.batching.coarse), []).append(index)
        groups = []
        for shape, indices in sorted(alike.items()):
            count = max(1, min(size, pixels // (shape[0] * shape[1])))
            groups += [(shape, indices[start : start + count]) for start in range(0, len(indices), count)]
    return [
        Batch(
            [kept[i].id for i in group],
            *pad([images[i] for i in group], shape),
            [kept[i].tokens for i in group],
        )
        for shape, group in groups
    ]
