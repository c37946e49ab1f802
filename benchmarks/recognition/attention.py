"""Attention and refinement term of a network at every decoding step, as arrays.

The refinement term R (CoMER, section 3.4) is what coverage subtracts from the attention energies: large where the
network has attended before. The softmax is invariant to a constant over all cells, so R is shown relative to its
minimum at each step.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.network import Network
from hmerbench.models.vocab import SPECIAL

END = "<eos>"


@dataclass(frozen=True)
class TracedAttention:
    """Cross-attention of the last layer, mean over its heads, at every step t, which predicts tokens[t] from the tokens
    before it. T steps, h x w cells; the cells cover the image from its upper left corner and may extend beyond it."""

    tokens: tuple[str, ...]  # the last one is <eos>
    image: np.ndarray  # uint8, white ink on black
    cell: tuple[float, float]  # height and width of a cell in pixels of `image`
    looked_Thw: np.ndarray  # attention weights, float32, sum to 1 over the cells
    suppressed_Thw: np.ndarray | None  # refinement term minus the minimum of each step, float32; None without coverage

    @property
    def maps(self) -> dict[str, np.ndarray]:
        """Maps to show, each [T, h, w]: attention and, if the network has coverage, the refinement term."""
        return {"attention": self.looked_Thw} | ({} if self.suppressed_Thw is None else {"R": self.suppressed_Thw})


@torch.no_grad()
def trace(model: Network, config: Config, image: np.ndarray, tokens: Sequence[str]) -> TracedAttention:
    """Attention of `model` when forced to decode `tokens` left to right from `image` (H, W) uint8, white on black.

    Computed in float64 on the CPU, so that no machine's rounding shows in a picture. Raises UserError for an image
    that is too large for the run, for a network without attention and for tokens that it cannot be made to decode,
    ValueError for unknown ones.
    """
    if special := [token for token in tokens if token in SPECIAL]:
        raise UserError(f"the network read {special[0]} inside the expression; train it longer")
    if reason := model.unfit(tokens):
        raise UserError(f"{model.settings.network} cannot decode {' '.join(tokens) or 'nothing'!r}: {reason}")
    batches = evaluation_batches([Sample("", (), image)], config, 1)
    if not batches:
        raise UserError(f"an image of {image.shape[1]} x {image.shape[0]} px exceeds this run's data.max_area")
    images, mask = batches[0].views[0]
    maps = copy.deepcopy(model).cpu().double().eval().trace(images.double() / 255, mask, tokens)
    if maps is None:
        raise UserError(f"the network {model.settings.network} has no attention to show; give a run of another one")
    height, width = (int((~mask[0]).any(side).sum()) for side in (1, 0))  # without padding, in pixels
    h, w = (-(-side // maps.stride) for side in (height, width))  # in cells
    looked, suppressed = (
        None if values_Thw is None else values_Thw[:, :h, :w].float().numpy()
        for values_Thw in (maps.looked_Thw, maps.suppressed_Thw)
    )
    assert looked is not None
    return TracedAttention(
        (*tokens, END),
        image,
        (maps.stride * image.shape[0] / height, maps.stride * image.shape[1] / width),
        looked,
        None if suppressed is None else suppressed - suppressed.min((1, 2), keepdims=True),
    )
