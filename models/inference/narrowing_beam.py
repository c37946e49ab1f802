"""Beam search whose beam narrows by one with every hypothesis that it completes, as in BTTR's and DenseWAP's programs.

Names carry shapes: G groups (a group = one image read in one direction), M beams of a group, V classes.
"""

import torch
from torch import Tensor

from hmerbench.models.inference.beam_search import NEVER, BeamSearch, Groups


class NarrowingBeamSearch(BeamSearch):
    """Ends when it has completed as many hypotheses as there were beams at first; unfinished ones count for nothing.

    A step keeps as many of the most probable continuations as the group lacks hypotheses: those that end are complete,
    the others are its beams.
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
        return int((groups.sums_GM != NEVER).sum(1).max())

    def _unfinished(self, groups: Groups) -> Tensor:
        return groups.sums_GM.isnan()  # of a network that overflows, for the caller to see
