"""Approximate joint search (CoMER, section 4.1, after BTTR, section 4.3).

Beam search reads every image in both directions; the hypotheses of each direction are rescored by the other. The rules
are those of the authors' programs: of CoMER's, and of BTTR's for `bttr-original`.

Names carry shapes: b images, G groups (a group = one image read in one direction), M beams of a group, N hypotheses, R
of them rescored together, T steps, L = h * w feature cells, V classes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from hmerbench.models.comer import CoMER
from hmerbench.models.inference.beam_search import NEVER, BeamSearch, BTTRBeamSearch
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.reading import BoundNetwork, IncrementalDecoder, ReadingNetwork
from hmerbench.models.inference.searcher import View, beam_search, log_probabilities
from hmerbench.models.vocab import EOS, PAD, SOS

# limits on what is rescored at once: hypotheses * steps, and that times feature cells
MAX_WORDS, MAX_WORD_CELLS = 2**10, 2**16
STARTS = {"both": (SOS, EOS), "l2r": (SOS,), "r2l": (EOS,)}  # a hypothesis that starts with one ends with the other


class JointSearch:
    """Reads images with networks in evaluation mode, of whose weights it keeps a copy.

    Large products run in the type of the autocast under which it was made, or in each network's own. Raises ValueError
    for a network in training mode, and for networks with different words.
    """

    rules: ClassVar = "joint"
    beam_search: ClassVar = BeamSearch

    def __init__(self, *models: CoMER) -> None:
        if len({model.vocabulary.digest for model in models}) > 1:
            raise ValueError("networks that read together must have the same words in the same order")
        self.networks, self.classes = [ReadingNetwork(model) for model in models], len(models[0].vocabulary)

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; in a tie left-to-right ones come first.

        With direction l2r or r2l nothing is rescored and the score is `forward`. Raises ValueError for a beam that is
        too wide.
        """
        if 2 * options.beam_size > self.classes:
            raise ValueError(f"beam_size must be at most half of the {self.classes} classes, not {options.beam_size}")
        images_b1HW, _ = views[0]
        b, device, starts = len(images_b1HW), images_b1HW.device, STARTS[options.direction]
        image_G = torch.arange(b, device=device).repeat(len(starts))
        start_G = torch.tensor(starts, device=device).repeat_interleave(b)
        with torch.autocast(device.type, enabled=False):  # nothing is cast again
            networks = [BoundNetwork(network, *view) for network in self.networks for view in views]
            decoders = [IncrementalDecoder(network, image_G, options.beam_size) for network in networks]
            found = beam_search(self.beam_search, decoders, start_G, SOS + EOS - start_G, options)
            tokens_NT, length_N, score_N = found
            leftward_N = (start_G == EOS).repeat_interleave(options.beam_size)
            reverse_N = spread_N = torch.zeros_like(score_N)
            if options.direction == "both":
                reverse_N, spread_N = rescore(networks, *found, leftward_N, options)
        results: list[list[Hypothesis]] = [[] for _ in images_b1HW]
        image_N = image_G.repeat_interleave(options.beam_size)
        columns = (tokens_NT, length_N, image_N, leftward_N, score_N, reverse_N, spread_N, score_N + reverse_N)
        for tokens, length, image, leftward, forward, reverse, spread, score in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            ids = tuple(tokens[:length][::-1] if leftward else tokens[:length])
            direction = "r2l" if leftward else "l2r"
            results[image].append(Hypothesis(ids, score, forward, reverse, direction, spread=spread))
        for hypotheses in results:
            hypotheses.sort(key=lambda h: h.score, reverse=True)  # stable
        return results


def rescore(
    networks: Sequence[BoundNetwork],
    tokens_NT: Tensor,
    length_N: Tensor,
    score_N: Tensor,
    leftward_N: Tensor,
    options: SearchOptions,
) -> tuple[Tensor, Tensor]:
    """Log-probability / steps ** alpha [N] of every hypothesis in the direction opposite to its search, and the
    standard deviation [N] of that log-probability, undivided, over sizes and networks.

    Hypotheses of one image and similar length are read together, as many as fit: memory grows with the square of their
    words.
    """
    b, M, device = len(networks[0].mask_bhw), options.beam_size, score_N.device
    start_N, steps_N = torch.where(leftward_N, SOS, EOS), length_N + 1
    back_NT = length_N[:, None] - 1 - torch.arange(tokens_NT.shape[1], device=device)
    reversed_NT = tokens_NT.gather(1, back_NT.clamp(min=0)).masked_fill(back_NT < 0, PAD)
    inputs_NT = torch.cat((start_N[:, None], reversed_NT[:, :-1]), dim=1)
    outputs_NT = torch.where(back_NT == -1, SOS + EOS - start_N[:, None], reversed_NT)
    reverse_N, spread_N = torch.zeros_like(score_N), torch.zeros_like(score_N)
    max_words = min(MAX_WORD_CELLS // max(network.bias_b11L.shape[-1] for network in networks), MAX_WORDS)
    index_bn = torch.arange(len(steps_N), device=device).view(-1, b, M).transpose(0, 1).flatten(1)
    index_bn = index_bn.gather(1, score_N[index_bn].argsort(dim=1, descending=True))
    index_bn = index_bn.gather(1, steps_N[index_bn].argsort(dim=1, descending=True, stable=True))
    for image, (index_n, lengths) in enumerate(zip(index_bn, steps_N[index_bn].tolist(), strict=True)):
        first = 0
        while first < len(lengths):
            T = lengths[first]
            rows_R = index_n[first : first + max(1, max_words // T)]
            outputs_RT = outputs_NT[rows_R, :T]
            padding_RT = outputs_RT == PAD
            logits = (network.read(image, inputs_NT[rows_R, :T], steps_N[rows_R]) for network in networks)
            each = [log_probabilities([logits_RTV], options).gather(-1, outputs_RT[..., None]) for logits_RTV in logits]
            logp_KRT = torch.stack(each)[..., 0].masked_fill(padding_RT, 0)  # K networks
            logp_RT, spread_N[rows_R] = logp_KRT.mean(0), logp_KRT.sum(2).std(0, correction=0)
            reverse_N[rows_R] = logp_RT.sum(1) / (~padding_RT).sum(1, dtype=logp_RT.dtype) ** options.alpha
            first += len(rows_R)
    return reverse_N, spread_N


class BTTRSearch(JointSearch):
    """Beams are ranked by log-probability, and only the sum of both directions is divided by length ** alpha, where the
    length counts neither start nor end."""

    rules = "bttr"
    beam_search = BTTRBeamSearch

    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """As `JointSearch`, but there may be fewer than `beam_size` hypotheses.

        Raises ValueError for early stopping.
        """
        if options.early_stopping:
            raise ValueError("BTTR's search ends by rules of its own; leave early_stopping False")
        nbest = super().__call__(views, replace(options, alpha=0.0))
        found = [[h.by_tokens(options.alpha) for h in hypotheses if h.forward != NEVER] for hypotheses in nbest]
        return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in found]
