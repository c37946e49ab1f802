"""The training set on the device: uploaded once, augmented and padded there; the host only draws random numbers.

Distortions are drawn as in TrainingSet, by the same code from the same generators; OpenCV's arithmetic is repeated with
tensors, a whole batch at once. Compared with OpenCV 5.0, in gray levels out of 255, plain scaling (the authors'
augmentation) and stroke widths are equal; affine and elastic sampling differ by at most 1, in fewer than one pixel in a
thousand. (OpenCV 4 rounds the sampling coordinates of these two to 1/32 px: up to 8 levels at an edge.)

Suffixes of names are shapes: b images, h x w pixels as stored, H x W as padded, T steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.augmentation import THICKER, THINNER, rounded
from hmerbench.benchmarks.data.batching import Inputs, TrainingSet, mapped, send
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.models.network import Network, Targets

SCALING_UNIT = 2048  # OpenCV's interpolation weights are multiples of 1/2048

# Sent to the device for each image: its number; its sides as stored, after the first scaling, and in the end; the two
# factors of plain scaling; the stroke change; the sides of its displacement grid; the map from distorted to stored
# coordinates.
DRAWN_NUMBERS: list[str] = [
    *("sample", "height", "width", "middle_height", "middle_width", "out_height", "out_width", "factor", "limit"),
    *("stroke", "grid_height", "grid_width", "xx", "xy", "x", "yx", "yy", "y"),
]


@dataclass(frozen=True)
class Drawn:
    """The part of a batch that is made on the host."""

    numbers: Tensor  # float64 [18,b], one row for each of DRAWN_NUMBERS
    grids: Tensor | None  # float32 [b,grid,grid,2]: coarse displacements (x, y), padded
    stored: tuple[int, int]  # largest sides as stored
    middle: tuple[int, int] | None  # largest sides after the first scaling, if any image is scaled twice
    shape: tuple[int, int]  # padded sides
    plain: bool  # whether images change in scale alone
    targets: Targets  # of the network


class OnDeviceSet(TrainingSet):
    """TrainingSet's batches: `prepare` draws them on the host, `inputs` makes them on the device."""

    def __init__(self, samples: Iterable[Sample], config: Config, device: torch.device, network: Network | None = None):
        super().__init__(samples, config, device, network=network)
        self.starts = torch.tensor(np.cumsum([0, *(h * w for h, w in self.sizes)])[:-1], device=device)
        images = [sample.image.ravel() for sample in self.samples]
        self.pixels = torch.from_numpy(np.concatenate([np.zeros(0, np.uint8), *images])).to(device)

    def prepare(self, epoch: int, indices: Sequence[int]) -> Drawn:
        """Draw the random part of a batch, without touching a pixel or the device."""
        rows, grids, augmentation = [], [], self.config.augmentation
        for index in indices:
            height, width = self.sizes[index]
            distortion, draw = self.distortion(epoch, index)
            stroke, grid, inverse = 0, np.zeros((0, 0, 2), np.float32), np.zeros((2, 3))
            if distortion.matrix is not None:
                assert augmentation is not None
                stroke, coarse = distortion.effects(augmentation, draw)
                grid = grid if coarse is None else coarse
                inverse = cv2.invertAffineTransform(distortion.forward(height, width))
            stored, final = (height, width), (distortion.height, distortion.width)
            middle = rounded(height * distortion.factor), rounded(width * distortion.factor)
            # OpenCV copies an image whose sides do not change, whatever the factor
            factors = 1.0 if middle == stored else distortion.factor, 1.0 if final == middle else distortion.limit
            rows.append((index, *stored, *middle, *final, *factors, stroke, *grid.shape[:2], *inverse.ravel()))
            grids.append(grid)
        columns = dict[str, tuple](zip(DRAWN_NUMBERS, zip(*rows, strict=True), strict=True))

        def largest(name: str) -> tuple[int, int]:
            return max(columns[f"{name}height"]), max(columns[f"{name}width"])

        stack = torch.zeros(len(grids), *largest("grid_"), 2)
        for row, grid in zip(stack, grids, strict=True):
            row[: grid.shape[0], : grid.shape[1]] = torch.from_numpy(grid)
        return Drawn(
            torch.tensor(list(columns.values()), dtype=torch.float64),
            stack if stack.numel() else None,
            largest(""),
            largest("middle_") if any(limit != 1 for limit in columns["limit"]) else None,
            self.shape(list(zip(columns["out_height"], columns["out_width"], strict=True))),
            augmentation is None or augmentation.only_scale,
            self.targets(self.samples[index].tokens for index in indices),
        )

    @torch.no_grad()
    def inputs(self, prepared: Drawn) -> Inputs:
        """Make the tensors of a batch, in fifty to two hundred small operations that the host does not wait for."""
        drawn, n = prepared, dict(zip(DRAWN_NUMBERS, send(prepared.numbers, self.device), strict=True))
        index = n["sample"].long()
        images_bhw = self._stored(index, n["height"], n["width"], drawn.stored)
        if not drawn.plain:
            images_bhw = strokes(images_bhw, n["stroke"])
            images_bhw *= inside(n["height"], n["width"], drawn.stored)  # thicker strokes end at the image's edge
            images_bHW = warp(images_bhw, *self._coordinates(n, drawn))
        elif drawn.middle is None:
            images_bHW = scale(images_bhw, n["height"], n["width"], n["factor"], drawn.shape)
        else:
            images_bhw = scale(images_bhw, n["height"], n["width"], n["factor"], drawn.middle)
            images_bHW = scale(images_bhw, n["middle_height"], n["middle_width"], n["limit"], drawn.shape)
        image_bHW = inside(n["out_height"], n["out_width"], drawn.shape)
        targets = mapped(partial(send, device=self.device), drawn.targets)
        return Inputs((images_bHW * image_bHW)[:, None], ~image_bHW, targets)

    def _stored(self, index: Tensor, height_b: Tensor, width_b: Tensor, shape: tuple[int, int]) -> Tensor:
        """The stored images, padded: uint8 [b,h,w]."""
        image_bhw = inside(height_b, width_b, shape)
        y, x = positions(shape, self.device)
        offsets_bhw = self.starts[index][:, None, None] + y * width_b.long()[:, None, None] + x
        return self.pixels[offsets_bhw * image_bhw] * image_bhw

    def _coordinates(self, n: dict[str, Tensor], drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Coordinates in the stored image at which each pixel is sampled: x and y, float32 [b,H,W]."""
        y, x = (axis.float() for axis in positions(drawn.shape, self.device))
        xx, xy, x0, yx, yy, y0 = (n[name].float()[:, None, None] for name in DRAWN_NUMBERS[-6:])
        x_bHW, y_bHW = xx * x + xy * y + x0, yx * x + yy * y + y0
        if drawn.grids is None:
            return x_bHW, y_bHW
        field_bHW2 = displacements(send(drawn.grids, self.device), n, drawn.shape)
        return field_bHW2[..., 0] + x_bHW, field_bHW2[..., 1] + y_bHW


def positions(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixel coordinates y [H,1] and x [1,W]."""
    return torch.arange(shape[0], device=device)[:, None], torch.arange(shape[1], device=device)[None]


def inside(height_b: Tensor, width_b: Tensor, shape: tuple[int, int]) -> Tensor:
    """bool [b,H,W]: True for pixels of an image, False for padding."""
    y, x = positions(shape, height_b.device)
    return (y < height_b[:, None, None]) & (x < width_b[:, None, None])


# ------------------------------------------------------------------------------------- OpenCV's arithmetic, batched


def scale(images_bhw: Tensor, height_b: Tensor, width_b: Tensor, factor_b: Tensor, shape: tuple[int, int]) -> Tensor:
    """cv2.resize by a factor, bilinear, of uint8 images: integer arithmetic throughout, so equal on every device.

    (Except for a factor of exactly 1/2, where OpenCV averages: the last pixel of an odd side may differ by 1.)
    """
    above_bH, below_bH, weight_bH, other_bH = taps(height_b, factor_b, shape[0])
    left_bW, right_bW, weight_bW, other_bW = taps(width_b, factor_b, shape[1], flush=True)
    number_b11 = torch.arange(len(images_bhw), device=images_bhw.device)[:, None, None]

    def across(y_bH: Tensor) -> Tensor:
        left, right = (images_bhw[number_b11, y_bH[:, :, None], x_bW[:, None]].int() for x_bW in (left_bW, right_bW))
        return (left * weight_bW[:, None] + right * other_bW[:, None]) >> 4

    upper, lower = (weight_bH[:, :, None] * across(above_bH)) >> 16, (other_bH[:, :, None] * across(below_bH)) >> 16
    return ((upper + lower + 2) >> 2).to(torch.uint8)


def taps(length_b: Tensor, factor_b: Tensor, count: int, flush: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For `count` pixels of an axis scaled by a factor, the two source pixels of each and their integer weights.

    Beyond the ends both are the border pixel; `flush` gives the first all the weight, as OpenCV does in rows only.
    """
    at_bn = centers(1 / factor_b, count)
    first_bn, last_b1 = at_bn.floor(), length_b[:, None] - 1
    share_bn = at_bn - first_bn
    if flush:
        share_bn = share_bn.masked_fill((first_bn < 0) | (first_bn >= last_b1), 0)
    near_bn, far_bn = (torch.minimum((first_bn + k).clamp(min=0), last_b1).long() for k in (0, 1))
    return near_bn, far_bn, ((1 - share_bn) * SCALING_UNIT).round().int(), (share_bn * SCALING_UNIT).round().int()


def centers(step_b: Tensor, count: int) -> Tensor:
    """Centers of `count` pixels on the source axis, `step` source pixels apart; rounded to float32, as in OpenCV."""
    index_n = torch.arange(count, dtype=torch.float64, device=step_b.device)
    return ((index_n + 0.5) * step_b[:, None] - 0.5).float()


def strokes(images_bhw: Tensor, stroke_b: Tensor) -> Tensor:
    """cv2.dilate and cv2.erode with a 2x2 kernel, which reaches up and left; the erosion blended with the original."""
    height, width = images_bhw.shape[1:]

    def neighbors(outside: int) -> Tensor:
        padded = F.pad(images_bhw, (1, 0, 1, 0), value=outside)
        return torch.stack([padded[:, y : y + height, x : x + width] for y in (0, 1) for x in (0, 1)])

    thicker, thinner = neighbors(0).amax(0), neighbors(255).amin(0)
    thinner = (thinner * 0.6 + images_bhw * 0.4).round().to(torch.uint8)
    stroke_b11 = stroke_b[:, None, None]
    return thicker.where(stroke_b11 == THICKER, thinner.where(stroke_b11 == THINNER, images_bhw))


def warp(images_bhw: Tensor, x_bHW: Tensor, y_bHW: Tensor) -> Tensor:
    """cv2.warpAffine and cv2.remap: bilinear sampling at x and y, 0 outside the image."""
    height, width = images_bhw.shape[1:]
    framed = F.pad(images_bhw, (1, 1, 1, 1))
    x0, y0 = x_bHW.floor(), y_bHW.floor()
    right_share, lower_share = x_bHW - x0, y_bHW - y0
    number_b11 = torch.arange(len(images_bhw), device=images_bhw.device)[:, None, None]
    xs = [(x0 + k).clamp(-1, width).long() + 1 for k in (0, 1)]
    ys = [(y0 + k).clamp(-1, height).long() + 1 for k in (0, 1)]

    def across(y: Tensor) -> Tensor:
        left, right = (framed[number_b11, y, x].float() for x in xs)
        return left + right_share * (right - left)

    upper, lower = (across(y) for y in ys)
    return (upper + lower_share * (lower - upper)).round().to(torch.uint8)


def displacements(grids_bhw2: Tensor, n: dict[str, Tensor], shape: tuple[int, int]) -> Tensor:
    """cv2.resize, bicubic, of each image's displacement grid to the image's size: float32 [b,H,W,2]."""
    height, width = shape
    b, rows, _, _ = grids_bhw2.shape
    x_bW4, across_bW4 = cubic_taps(n["grid_width"], n["out_width"], width)
    y_bH4, down_bH4 = cubic_taps(n["grid_height"], n["out_height"], height)
    wide_bhW2 = field_bHW2 = torch.zeros((), device=grids_bhw2.device)
    for x_bW, weight_bW in zip(x_bW4.unbind(-1), across_bW4.unbind(-1), strict=True):
        read_bhW2 = grids_bhw2.gather(2, x_bW[:, None, :, None].expand(b, rows, width, 2))
        wide_bhW2 = wide_bhW2 + read_bhW2 * weight_bW[:, None, :, None]
    for y_bH, weight_bH in zip(y_bH4.unbind(-1), down_bH4.unbind(-1), strict=True):
        read_bHW2 = wide_bhW2.gather(1, y_bH[:, :, None, None].expand(b, height, width, 2))
        field_bHW2 = field_bHW2 + read_bHW2 * weight_bH[:, :, None, None]
    return field_bHW2


def cubic_taps(length_b: Tensor, out_b: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The four source pixels of each of `count` pixels and their weights (Keys' cubic, a = -0.75): [b,count,4]."""
    at_bn = centers(1 / (out_b / length_b), count)
    first_bn = at_bn.floor()
    t, a = at_bn - first_bn, -0.75
    before = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
    here = ((a + 2) * t - (a + 3)) * t * t + 1
    after = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1
    last_b1 = length_b[:, None] - 1
    sources = [torch.minimum((first_bn + k).clamp(min=0), last_b1).long() for k in (-1, 0, 1, 2)]
    return torch.stack(sources, -1), torch.stack([before, here, after, 1 - before - here - after], -1)
