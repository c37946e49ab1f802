"""From samples to padded batches: scale augmentation, size-aware grouping, padding.

Every random number is drawn from a generator keyed by (seed, epoch, sample), so neither the order in which samples
are visited, nor the number of workers, nor a restart changes what a sample looks like.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import cv2
import numpy as np
import torch

from benchmarks.config import Augmentation, Config, Data
from benchmarks.data.crohme import Sample

LOW, HIGH, WIDE = 16, 256, 1024  # the authors' limits of an image's sides, px
cv2.setNumThreads(0)  # an image is too small to share, and OpenCV's threads would fight torch's
CELL = 16  # the encoder's largest stride: padded sides are multiples of it
STEPS = 8  # in order `shape`, labels are padded to multiples of it
STRETCH_OF_SHAPES = 1.12  # each width of the grid of padded shapes is this much larger than the one before

THICKER, THINNER = 1, 2  # strokes

Draw = np.random.Generator
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """b images padded right and below to one size, with their labels."""

    ids: list[str]
    images: torch.Tensor  # uint8 [b,1,H,W], ink 255 on 0
    mask: torch.Tensor  # bool [b,H,W], True = padding
    tokens: list[tuple[str, ...]]


# ---------------------------------------------------------------------------------------------------- scaling


def rescale(image: np.ndarray, factor: float) -> np.ndarray:
    """The authors' resize: sides are round-half-even(side * factor), sampled bilinearly at 1/factor."""
    return image if factor == 1 else cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)


def sides(image: np.ndarray) -> tuple[int, int]:
    """Height and width."""
    height, width = image.shape
    return height, width


def within_limits(height: int, width: int, scale: float = 1.0) -> float:
    """The factor that brings an image into the authors' range of sides (16..256 high, 16..1024 wide, times `scale`)."""
    low, high, wide = LOW * scale, HIGH * scale, WIDE * scale
    if height > high or width > wide:
        return min(high / height, wide / width)
    if height < low or width < low:
        return max(low / height, low / width)
    return 1.0


def load(samples: Iterable[Sample], data: Data) -> list[Sample]:
    """Drops what the protocol skips and shrinks the images by `data.scale` (area average), once for all epochs."""
    kept = [s for s in samples if s.image.size <= data.max_area]
    if data.scale == 1:
        return kept
    return [Sample(s.id, s.tokens, _shrink(s.image, data.scale)) for s in kept]


def _shrink(image: np.ndarray, scale: float) -> np.ndarray:
    factor = scale * within_limits(*sides(image))
    size = max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)


# ----------------------------------------------------------------------------------------------- augmentation


@dataclass(frozen=True)
class Distortion:
    """What happens to one image in one epoch; known before any pixel is touched, so that batches can be planned."""

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
        if stroke:
            kernel = np.ones((2, 2), np.uint8)
            image = cv2.dilate(image, kernel) if stroke == THICKER else _thinner(image, kernel)
        forward, size = self.forward(*sides(image)), (self.width, self.height)
        if coarse is None:
            return cv2.warpAffine(image, forward, size, flags=cv2.INTER_LINEAR)
        return _elastic(image, forward, size, coarse)

    def effects(self, augmentation: Augmentation, draw: Draw) -> tuple[int, np.ndarray | None]:
        """What is drawn beside the matrix: the stroke (0, THICKER, THINNER), and the coarse float32 [h,w,2] grid of an
        elastic displacement (x, y), in pixels."""
        stroke, coarse = 0, None
        if augmentation.thickness and draw.random() < augmentation.thickness:
            stroke = THICKER if draw.random() < 0.5 else THINNER
        if pixels := augmentation.elastic:
            shape = max(2, self.height // 24 + 2), max(2, self.width // 24 + 2), 2
            coarse = draw.uniform(-pixels, pixels, shape).astype(np.float32)
        return stroke, coarse

    def forward(self, height: int, width: int) -> np.ndarray:
        """The affine map [2,3] from an image of height x width to the distorted one, centre to centre."""
        assert self.matrix is not None
        shift = np.array([self.width / 2, self.height / 2]) - self.matrix @ np.array([width / 2, height / 2])
        return np.hstack([self.matrix, shift[:, None]])


def distort(augmentation: Augmentation | None, height: int, width: int, draw: Draw, scale: float = 1.0) -> Distortion:
    """Draws a distortion for an image of height x width; `scale` is the factor the stored images were shrunk by."""
    factor = draw.uniform(*augmentation.scale) if augmentation and augmentation.scale else 1.0
    if augmentation is None or augmentation.only_scale:
        h, w = (side if factor == 1 else int(np.rint(side * factor)) for side in (height, width))
        limit = within_limits(h, w, scale)
        h, w = (side if limit == 1 else int(np.rint(side * limit)) for side in (h, w))
        return Distortion(factor, limit, None, max(1, h), max(1, w))
    wide = np.exp(draw.uniform(-1, 1) * np.log1p(augmentation.stretch))
    angle = np.radians(draw.uniform(-1, 1) * augmentation.rotation)
    slant = draw.uniform(-1, 1) * augmentation.shear
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = factor * turn @ np.array([[wide, slant], [0.0, 1.0 / wide]])
    w, h = np.abs(matrix) @ (width, height)
    limit = within_limits(int(np.ceil(h)), int(np.ceil(w)), scale)
    return Distortion(factor, limit, matrix * limit, max(1, int(np.ceil(h * limit))), max(1, int(np.ceil(w * limit))))


def _thinner(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Erosion, mixed with the original: a stroke never vanishes."""
    return cv2.addWeighted(cv2.erode(image, kernel), 0.6, image, 0.4, 0)


def _elastic(image: np.ndarray, forward: np.ndarray, size: tuple[int, int], coarse: np.ndarray) -> np.ndarray:
    """Samples the image through the inverse of `forward` plus a smooth displacement."""
    width, height = size
    inverse = cv2.invertAffineTransform(forward).astype(np.float32)
    field = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    field[..., 0] += inverse[0, 0] * x + inverse[0, 1] * y + inverse[0, 2]
    field[..., 1] += inverse[1, 0] * x + inverse[1, 1] * y + inverse[1, 2]
    return cv2.remap(image, field, None, cv2.INTER_LINEAR)  # type: ignore[call-overload] (its stubs want two maps)


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


def padded(height: int, width: int) -> tuple[int, int]:
    """The smallest shape of the grid that holds height x width: a few dozen shapes serve every image."""
    return -(-height // CELL) * CELL, next(w for w in _widths() if w >= width)


def padded_steps(steps: int) -> int:
    """As `padded`, of the steps of a label."""
    return -(-steps // STEPS) * STEPS


def _widths() -> Iterator[int]:
    width = 2 * CELL
    while True:
        yield width
        width = max(width + CELL, int(width * STRETCH_OF_SHAPES) // CELL * CELL)


def shape_batches(
    sizes: Sequence[tuple[int, int]], lengths: Sequence[int], size: int, pixels: int, draw: Draw
) -> list[list[int]]:
    """Batches whose images share a padded shape; what does not fill a batch moves on to the next larger shape.

    Within a shape, labels of similar length meet (a factor of up to 1.5, drawn anew each epoch, blurs the order):
    the decoder pays for the longest label of a batch.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index in np.argsort(np.asarray(lengths) * draw.uniform(1.0, 1.5, len(lengths)), kind="stable"):
        shapes.setdefault(padded(*sizes[index]), []).append(int(index))
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

    def __init__(self, samples: Iterable[Sample], config: Config):
        self.config = config
        self.samples = [s for s in load(samples, config.data) if len(s.tokens) <= config.data.max_tokens]
        self.sizes = [sides(s.image) for s in self.samples]
        self.by_length = sorted(range(len(self.samples)), key=lambda i: len(self.samples[i].tokens))

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
            batches = shape_batches(sizes, lengths, batching.size, batching.pixels, draw)
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
        images = []
        for index in indices:
            distortion, draw = self.distortion(epoch, index)
            images.append(distortion.apply(self.samples[index].image, self.config.augmentation, draw))
        shape = self.shape([sides(image) for image in images])
        chosen = [self.samples[index] for index in indices]
        return Batch([s.id for s in chosen], *pad(images, shape), [s.tokens for s in chosen])

    def shape(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The padded height and width of a batch of images of these sizes."""
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        return padded(height, width) if self.config.training.batching.order == "shape" else (height, width)

    def distortion(self, epoch: int, index: int) -> tuple[Distortion, Draw]:
        """That of a sample in an epoch, and the generator that its effects are drawn from next."""
        draw = self._draw(epoch, index)
        return distort(self.config.augmentation, *self.sizes[index], draw, self.config.data.scale), draw

    def _draw(self, epoch: int, index: int) -> Draw:
        return np.random.default_rng((self.config.seed, epoch, index))


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
    is recognised does not depend on its neighbours; in order `area` it does, as in the authors' program.
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
            alike.setdefault(padded(*sides(image)), []).append(index)
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
