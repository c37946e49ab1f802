"""Beam search whose beam narrows by one with every hypothesis that it completes.

Names carry shapes: b images, M beams of an image, T steps, V classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.inference.beam_search import log_probabilities
from models.inference.options import SearchOptions

NEVER = float("-inf")


class AnyWidthDecoder(Protocol):
    """Decodes step by step. It has one beam per image at first, and as many as `reorder` last named afterwards."""

    def feed(self, tokens_bM: Tensor) -> Tensor:
        """Logits [b, M, V] of the next token after one more token per beam."""
        ...

    def reorder(self, parents_bM: Tensor) -> None:
        """Let beam m of each image continue what was beam parents[m]."""
        ...

    def compact(self, live_b: Tensor) -> None:
        """Keep only the images with the given indices."""
        ...


@dataclass(frozen=True)
class Found:
    """A hypothesis in the order of its search, without start and end, and the sum of its log-probabilities."""

    tokens: list[int]
    logp: float


def narrowing_search(
    decoders: Sequence[AnyWidthDecoder], start_b: Tensor, end: int, options: SearchOptions
) -> list[list[Found]]:
    """The complete hypotheses of each image in the order of their completion, at most `beam_size`; maybe none.

    A step keeps as many of the most probable continuations as the image lacks hypotheses; those that end are complete,
    the others are the beam. The log-probabilities of several decoders are averaged.
    """
    found: list[list[Found]] = [[] for _ in start_b]
    image_b = torch.arange(len(start_b), device=start_b.device)
    missing_b1 = torch.full_like(start_b, options.beam_size)[:, None]
    tokens_bMT, sums_bM = start_b[:, None, None], torch.zeros(len(start_b), 1, device=start_b.device)
    for _ in range(1, options.max_len):
        logp_bMV = log_probabilities((decoder.feed(tokens_bMT[..., -1]) for decoder in decoders), options)
        V, M = logp_bMV.shape[-1], int(missing_b1.max())
        sums_bM, best_bM = (sums_bM[..., None] + logp_bMV).flatten(1).topk(M)
        parents_bM, words_bM = best_bM // V, best_bM % V
        kept_bM = (torch.arange(M, device=start_b.device) < missing_b1) & (sums_bM > NEVER)
        complete_bM = kept_bM & (words_bM == end)
        for row, m in complete_bM.nonzero().tolist():
            tokens = tokens_bMT[row, parents_bM[row, m], 1:].tolist()
            found[image_b[row]].append(Found(tokens, sums_bM[row, m].item()))
        missing_b1 = missing_b1 - complete_bM.sum(1, keepdim=True)
        sums_bM = sums_bM.masked_fill(~kept_bM | complete_bM, NEVER)
        live_b = (missing_b1[:, 0] > 0).nonzero()[:, 0]
        if not len(live_b):
            break
        tokens_bMT = torch.cat((tokens_bMT.take_along_dim(parents_bM[..., None], 1), words_bM[..., None]), dim=2)
        for decoder in decoders:
            decoder.reorder(parents_bM)
        if len(live_b) < len(image_b):
            for decoder in decoders:
                decoder.compact(live_b)
            image_b, missing_b1, tokens_bMT, sums_bM = (x[live_b] for x in (image_b, missing_b1, tokens_bMT, sums_bM))
    return found
