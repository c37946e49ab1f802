"""Sinusoidal position encodings of words and image cells (CoMER, section 3.3)."""

import math

import torch
from torch import Tensor, nn

from hmerbench.models.settings import MAX_STEPS


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
