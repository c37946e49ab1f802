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

from benchmarks.config import Config
from benchmarks.data.batching import evaluation_batches
from benchmarks.data.samples import Sample
from benchmarks.errors import UserError
from models import CoMER, Vocabulary, bidirectional_targets
from models.decoder import Trace

END = "<eos>"


@dataclass(frozen=True)
class Attention:
    """Cross-attention at every step t, which predicts tokens[t] from the tokens before it. J layers, H heads, T steps,
    h x w cells; the cells cover the image from its upper left corner and may extend beyond it."""

    tokens: tuple[str, ...]  # the last one is <eos>
    image: np.ndarray  # uint8, white ink on black
    cell: tuple[float, float]  # height and width of a cell in pixels of `image`
    weights_JHThw: np.ndarray  # float32, sum to 1 over the cells
    refinement_JHThw: np.ndarray | None  # float32, of the J - 1 layers after the first; None without coverage

    @property
    def looked_Thw(self) -> np.ndarray:
        """Attention weights of the last layer, averaged over its heads."""
        return self.weights_JHThw[-1].mean(0)

    @property
    def suppressed_Thw(self) -> np.ndarray | None:
        """Refinement term of the last layer, averaged over its heads, minus the minimum of each step."""
        if self.refinement_JHThw is None:
            return None
        mean_Thw = self.refinement_JHThw[-1].mean(0)
        return mean_Thw - mean_Thw.min((1, 2), keepdims=True)

    @property
    def maps(self) -> dict[str, np.ndarray]:
        """Maps to show, each [T, h, w]: attention and, if the network has coverage, the refinement term."""
        suppressed = self.suppressed_Thw
        return {"attention": self.looked_Thw} | ({} if suppressed is None else {"R": suppressed})


@torch.no_grad()
def trace(model: CoMER, config: Config, image: np.ndarray, tokens: Sequence[str]) -> Attention:
    """Attention of `model` when forced to decode `tokens` left to right from `image` (H, W) uint8, white on black.

    Computed in float64 on the CPU, so that no machine's rounding shows in a picture. Raises UserError for an image
    that is too large for the run, ValueError for unknown tokens.
    """
    batches = evaluation_batches([Sample("", (), image)], config, 1)
    if not batches:
        raise UserError(f"an image of {image.shape[1]} x {image.shape[0]} px exceeds this run's data.max_area")
    images, mask = batches[0].images, batches[0].mask
    inputs_BT, _ = bidirectional_targets([Vocabulary().encode(tokens)])
    exact, layers = copy.deepcopy(model).cpu().double().eval(), Trace()
    features, mask_bhw = exact.encode(images.double() / 255, mask)
    exact.decode(features, mask_bhw, inputs_BT[:1], layers)
    height, width = (int((~mask[0]).any(side).sum()) for side in (1, 0))  # without padding, in pixels
    h, w = (int((~mask_bhw[0]).any(side).sum()) for side in (1, 0))  # in cells

    def cells(values_1HTL: list[torch.Tensor]) -> np.ndarray:
        return torch.cat(values_1HTL).unflatten(-1, mask_bhw.shape[1:])[..., :h, :w].float().numpy()

    refinement = [layer.refinement for layer in layers if layer.refinement is not None]
    return Attention(
        (*tokens, END),
        image,
        (model.config.stride * image.shape[0] / height, model.config.stride * image.shape[1] / width),
        cells([layer.attention for layer in layers]),
        cells(refinement) if refinement else None,
    )
