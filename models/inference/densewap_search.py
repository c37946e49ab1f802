"""DenseWAP's search: left to right, by log-probability / length, which counts the end."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from models.densewap import END, START, Decoder, DenseWAP, Features
from models.inference.narrowing_beam import Found, narrowing_search
from models.inference.options import Hypothesis, SearchOptions
from models.inference.searcher import View
from models.vocab import EOS


class DenseWAPDecoder:
    """Decodes step by step; b images, M hypotheses of each."""

    def __init__(self, decoder: Decoder, features: Features) -> None:
        self.decoder = decoder
        self.memory, self.state_bMn, self.past_bMhw = decoder.begin(features)

    def feed(self, tokens_bM: Tensor) -> Tensor:
        """Logits [b, M, V] of the next class after one more class per hypothesis; the first is START."""
        previous_bMm = self.decoder.embed(tokens_bM)
        products_bM3n = self.decoder.cell1.input(previous_bMm)
        step = self.decoder.step(self.memory, products_bM3n, self.state_bMn, self.past_bMhw)
        self.state_bMn, self.past_bMhw = step.state_bMn, step.past_bMhw
        return self.decoder.scores(step.context_bMD, step.state_bMn, previous_bMm)

    def reorder(self, parents_bM: Tensor) -> None:
        """Let hypothesis m of each image continue what was hypothesis parents[m]."""
        image_b1 = torch.arange(len(parents_bM), device=parents_bM.device)[:, None]
        self.state_bMn, self.past_bMhw = self.state_bMn[image_b1, parents_bM], self.past_bMhw[image_b1, parents_bM]

    def compact(self, live_b: Tensor) -> None:
        """Keep only the images with the given indices."""
        self.memory = self.memory.select(live_b)
        self.state_bMn, self.past_bMhw = self.state_bMn[live_b], self.past_bMhw[live_b]


class DenseWAPSearch:
    """Reads images with a network in evaluation mode, of which it keeps a copy. Raises ValueError in training mode."""

    def __init__(self, model: DenseWAP) -> None:
        if model.training:
            raise ValueError("a network in training mode drops out at random; call model.eval() before it reads")
        self.model = copy.deepcopy(model)

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; of some none, if nothing ends within `max_len`.

        Several views are the same images at other sizes, whose log-probabilities are averaged. Raises ValueError for
        more hypotheses than classes and for reading right to left.
        """
        if options.beam_size > (classes := self.model.decoder.classes.out_features):
            raise ValueError(f"beam_size must be at most the {classes} classes, not {options.beam_size}")
        if options.direction == "r2l":
            raise ValueError("DenseWAP reads left to right only; direction must be l2r or both")
        decoders = [DenseWAPDecoder(self.model.decoder, self.model.encoder(*view)) for view in views]
        start_b = torch.full(views[0][0].shape[:1], START, device=views[0][0].device)
        return [
            sorted((hypothesis(found, options.alpha) for found in image), key=lambda h: h.score, reverse=True)
            for image in narrowing_search(decoders, start_b, END, options)
        ]


def hypothesis(found: Found, alpha: float) -> Hypothesis:
    """A hypothesis of words, scored by log-probability / length ** alpha."""
    score = found.logp / (len(found.tokens) + 1) ** alpha
    return Hypothesis(tuple(word + EOS for word in found.tokens), score, score, 0.0, "l2r")
