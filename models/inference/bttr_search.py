"""BTTR's joint search (BTTR, section 4.3), by the rules of the authors' program."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hmerbench.models.inference.beam_search import NEVER, Groups, NarrowingBeamSearch
from hmerbench.models.inference.joint_search import JointSearch
from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.inference.searcher import View


class BTTRBeamSearch(NarrowingBeamSearch):
    """The best unfinished hypothesis counts if none is complete."""

    def _unfinished(self, groups: Groups) -> Tensor:
        best_M = torch.arange(self.options.beam_size, device=groups.sums_GM.device) == 0
        return best_M & (groups.scores_GM == NEVER).all(1, keepdim=True)


class BTTRSearch(JointSearch):
    """Beams are ranked by log-probability, and only the sum of both directions is divided by length ** alpha, where the
    length counts neither start nor end."""

    rules = "bttr"
    beam_search = BTTRBeamSearch

    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """As `JointSearch`, but there may be fewer than `beam_size` hypotheses.

        Raises ValueError for early stopping.
        """

        def normalized(h: Hypothesis) -> Hypothesis:
            tokens = max(len(h.ids), 1)
            by = tokens**options.alpha
            scores = {"score": h.score / by, "forward": h.forward / by, "reverse": h.reverse / by}
            return replace(h, **scores, normalized_by=tokens)

        if options.early_stopping:
            raise ValueError("BTTR's search ends by rules of its own; leave early_stopping False")
        nbest = super().__call__(views, replace(options, alpha=0.0))
        found = [[normalized(h) for h in hypotheses if h.forward != NEVER] for hypotheses in nbest]
        return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in found]
