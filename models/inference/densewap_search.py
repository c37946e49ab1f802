"""DenseWAP's search: left to right, by log-probability / length, which counts the end."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hmerbench.models.densewap import END, START, Cache, DenseWAP
from hmerbench.models.inference.beam_search import NEVER, NarrowingBeamSearch
from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.inference.searcher import View, frozen
from hmerbench.models.vocab import EOS


class DenseWAPDecoder(Cache):
    """Decodes step by step; b images, which are the groups of the search, M hypotheses of each."""

    full = False

    def __init__(self, network: DenseWAP, view: View, beams: int) -> None:
        memory, *first = network.decoder.begin(network.encode(*view))
        super().__init__(memory, *(x.repeat_interleave(beams, dim=1) for x in first))
        self.network = network

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [b, M, V] of the next class after one more class per hypothesis; the first is START."""
        return self.network.step(tokens_GM, self)


class DenseWAPSearch:
    """Reads images with a network in evaluation mode, of which it keeps a copy. Raises ValueError in training mode."""

    rules = "densewap"

    def __init__(self, model: DenseWAP) -> None:
        self.model = frozen(model)

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; an image has none if nothing ends within `max_len`.

        Several views are the same images at other sizes, whose log-probabilities are averaged. Raises ValueError for
        more hypotheses than classes, for early stopping and for reading right to left.
        """
        if options.beam_size > (classes := self.model.decoder.classes.out_features):
            raise ValueError(f"beam_size must be at most the {classes} classes, not {options.beam_size}")
        if options.early_stopping:
            raise ValueError("DenseWAP's search ends by rules of its own; leave early_stopping False")
        if options.direction == "r2l":
            raise ValueError("DenseWAP reads left to right only; direction must be l2r or both")
        M, (images_b1HW, _) = options.beam_size, views[0]
        decoders = [DenseWAPDecoder(self.model, view, M) for view in views]
        start_b = torch.full(images_b1HW.shape[:1], START, device=images_b1HW.device)
        found = NarrowingBeamSearch(decoders, start_b, torch.full_like(start_b, END), options).run()
        rows = zip(found.tokens_NT.tolist(), found.length_N.tolist(), found.score_N.tolist(), strict=True)
        hypotheses = [
            Hypothesis(tuple(word + EOS for word in words[:length]), score, score, 0.0, "l2r")
            for words, length, score in rows
        ]
        return [
            [h for h in hypotheses[M * image : M * (image + 1)] if h.score != NEVER]
            for image in range(len(images_b1HW))
        ]
