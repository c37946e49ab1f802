"""Beam search over any network that decodes step by step, by the rules of CoMER's and BTTR's programs.

Names carry shapes: G groups (a group = one image read in one direction), M beams of a group, N = G * M hypotheses,
T steps, V classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.vocab import PAD

SHARE_TO_DROP = 1 / 8  # finished groups are dropped as soon as they make up this share
NEVER = float("-inf")


class StepDecoder(Protocol):
    """All that the search knows of a network: it decodes one more token for each of M beams in each of G groups."""

    @property
    def full(self) -> bool:
        """Whether `compact` must be called before the next `feed`."""
        ...

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] of the next token after one more token per beam; the first is the start token."""
        ...

    def reorder(self, parents_GM: Tensor) -> None:
        """Let beam m of each group continue what was beam parents[m]; there may be fewer beams than before."""
        ...

    def compact(self, live_G: Tensor) -> None:
        """Keep only the groups with the given indices, in that order."""
        ...


@dataclass
class Found:
    """The M best hypotheses of each group, one group after the other."""

    tokens_NT: Tensor  # in the order of the search, then PAD
    length_N: Tensor  # tokens, without start and end
    score_N: Tensor  # log-probability / length ** alpha; the length counts the end token


@dataclass
class Groups:
    """The state of each group; the first dimension of every field is G."""

    number_G: Tensor  # its index among all groups
    open_G: Tensor  # False: the search is over
    tokens_GTM: Tensor  # the token of each beam at each step …
    parents_GTM: Tensor  # … and the beam it extends; hypotheses are traced back through both at the end
    sums_GM: Tensor  # log-probability of each beam
    scores_GM: Tensor  # complete hypotheses, best first: score …
    ends_GM: Tensor  # … and length * M + last beam; the length counts the start token, not the end token

    def select(self, index_g: Tensor) -> "Groups":
        return Groups(*(getattr(self, field.name)[index_g] for field in fields(self)))

    @classmethod
    def collect(cls, parts: list["Groups"]) -> "Groups":
        whole = cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))
        return whole.select(whole.number_G.argsort())


class BeamSearch:
    """Beam search of all groups at once.

    Of the 2 M best continuations of a group, an end token among the first M completes a hypothesis (among the rest it
    is dropped), and the best M other tokens extend the beams. Every group keeps its M best complete hypotheses, scored
    by log-probability / length ** alpha.
    """

    def __init__(self, decoders: Sequence[StepDecoder], start_G: Tensor, end_G: Tensor, options: SearchOptions) -> None:
        """Each group has a start and an end token. Several decoders read the same images, at several sizes or with
        several networks: a token's log-probability is its mean over them."""
        (G,), M, device = start_G.shape, options.beam_size, start_G.device
        self.decoders, self.options = decoders, options
        self.start_G, self.end_G = start_G, end_G
        tokens_GTM = torch.full((G, options.max_len, M), PAD, device=device)
        sums_GM = torch.full((G, M), NEVER, device=device)
        scores_GM = sums_GM.clone()
        sums_GM[:, 0] = 0  # all beams of a group start alike, so only one may be extended
        open_G, ends_GM = torch.ones_like(start_G, dtype=torch.bool), torch.full_like(tokens_GTM[:, 0], M)
        number_G, parents_GTM = torch.arange(G, device=device), torch.zeros_like(tokens_GTM)
        self.groups = Groups(number_G, open_G, tokens_GTM, parents_GTM, sums_GM, scores_GM, ends_GM)

    def run(self) -> Found:
        """The complete hypotheses of every group; groups still open at `max_len` add their unfinished beams."""
        options, groups, closed = self.options, self.groups, list[Groups]()
        tokens_GM, end_G1 = self.start_G[:, None].repeat(1, options.beam_size), self.end_G[:, None]
        for length in range(1, options.max_len):
            logp_GMV = log_probabilities((decoder.feed(tokens_GM) for decoder in self.decoders), options)
            sums_GMV = groups.sums_GM[:, : tokens_GM.shape[1], None] + logp_GMV
            tokens_GM, parents_GM = self._extend(groups, sums_GMV, end_G1, length)
            groups.tokens_GTM[:, length], groups.parents_GTM[:, length] = tokens_GM, parents_GM
            running = int(groups.open_G.sum())  # the only time a step of this search waits for the device
            if running == 0:
                break
            width = self._width(groups)
            tokens_GM = tokens_GM[:, :width]
            for decoder in self.decoders:
                decoder.reorder(parents_GM[:, :width])
            finished = len(groups.open_G) - running
            if self.decoders[0].full or finished >= SHARE_TO_DROP * len(groups.open_G):
                closed.append(groups.select((~groups.open_G).nonzero()[:, 0]))
                keep_G = groups.open_G.nonzero()[:, 0]
                for decoder in self.decoders:
                    decoder.compact(keep_G)
                groups, tokens_GM, end_G1 = groups.select(keep_G), tokens_GM[keep_G], end_G1[keep_G]
        else:
            beams_GM = torch.arange(options.beam_size, device=tokens_GM.device).expand_as(groups.sums_GM)
            self._add(groups, groups.sums_GM, self._unfinished(groups), beams_GM, options.max_len)
        return self._trace_back(Groups.collect([*closed, groups]))

    def _extend(self, groups: Groups, sums_GMV: Tensor, end_G1: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Tokens and parents [G, M] of the extended beams; adds complete hypotheses and closes finished groups."""
        M, V = self.options.beam_size, sums_GMV.shape[-1]
        sums, index = sums_GMV.flatten(1).topk(2 * M)  # G and 2 M candidates, best first
        parents, tokens = index // V, index % V
        ending = tokens == end_G1  # at most one per beam, so at most M
        self._add(groups, sums[:, :M], ending[:, :M] & groups.open_G[:, None], parents[:, :M], length)
        kept = ending.byte().argsort(dim=1, stable=True)[:, :M]
        groups.sums_GM = sums.gather(1, kept)
        worst_G = groups.scores_GM[:, -1]
        if self.options.early_stopping:
            groups.open_G &= worst_G == NEVER
        else:  # until, by the authors' estimate, no beam can beat any of M complete hypotheses
            groups.open_G &= worst_G < groups.sums_GM[:, 0] / length**self.options.alpha
        return tokens.gather(1, kept), parents.gather(1, kept)

    def _width(self, groups: Groups) -> int:
        """How many beams of each group go on."""
        return self.options.beam_size

    def _unfinished(self, groups: Groups) -> Tensor:
        """Which beams, broadcast to [G, M], count as complete at `max_len`."""
        return groups.open_G[:, None]

    def _add(self, groups: Groups, sums_GM: Tensor, ending_GM: Tensor, beams_GM: Tensor, length: int) -> None:
        """Add the hypotheses that end here, given by their sums and last beams, to the M best of their groups."""
        M = self.options.beam_size
        scores = torch.where(ending_GM, sums_GM / length**self.options.alpha, NEVER)
        groups.scores_GM, kept = torch.cat((groups.scores_GM, scores), dim=1).topk(M)
        groups.ends_GM = torch.cat((groups.ends_GM, beams_GM + length * M), dim=1).gather(1, kept)

    def _trace_back(self, groups: Groups) -> Found:
        """All complete hypotheses, traced back from their last tokens."""
        M = self.options.beam_size
        tokens_TGM = torch.full_like(groups.tokens_GTM, PAD).transpose(0, 1).contiguous()
        beams_GM, last_GM = groups.ends_GM % M, groups.ends_GM // M - 1
        for t in range(int(last_GM.max()), 0, -1):
            inside = t <= last_GM
            tokens_TGM[t - 1] = groups.tokens_GTM[:, t].gather(1, beams_GM).masked_fill(~inside, PAD)
            beams_GM = torch.where(inside, groups.parents_GTM[:, t].gather(1, beams_GM), beams_GM)
        return Found(tokens_TGM.flatten(1).T.contiguous(), last_GM.flatten(), groups.scores_GM.flatten())


class NarrowingBeamSearch(BeamSearch):
    """Its beam narrows by one with every hypothesis that it completes, as in BTTR's and DenseWAP's programs.

    Ends when it has completed as many hypotheses as there were beams at first; unfinished ones count for nothing.

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


def log_probabilities(logits: Iterable[Tensor], options: SearchOptions) -> Tensor:
    """Log-probabilities [..., V] of the next token: the mean over all decoders, given the logits of each."""
    return torch.stack([(logits_V / options.temperature).log_softmax(-1) for logits_V in logits]).mean(0)
