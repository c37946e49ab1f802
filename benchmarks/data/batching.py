"""From samples to padded batches: size-aware grouping, padding, the plan of an epoch.

Every random number is drawn from a generator keyed by (seed, epoch, sample), so neither the order in which samples
are visited, nor the number of workers, nor a restart changes what a sample looks like.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.config import Config
from benchmarks.data.augmentation import Distortion, Draw, distort, load, rescale, sides, within_limits
from benchmarks.data.samples import Sample
from benchmarks.data.substitution import Substitution
from models import Vocabulary
from models.vocab import bidirectional_targets

CELL = 16  # the encoder's largest stride: padded sides are multiples of it
STEPS = 8  # in order `shape`, labels are padded to multiples of it
STRETCH_OF_SHAPES = 1.12  # each width of the grid of padded shapes is this much larger than the one before
COARSE_CELL, COARSE_STRETCH = 32, 1.2  # the same of the coarse grid: heights are multiples of it
COARSE_STEPS = (8, 16, 24, 32, 48, 64, 96, 208)

Sizes = Sequence[tuple[int, int]]  # heights and widths
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Batch:
    """b images padded right and below to one size, with their labels."""

    ids: list[str]
    images: Tensor  # uint8 [b,1,H,W], ink 255 on 0
    mask: Tensor  # bool [b,H,W], True = padding
    tokens: list[tuple[str, ...]]
    other_sizes: Sequence[tuple[Tensor, Tensor]] = ()  # the same images in other sizes, each with its mask

    def part(self, rows: slice) -> "Batch":
        """Some of its images, padded as before."""
        others = [(images[rows], mask[rows]) for images, mask in self.other_sizes]
        return Batch(self.ids[rows], self.images[rows], self.mask[rows], self.tokens[rows], others)


class Inputs(NamedTuple):
    """What a training step reads."""

    images: Tensor  # uint8 [b,1,H,W], ink 255 on 0
    mask: Tensor  # bool [b,H,W], True = padding
    tokens: Tensor  # int64 [2b,T], both directions
    targets: Tensor  # int64 [2b,T]


# ----------------------------------------------------------------------------------------------------- grouping


def area_batches(sizes: Sizes, size: int, pixels: int) -> list[list[int]]:
    """The authors' batches: sort by area, then fill until `size` images or `pixels` (largest image x images)."""
    areas = [height * width for height, width in sizes]
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda i: areas[i]):  # so an image is the largest of its batch so far
        if not batches or len(batches[-1]) == size or areas[index] * (len(batches[-1]) + 1) > pixels:
            batches.append([])
        batches[-1].append(index)
    return batches


def padded(height: int, width: int, coarse: bool = False) -> tuple[int, int]:
    """The smallest shape of the grid that holds height x width: a few dozen shapes serve every image.

    The coarse grid is for a GPU. On CROHME's training set (preset fast, 120 epochs, labels counted) the fine one gives
    1,285 shapes, of which the most frequent 384 serve 67 % of all batches; the coarse one 408 and 99.9 %, with 8 % more
    pixels.
    """
    cell, stretch = (COARSE_CELL, COARSE_STRETCH) if coarse else (CELL, STRETCH_OF_SHAPES)
    wide = 2 * CELL
    while wide < width:
        cells = wide * stretch / CELL
        wide = max(wide + CELL, (math.ceil(cells) if coarse else int(cells)) * CELL)
    return -(-height // cell) * cell, wide


def shrunk(shape: tuple[int, int], ratio: float) -> tuple[int, int]:
    """What any image that `shape` holds needs at `ratio` of its size, rounded to pixels both times."""
    height, width = (-(-math.ceil(side * ratio + 1) // CELL) * CELL for side in shape)
    return height, width


def padded_steps(steps: int, coarse: bool = False) -> int:
    """As `padded`, of the steps of a label."""
    fine = -(-steps // STEPS) * STEPS
    return next((few for few in COARSE_STEPS if few >= steps), fine) if coarse else fine


def shape_batches(
    sizes: Sizes, lengths: Sequence[int], size: int, pixels: int, draw: Draw, coarse: bool = False
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
        higher = []
        for width in sorted(w for h, w in shapes if h == height):
            higher += [(width, index) for index in shapes[height, width]]
            count = max(1, min(size, pixels // (height * width)))
            while len(higher) >= count:
                batches.append([index for _, index in higher[:count]])
                higher = higher[count:]
    rest = [index for _, index in sorted(higher)]
    while rest:
        tall, wide = (max(sizes[i][axis] for i in rest) for axis in (0, 1))
        count = max(1, min(size, pixels // (tall * wide)))
        batches.append(rest[:count])
        rest = rest[count:]
    return batches


def pad(images: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """Stacks uint8 [h,w] images into [b,1,H,W] and its mask [b,H,W] (True = padding), of `shape` or large enough."""
    height, width = shape or (max(i.shape[0] for i in images), max(i.shape[1] for i in images))
    stack = torch.zeros(len(images), 1, height, width, dtype=torch.uint8)
    mask = torch.ones(len(images), height, width, dtype=torch.bool)
    for row, image in enumerate(images):
        h, w = image.shape
        stack[row, 0, :h, :w] = torch.from_numpy(np.ascontiguousarray(image))
        mask[row, :h, :w] = False
    return stack, mask


# ------------------------------------------------------------------------------------------- epochs and evaluation


class TrainingSet:
    """The training batches of any epoch, each a pure function of (config, epoch, position).

    One is made in two steps: `prepare` in any thread, then `inputs` by whoever trains with it.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        config: Config,
        device: torch.device | None = None,
        substitution: Substitution | None = None,
    ):
        self.config, self.batching, self.substitution = config, config.training.batching, substitution
        self.device, self.encode = device or torch.device("cpu"), Vocabulary().encode
        self.samples = [s for s in load(samples, config.data) if len(s.tokens) <= config.data.max_tokens]
        self.sizes = [sides(s.image) for s in self.samples]
        self.by_length = sorted(range(len(self.samples)), key=lambda i: len(self.samples[i].tokens))

    def plan(self, epoch: int) -> list[list[int]]:
        """The epoch's batches in order: sample numbers, padded to whole steps as a distributed sampler does."""
        size, pixels = self.batching.size, self.batching.pixels
        reached = min(1.0, (epoch + 1) / (self.batching.curriculum + 1))  # of the expressions, shortest first
        learnt = self.by_length[: max(1, round(reached * len(self.samples)))]
        if self.batching.order == "area":
            learnt = sorted(learnt)
            batches = area_batches([self.sizes[i] for i in learnt], size, pixels)
        else:
            draws = (self.distortion(epoch, index)[0] for index in learnt)
            sizes, lengths = [(d.height, d.width) for d in draws], [len(self.samples[i].tokens) for i in learnt]
            draw = self._draw(epoch, len(self.samples) + 1)
            batches = shape_batches(sizes, lengths, size, pixels, draw, self.batching.coarse)
        order = self._draw(epoch, len(self.samples)).permutation(len(batches))
        order = np.resize(order, len(order) + -len(order) % self.batching.micro_batches)  # from its beginning again
        return [[learnt[i] for i in batches[number]] for number in order]

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

    def prepare(self, epoch: int, indices: Sequence[int]) -> Any:
        """What `inputs` needs of a batch."""
        batch = self.batch(epoch, indices)
        return Inputs(batch.images, batch.mask, *self.targets(batch.tokens))

    def inputs(self, prepared: Any) -> Inputs:
        """A prepared batch on the device."""
        return Inputs(*(send(tensor, self.device) for tensor in prepared))

    def targets(self, labels: Iterable[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Tokens and targets of labels; few lengths in order `shape`, as few image shapes: kernels are reused."""
        tokens, targets = bidirectional_targets([self.encode(label) for label in labels])
        steps = tokens.shape[1]
        extra = padded_steps(steps, self.batching.coarse) - steps if self.batching.order == "shape" else 0
        return F.pad(tokens, (0, extra)), F.pad(targets, (0, extra))

    def shape(self, sizes: Sizes) -> tuple[int, int]:
        """The padded height and width of a batch of images of these sizes."""
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        return (height, width) if self.batching.order == "area" else padded(height, width, self.batching.coarse)

    def distortion(self, epoch: int, index: int) -> tuple[Distortion, Draw]:
        """That of a sample in an epoch, and the generator that its effects are drawn from next."""
        draw = self._draw(epoch, index)
        return distort(self.config.augmentation, *self.sizes[index], draw, self.config.data.scale), draw

    def _draw(self, epoch: int, index: int) -> Draw:
        return np.random.default_rng((self.config.seed, epoch, index))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device; from pinned memory, so that nobody waits for a GPU that is still at the step before."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def ahead(prepare: Callable[[Item], Made], items: Iterable[Item], workers: int, depth: int = 4) -> Iterator[Made]:
    """prepare(item) of all items in order, by `workers` threads, at most `depth` for each ahead of their use."""
    if not workers:
        yield from map(prepare, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        todo = iter(items)
        coming = [pool.submit(prepare, item) for item in islice(todo, depth * workers)]
        try:
            while coming:
                made = coming.pop(0).result()
                coming += [pool.submit(prepare, item) for item in islice(todo, 1)]
                yield made
        finally:
            pool.shutdown(cancel_futures=True)


def evaluation_batches(
    samples: Iterable[Sample], config: Config, size: int, scales: Sequence[float] = (1.0,)
) -> list[Batch]:
    """Un-augmented batches of at most `size` images, within the authors' limits, grouped as in training.

    Every image comes in several sizes, each made from the stored image: `scales` are relative to that of training.
    In order `shape` every image is padded to its own shape of the grid, in other sizes to that shape shrunk, and meets
    only such images, so that what is recognized does not depend on its neighbors; in order `area` it does, as in the
    authors' program.
    """
    batching, samples = config.training.batching, list(samples)
    loaded = [load(samples, config.data, scale) for scale in scales]
    images = [  # those that `load` has scaled are within the limits
        [
            s.image if config.data.scale * scale != 1 else rescale(s.image, within_limits(*sides(s.image)))
            for s in of_scale
        ]
        for of_scale, scale in zip(loaded, scales, strict=True)
    ]
    kept, top = loaded[0], max(range(len(scales)), key=scales.__getitem__)
    groups: list[tuple[Sequence[tuple[int, int] | None], list[int]]] = []  # padded shapes at all scales, images
    if batching.order == "area":
        batches = area_batches([sides(s.image) for s in loaded[top]], size, batching.pixels)
        groups += [([None] * len(scales), indices) for indices in batches]
    else:
        alike: dict[tuple[int, int], list[int]] = {}
        for index, image in enumerate(images[top]):
            alike.setdefault(padded(*sides(image), batching.coarse), []).append(index)
        for shape, indices in sorted(alike.items()):
            shapes = [shape if scale == scales[top] else shrunk(shape, scale / scales[top]) for scale in scales]
            count = max(1, min(size, batching.pixels // (shape[0] * shape[1])))
            groups += [(shapes, indices[start : start + count]) for start in range(0, len(indices), count)]
    made: list[Batch] = []
    for shapes, indices in groups:
        first, *others = (
            pad([of_scale[i] for i in indices], shape) for of_scale, shape in zip(images, shapes, strict=True)
        )
        made.append(Batch([kept[i].id for i in indices], *first, [kept[i].tokens for i in indices], others))
    return made
