"""Layers of both encoder and decoder: convolution, dropout, batch normalization, and sinusoidal encodings of the
positions of words and image cells."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hmerbench.models.settings import MAX_STEPS

Bits = np.random.SFC64  # a generator of random bits


def float32(x: Tensor) -> Tensor:
    """x in at least float32, so that softmax, norms and losses stay exact under bf16 autocast."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def pad_batch(x_bchw: Tensor) -> Tensor:
    """x with blank images appended to make the batch a multiple of the threads (CPU only); gradients are unaffected.

    Otherwise oneDNN's AMX kernel for the weight gradient in bf16 splits an image among threads and adds uninitialized
    memory (torch 2.11 to 2.13): mostly zeros, at times garbage or NaN.
    """
    missing = -len(x_bchw) % torch.get_num_threads() if x_bchw.device.type == "cpu" else 0
    return F.pad(x_bchw, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else x_bchw


class Conv2d(nn.Conv2d):
    """torch's Conv2d with a correct bf16 gradient on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's; the batch is padded where the weight gradient needs it."""
        training = torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        padded = pad_batch(input) if training else input
        y = super().forward(padded)
        return y if padded is input else y[: len(input)]  # no needless view: in-place operations on one cost copies


def pointwise(conv: nn.Conv2d, x_bchw: Tensor) -> Tensor:
    """A 1x1 convolution; of channels-last maps as one matrix product, which has a faster weight gradient.

    On a GPU, cuDNN would search for its best kernels again for every shape (forward and two gradients); a matrix
    product needs no such search.
    """
    if x_bchw.device.type == "cpu" and not x_bchw.is_contiguous(memory_format=torch.channels_last):
        return conv(x_bchw)
    return F.linear(x_bchw.permute(0, 2, 3, 1), conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)


class Dropout(nn.Module):
    """Element dropout. All of the network's dropout masks are drawn here.

    On the CPU, torch draws one double per element, which takes a third of a training step. Eight random bits per
    element suffice and come eight to a draw: p is rounded to 1/256, for each mask up or down at random, so that it
    holds on average.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """In training, x with a share p of its elements set to 0 and the others scaled by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or not x.numel():
            return F.dropout(x, self.p)
        return x * self.keep_mask(x, random_bits()).to(x.dtype).mul_(1 / (1 - self.p))

    def relu_drop_(self, x: Tensor, bits: Bits) -> Tensor:
        """ReLU and dropout of x in place, in one pass, without scaling the elements that are kept; NaN may become 0."""
        # the bits of a floating-point number, read as an integer, are negative if and only if the number is
        words = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
        highest = self.keep_mask(x, bits).to(words.dtype).mul_(torch.iinfo(words.dtype).max)
        torch.clamp(words, words.new_zeros(()), highest, out=words)
        return x

    def keep_mask(self, x: Tensor, bits: Bits) -> Tensor:
        """1 where an element of x is kept, 0 where it is dropped, as int8 in the memory layout of x."""
        draws = bits.random_raw(1 - (-x.numel() // 8))
        threshold = int(self.p * 256 + int(draws[-1]) / 2**64)  # rounded up with a probability of the fraction
        numbers = torch.from_numpy(draws).view(torch.int8)[: x.numel()]
        mask = numbers.ge_(min(threshold, 255) - 128)
        channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return mask.as_strided(x.shape, x.stride()) if channels_last else mask.view(x.shape)


class TorchSeed(ISeedSequence):
    """Seeds numpy's generators with torch's random numbers; numpy's own sequences of seeds take 0.1 ms each."""

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> np.ndarray:
        return torch.empty(n_words, dtype=torch.int64).random_().numpy().astype(dtype)


def random_bits() -> Bits:
    """A generator that follows from torch's seed and is twice as fast as torch's own."""
    return Bits(TorchSeed())  # pyright: ignore[reportArgumentType] (numpy's stub knows only SeedSequence)


def running(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Running means and variances, each [channels]."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


# --- positions (CoMER, section 3.3) -------------------------------------------------------------------------------


def sinusoids(position: Tensor, width: int, paired: bool = True) -> Tensor:
    """[..., width] from positions [...]: sines and cosines interleaved, wavelengths from 2 pi to 2 pi * 10000.

    A sine and the cosine after it have one wavelength, or each its own if not `paired`.
    """
    exponent = torch.arange(0, width, 2 if paired else 1, device=position.device, dtype=torch.float32) / width
    angle = position[..., None] * (1.0 / 10_000.0**exponent)
    for_sine, for_cosine = (angle, angle) if paired else (angle[..., ::2], angle[..., 1::2])
    return torch.stack((for_sine.sin(), for_cosine.cos()), dim=-1).flatten(-2)


class WordPosition(nn.Module):
    """Adds the encodings of steps 0, 1, ... to word vectors."""

    pe: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("pe", sinusoids(torch.arange(MAX_STEPS, dtype=torch.float32), d_model))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D]. Raises ValueError beyond 500 steps."""
        if (steps := x_BTD.shape[1]) > MAX_STEPS:
            raise ValueError(f"{steps} decoding steps, but words have position encodings for {MAX_STEPS} only")
        return x_BTD + self.pe[:steps]


def image_position(mask_bhw: Tensor, d_model: int, paired: bool = True) -> Tensor:
    """2-D encoding [b, h, w, d_model] of feature cells: x in the first half of the channels, y in the second.

    A cell's coordinates count the image cells up to and including it, relative to the image's own width and height,
    times 2 pi: as in the authors' code, unlike eq. 12 of the paper. Always computed in float32, so that a float64 model
    has the same constants.
    """
    image = (~mask_bhw).int()  # whose sums are deterministic on a GPU
    y, x = image.cumsum(1).float(), image.cumsum(2).float()
    y = y / (image.sum(1, keepdim=True) + 1e-6) * (2 * math.pi)
    x = x / (image.sum(2, keepdim=True) + 1e-6) * (2 * math.pi)
    return torch.cat([sinusoids(axis, d_model // 2, paired) for axis in (x, y)], dim=-1)
