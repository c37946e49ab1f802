"""BTTR's joint search (BTTR, section 3.4), by the rules of the authors' program.

Names carry shapes: G groups (a group = one image read in one direction), M beams of a group, V classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from models.inference.beam_search import NEVER, BeamSearch, Groups
from models.inference.joint_search import JointSearch
from models.inference.options import Hypothesis, SearchOptions
from models.inference.searcher import View


class NarrowingBeamSearch(BeamSearch):
    """Beam search that ends when it has completed as many hypotheses as there were beams at first.

    Every complete hypothesis closes its beam. Unfinished ones count for nothing, but for the best if none is complete.
    """

    def _extend(self, groups: Groups, sums_GMV: Tensor, end_G1: Tensor, length: int) -> tuple[Tensor, Tensor]:
        M, V = self.options.beam_size, sums_GMV.shape[-1]
        sums_GM, index_GM = sums_GMV.flatten(1).topk(M)
        parents_GM, tokens_GM = index_GM // V, index_GM % V
        lacking_GM = groups.scores_GM == NEVER
        live_GM = torch.arange(M, device=sums_GM.device) < lacking_GM.sum(1, keepdim=True)
        ending_GM = live_GM & (tokens_GM == end_G1)
        self._add(groups, sums_GM, ending_GM, parents_GM, length)
        groups.open_G &= (groups.scores_GM == NEVER).any(1)
        # live beams first, in order
        sums_GM = sums_GM.masked_fill(ending_GM | ~live_GM, NEVER)
        groups.sums_GM, kept_GM = sums_GM.sort(dim=1, descending=True, stable=True)
        return tokens_GM.gather(1, kept_GM), parents_GM.gather(1, kept_GM)

    def _width(self, groups: Groups) -> int:
        return int((groups.sums_GM > NEVER).sum(1).max())

    def _unfinished(self, groups: Groups) -> Tensor:
        best_M = torch.arange(self.options.beam_size, device=groups.sums_GM.device) == 0
        return best_M & (groups.scores_GM == NEVER).all(1, keepdim=True)


class BTTRSearch(JointSearch):
    """Beams are ranked by log-probability, and only the sum of both directions is divided by length ** alpha, where the
    length counts neither start nor end."""

    beam_search = NarrowingBeamSearch

    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """As `JointSearch`, but there may be fewer than `beam_size` hypotheses."""

        def normalized(h: Hypothesis) -> Hypothesis:
            length = max(len(h.ids), 1) ** options.alpha
            return replace(h, score=h.score / length, forward=h.forward / length, reverse=h.reverse / length)

        nbest = super().__call__(views, replace(options, alpha=0.0))
        found = [[normalized(h) for h in hypotheses if h.forward > NEVER] for hypotheses in nbest]
        return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in found]
