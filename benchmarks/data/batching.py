"""From samples to padded batches: size-aware grouping, padding, the plan of an epoch.

Every random number comes from a generator keyed by (seed, epoch, sample), so neither the order in which samples
are visited, nor the number of workers, nor a restart changes how a sample is augmented.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hmerbench.benchmarks.config import Augmentation, Config
from hmerbench.benchmarks.data.augmentation import (
    Distortion,
    Draw,
    Substitution,
    distort,
    rescale,
    scaled,
    sides,
    small_enough,
)
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.sizes import padded, shrunk, within_limits
from hmerbench.models.network import Network, Targets
from hmerbench.models.settings import MAX_STEPS

STEPS = 8  # in order `shape`, labels are padded to multiples of it
# The largest random factor of a label's length in order `shape`. With 1.1, batches of labels of one length each, eight
# epochs of `medium` read 43.5 % of held-out expressions in place of 51.7 % (results/speed/recipe.csv).
SPREAD = 1.5
COARSE_STEPS = (8, 16, 24, 32, 48, 64, 96, 208)

Sizes = Sequence[tuple[int, int]]  # heights and widths


@dataclass(frozen=True)
class Batch:
    """b images at one or more scales, padded at the right and bottom to one size at each, with their labels.

    A view is the images at a scale, uint8 [b,1,H,W] with ink 255 on 0, and their mask, bool [b,H,W], True = padding.
    """

    ids: list[str]
    views: list[tuple[Tensor, Tensor]]
    tokens: list[tuple[str, ...]]

    def part(self, rows: slice) -> "Batch":
        """The given rows of the batch, padded as before."""
        views = [(images[rows], mask[rows]) for images, mask in self.views]
        return Batch(self.ids[rows], views, self.tokens[rows])


class Inputs(NamedTuple):
    """The tensors that a training step reads."""

    images: Tensor  # uint8 [b,1,H,W], ink 255 on 0
    mask: Tensor  # bool [b,H,W], True = padding
    targets: Targets  # of the network


# ----------------------------------------------------------------------------------------------------- grouping


def area_batches(sizes: Sizes, size: int, pixels: int) -> list[list[int]]:
    """The authors' batches: sort by area, then fill up to `size` images or `pixels` (largest image x images)."""
    areas = [height * width for height, width in sizes]
    batches: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=areas.__getitem__):  # so the newest image is the largest of its batch
        if not batches or len(batches[-1]) == size or areas[index] * (len(batches[-1]) + 1) > pixels:
            batches.append([])
        batches[-1].append(index)
    return batches


def padded_steps(steps: int, coarse: bool = False) -> int:
    """Padded length of a label, as `padded` for an image."""
    fine = min(-(-steps // STEPS) * STEPS, MAX_STEPS)
    return next((length for length in COARSE_STEPS if length >= steps), fine) if coarse else fine


def shape_batches(
    sizes: Sizes, lengths: Sequence[int], size: int, pixels: int, draw: Draw, coarse: bool = False
) -> list[list[int]]:
    """Batches of images with a common padded shape; images that do not fill one move on to the next larger shape.

    The decoder pays for the longest label of a batch, so within a shape images are sorted by label length, each length
    multiplied by a random factor of up to SPREAD: the batches differ between epochs, and each mixes lengths.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index in np.argsort(np.asarray(lengths) * draw.uniform(1.0, SPREAD, len(lengths)), kind="stable"):
        shapes.setdefault(padded(*sizes[index], coarse=coarse), []).append(int(index))
    batches: list[list[int]] = []
    waiting: list[tuple[int, int]] = []  # (width, index) of images that did not fill a batch
    for height in sorted({h for h, _ in shapes}):
        for width, index in waiting:
            shapes.setdefault((height, width), []).append(index)
        waiting = []
        for width in sorted(w for h, w in shapes if h == height):
            waiting += [(width, index) for index in shapes[height, width]]
            count = max(1, min(size, pixels // (height * width)))
            while len(waiting) >= count:
                batches.append([index for _, index in waiting[:count]])
                waiting = waiting[count:]
    rest = [index for _, index in sorted(waiting)]
    while rest:
        tall, wide = (max(sizes[i][axis] for i in rest) for axis in (0, 1))
        count = max(1, min(size, pixels // (tall * wide)))
        batches.append(rest[:count])
        rest = rest[count:]
    return batches


def pad(images: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """Stack uint8 [h,w] images into [b,1,H,W] with a mask [b,H,W] (True = padding), of `shape` or the largest sides."""
    height, width = shape or (max(image.shape[0] for image in images), max(image.shape[1] for image in images))
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

    A batch is made in two steps: `prepare` in any process, then `inputs` in the one that trains. That takes a network,
    which makes targets of its own.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        config: Config,
        device: torch.device | None = None,
        substitution: Substitution | None = None,
        network: Network | None = None,
    ):
        self.config, self.batching, self.substitution = config, config.training.batching, substitution
        self.device, self.network = device or torch.device("cpu"), network
        self.samples = [s for s in scaled(samples, config.data) if len(s.tokens) <= config.data.max_tokens]
        self.sizes = [sides(s.image) for s in self.samples]
        self.by_length = sorted(range(len(self.samples)), key=lambda i: len(self.samples[i].tokens))

    def plan(self, epoch: int) -> list[list[int]]:
        """The epoch's batches of sample numbers, in order; as in a distributed sampler, some repeat to fill a step.

        In order `shape`, a row without scale augmentation takes as many steps as the others, for which its batches,
        fuller as no image grows, repeat: the authors' batches are made before images are scaled, so theirs are as many.
        Where they are more, as they may be on little data, none is left out.
        """
        share = min(1.0, (epoch + 1) / (self.batching.curriculum + 1))
        present = [i for i in self.by_length if self.samples[i].takes_part(epoch)]
        chosen = present[: max(1, round(share * len(present)))]
        augmentation, micro_batches = self.config.augmentation, self.batching.micro_batches
        if self.batching.order == "area":
            chosen = sorted(chosen)
            batches = area_batches([self.sizes[i] for i in chosen], self.batching.size, self.batching.pixels)
        else:
            batches = self._shape_batches(epoch, chosen, augmentation)
        count = len(batches)
        if self.batching.order == "shape" and augmentation and augmentation.scale is None:
            scaled_as_others = augmentation.model_copy(update={"scale": augmentation.scale_of_others})
            count = max(count, len(self._shape_batches(epoch, chosen, scaled_as_others)))
        steps = -(-count // micro_batches)
        order = np.resize(self._draw(epoch, len(self.samples)).permutation(len(batches)), steps * micro_batches)
        return [[chosen[i] for i in batches[number]] for number in order]

    def _shape_batches(self, epoch: int, chosen: Sequence[int], augmentation: Augmentation | None) -> list[list[int]]:
        """`shape_batches` of the chosen samples, distorted as in an epoch; batches hold positions in `chosen`."""
        draw = self._draw(epoch, len(self.samples) + 1)
        distortions = (self.distortion(epoch, i, augmentation)[0] for i in chosen)
        sizes, lengths = [(d.height, d.width) for d in distortions], [len(self.samples[i].tokens) for i in chosen]
        return shape_batches(sizes, lengths, self.batching.size, self.batching.pixels, draw, self.batching.coarse)

    def batch(self, epoch: int, indices: Sequence[int]) -> Batch:
        """The samples at `indices`, augmented and padded."""
        images, chosen = [], []
        for index in indices:
            sample = self.samples[index]
            if self.substitution:
                # with its own generator, so that distortions are the same without it
                sample = self.substitution(sample, np.random.default_rng((self.config.seed, epoch, index, 1)))
            distortion, draw = self.distortion(epoch, index, self.config.augmentation)
            images.append(distortion.apply(sample.image, self.config.augmentation, draw))
            chosen.append(sample)
        shape = self.shape([sides(image) for image in images])
        return Batch([s.id for s in chosen], [pad(images, shape)], [s.tokens for s in chosen])

    def prepare(self, epoch: int, indices: Sequence[int]) -> Inputs:
        """What a step reads of a batch, on the CPU."""
        batch = self.batch(epoch, indices)
        return Inputs(*batch.views[0], self.targets(batch.tokens))

    def inputs(self, prepared: Inputs) -> Inputs:
        """On the device; from pinned memory, so that the host does not wait for a GPU busy with the step before."""
        if self.device.type == "cpu":
            return prepared
        return tree_map(lambda tensor: tensor.pin_memory().to(self.device, non_blocking=True), prepared)

    def targets(self, labels: Iterable[Sequence[str]]) -> Targets:
        """The network's targets; in order `shape`, padded to few lengths so that kernels are reused."""
        assert self.network is not None
        to_few = partial(padded_steps, coarse=self.batching.coarse)
        return self.network.targets(list(labels), int if self.batching.order == "area" else to_few)

    def shape(self, sizes: Sizes) -> tuple[int, int]:
        """Padded height and width of a batch of images of these sizes."""
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        return (height, width) if self.batching.order == "area" else padded(height, width, self.batching.coarse)

    def distortion(self, epoch: int, index: int, augmentation: Augmentation | None) -> tuple[Distortion, Draw]:
        """Distortion of a sample in an epoch, and the generator from which to draw its effects."""
        draw = self._draw(epoch, index)
        return distort(augmentation, *self.sizes[index], draw, self.config.data.scale), draw

    def _draw(self, epoch: int, index: int) -> Draw:
        return np.random.default_rng((self.config.seed, epoch, index))


def evaluation_batches(
    samples: Iterable[Sample],
    config: Config,
    size: int,
    scales: Sequence[float] = (1.0,),
    pixels: int | None = None,
    part: slice = slice(None),
) -> list[Batch]:
    """Un-augmented batches of at most `size` images within the authors' limits, grouped as in training; in order
    `shape`, of at most `pixels` (None: as in training). Only a `part` of the batches is made, if not all.

    Every image comes at all `scales`, relative to the scale of training, each resized from the stored image. In order
    `shape`, an image is padded to its shape in the grid (at other scales, to that shape scaled) and batched
    with images of that shape only, so that its hypotheses do not depend on the rest of the batch, up to rounding; in
    order `area` they do, as in the authors' program.
    """
    batching, top = config.training.batching, max(range(len(scales)), key=scales.__getitem__)
    samples = small_enough(samples, config.data)
    largest, pixels = _read_at(scales[top], samples, config), pixels or batching.pixels
    sizes = [sides(sample.image) for sample in largest]

    def batch(group: Sequence[int], shapes: Sequence[tuple[int, int] | None]) -> Batch:
        """These images, at each scale padded to its shape."""
        own, read = [samples[i] for i in group], [largest[i] for i in group]
        at_scales = [read if k == top else _read_at(scale, own, config) for k, scale in enumerate(scales)]
        views = [pad([each.image for each in at], shape) for at, shape in zip(at_scales, shapes, strict=True)]
        return Batch([each.id for each in own], views, [each.tokens for each in own])

    if batching.order == "area":
        return [batch(group, [None] * len(scales)) for group in area_batches(sizes, size, batching.pixels)[part]]
    by_shape: dict[tuple[int, int], list[int]] = {}
    for i, (height, width) in enumerate(sizes):
        by_shape.setdefault(padded(height, width, batching.coarse), []).append(i)
    groups = []
    for shape, alike in sorted(by_shape.items()):
        shapes = [shape if scale == scales[top] else shrunk(shape, scale / scales[top]) for scale in scales]
        count = max(1, min(size, pixels // (shape[0] * shape[1])))
        groups += [(alike[start : start + count], shapes) for start in range(0, len(alike), count)]
    return [batch(*group) for group in groups[part]]


def _read_at(scale: float, samples: Sequence[Sample], config: Config) -> list[Sample]:
    """The samples at a scale; those that `scaled` leaves as they are are brought within the authors' limits."""
    read = scaled(samples, config.data, scale)
    if config.data.scale * scale != 1:
        return read
    return [replace(sample, image=rescale(sample.image, within_limits(*sides(sample.image)))) for sample in read]
