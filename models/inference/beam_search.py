"""Beam search over any network that decodes step by step, by the rules of CoMER's and BTTR's programs.

Its books are kept in numpy, whatever computes the network: PyTorch, or onnxruntime for an exported one.

Names carry shapes: G groups (a group = one image read in one direction), M beams of a group, N = G * M hypotheses, C
candidates of a group, T steps.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

SHARE_TO_DROP = 1 / 8  # finished groups are dropped as soon as they make up this share
NEVER = float("-inf")
Array = np.ndarray[Any, Any]


class Decoder(Protocol):
    """All that the search knows of a network: it decodes one more token for each of M beams in each of G groups."""

    @property
    def full(self) -> bool:
        """Whether `compact` must be called before the next `best`."""
        ...

    def best(self, tokens_GM: Array, sums_GM: Array, count: int) -> tuple[Array, Array, Array]:
        """The `count` most probable continuations of each group, after one more token per beam; the first is the start
        token. Given the log-probability of each beam, NEVER for none: that of each continuation, the beam that it
        continues, and its token, all [G, C], best first."""
        ...

    def reorder(self, parents_GM: Array) -> None:
        """Let beam m of each group continue what was beam parents[m]; there may be fewer beams than before."""
        ...

    def compact(self, live_G: Array) -> None:
        """Keep only the groups with the given indices, in that order."""
        ...


@dataclass
class Found:
    """The M best hypotheses of each group, one group after the other."""

    tokens_NT: Array  # in the order of the search, then 0, which is PAD
    length_N: Array  # tokens, without start and end
    score_N: Array  # log-probability / length ** alpha; the length counts the end token


@dataclass
class Groups:
    """The state of each group; the first dimension of every field is G."""

    number_G: Array  # its index among all groups
    open_G: Array  # False: the search is over
    tokens_GTM: Array  # the token of each beam at each step …
    parents_GTM: Array  # … and the beam it extends; hypotheses are traced back through both at the end
    sums_GM: Array  # log-probability of each beam
    scores_GM: Array  # complete hypotheses, best first: score …
    ends_GM: Array  # … and length * M + last beam; the length counts the start token, not the end token

    def select(self, index_g: Array) -> "Groups":
        return Groups(*(getattr(self, field.name)[index_g] for field in fields(self)))

    @classmethod
    def collect(cls, parts: list["Groups"]) -> "Groups":
        whole = cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))
        return whole.select(whole.number_G.argsort())


class BeamSearch:
    """Beam search of all groups at once.

    Of the 2 M best continuations of a group, an end token among the first M completes a hypothesis (among the rest it
    is dropped), and the best M other tokens extend the beams. Every group keeps its M best complete hypotheses, scored
    by log-probability / length ** alpha.
    """

    candidates: ClassVar = 2  # for each beam

    def __init__(
        self,
        decoder: Decoder,
        start_G: Array,
        end_G: Array,
        *,
        beam_size: int,
        max_len: int,
        alpha: float,
        early_stopping: bool = False,
    ) -> None:
        """Each group has a start and an end token."""
        self.decoder, self.start_G, self.end_G = decoder, start_G, end_G
        self.beam_size, self.max_len = beam_size, max_len
        self.alpha, self.early_stopping = alpha, early_stopping
        G, M = len(start_G), beam_size
        tokens_GTM, sums_GM = np.zeros((G, max_len, M), np.int64), np.full((G, M), NEVER, np.float32)
        scores_GM = sums_GM.copy()
        sums_GM[:, 0] = 0  # all beams of a group start alike, so only one may be extended
        open_G, ends_GM = np.ones(G, bool), np.full((G, M), M)
        self.groups = Groups(np.arange(G), open_G, tokens_GTM, tokens_GTM.copy(), sums_GM, scores_GM, ends_GM)

    def run(self) -> Found:
        """The complete hypotheses of every group; groups still open at `max_len` add their unfinished beams."""
        M, decoder, groups, closed = self.beam_size, self.decoder, self.groups, list[Groups]()
        tokens_GM, end_G1 = self.start_G[:, None].repeat(M, axis=1), self.end_G[:, None]
        for length in range(1, self.max_len):
            sums_GM = groups.sums_GM[:, : tokens_GM.shape[1]]
            tokens_GM, parents_GM = self._extend(
                groups, *decoder.best(tokens_GM, sums_GM, self.candidates * M), end_G1, length
            )
            groups.tokens_GTM[:, length], groups.parents_GTM[:, length] = tokens_GM, parents_GM
            finished = len(groups.open_G) - int(groups.open_G.sum())
            if finished == len(groups.open_G):
                break
            width = self._width(groups)
            tokens_GM = tokens_GM[:, :width]
            decoder.reorder(parents_GM[:, :width])
            if decoder.full or finished >= SHARE_TO_DROP * len(groups.open_G):
                closed.append(groups.select(~groups.open_G))
                keep_G = np.flatnonzero(groups.open_G)
                decoder.compact(keep_G)
                groups, tokens_GM, end_G1 = groups.select(keep_G), tokens_GM[keep_G], end_G1[keep_G]
        else:
            beams_GM = np.broadcast_to(np.arange(M), groups.sums_GM.shape)
            self._add(groups, groups.sums_GM, self._unfinished(groups), beams_GM, self.max_len)
        return self._trace_back(Groups.collect([*closed, groups]))

    def _extend(
        self, groups: Groups, sums: Array, parents: Array, tokens: Array, end_G1: Array, length: int
    ) -> tuple[Array, Array]:
        """Tokens and parents [G, M] of the extended beams; adds complete hypotheses and closes finished groups."""
        M = self.beam_size
        ending = tokens == end_G1  # at most one per beam, so at most M
        self._add(groups, sums[:, :M], ending[:, :M] & groups.open_G[:, None], parents[:, :M], length)
        kept = ending.argsort(axis=1, kind="stable")[:, :M]
        groups.sums_GM = chosen(sums, kept)
        worst_G = groups.scores_GM[:, -1]
        if self.early_stopping:
            groups.open_G &= worst_G == NEVER
        else:  # until, by the authors' estimate, no beam can beat any of M complete hypotheses
            groups.open_G &= worst_G < groups.sums_GM[:, 0] / length**self.alpha
        return chosen(tokens, kept), chosen(parents, kept)

    def _width(self, groups: Groups) -> int:
        """How many beams of each group go on."""
        return self.beam_size

    def _unfinished(self, groups: Groups) -> Array:
        """Which beams, broadcast to [G, M], count as complete at `max_len`."""
        return groups.open_G[:, None]

    def _add(self, groups: Groups, sums_GM: Array, ending_GM: Array, beams_GM: Array, length: int) -> None:
        """Add the hypotheses that end here, given by their sums and last beams, to the M best of their groups."""
        scores = np.concatenate((groups.scores_GM, np.where(ending_GM, sums_GM / length**self.alpha, NEVER)), axis=1)
        kept = best_first(scores)[:, : self.beam_size]
        ends = np.concatenate((groups.ends_GM, beams_GM + length * self.beam_size), axis=1)
        groups.scores_GM, groups.ends_GM = chosen(scores, kept), chosen(ends, kept)

    def _trace_back(self, groups: Groups) -> Found:
        """All complete hypotheses, traced back from their last tokens."""
        tokens_GTM = np.zeros_like(groups.tokens_GTM)
        beams_GM, last_GM = groups.ends_GM % self.beam_size, groups.ends_GM // self.beam_size - 1
        for t in range(int(last_GM.max()), 0, -1):
            inside = t <= last_GM
            tokens_GTM[:, t - 1] = np.where(inside, chosen(groups.tokens_GTM[:, t], beams_GM), 0)
            beams_GM = np.where(inside, chosen(groups.parents_GTM[:, t], beams_GM), beams_GM)
        tokens_NT = tokens_GTM.swapaxes(1, 2).reshape(-1, self.max_len)
        return Found(tokens_NT, last_GM.ravel(), groups.scores_GM.ravel())


class NarrowingBeamSearch(BeamSearch):
    """Its beam narrows by one with every hypothesis that it completes, as in BTTR's and DenseWAP's programs.

    Ends when it has completed as many hypotheses as there were beams at first; unfinished ones count for nothing.

    A step keeps as many of the most probable continuations as the group lacks hypotheses: those that end are complete,
    the others are its beams.
    """

    candidates = 1

    def _extend(
        self, groups: Groups, sums: Array, parents: Array, tokens: Array, end_G1: Array, length: int
    ) -> tuple[Array, Array]:
        lacking_G1 = (groups.scores_GM == NEVER).sum(1, keepdims=True)
        live_GM = np.arange(self.beam_size) < lacking_G1
        ending_GM = live_GM & (tokens == end_G1)
        self._add(groups, sums, ending_GM, parents, length)
        groups.open_G &= (groups.scores_GM == NEVER).any(1)
        sums = np.where(ending_GM | ~live_GM, NEVER, sums)
        kept = best_first(sums)  # live beams first, in order
        groups.sums_GM = chosen(sums, kept)
        return chosen(tokens, kept), chosen(parents, kept)

    def _width(self, groups: Groups) -> int:
        return int((groups.sums_GM != NEVER).sum(1).max())

    def _unfinished(self, groups: Groups) -> Array:
        return np.isnan(groups.sums_GM)  # of a network that overflows, for the caller to see


class BTTRBeamSearch(NarrowingBeamSearch):
    """The best unfinished hypothesis counts if none is complete."""

    def _unfinished(self, groups: Groups) -> Array:
        return (np.arange(self.beam_size) == 0) & (groups.scores_GM == NEVER).all(1, keepdims=True)


def best_first(x_GC: Array) -> Array:
    """The indices that sort each row in descending order, stably, with NaN first."""
    return x_GC.shape[1] - 1 - x_GC[:, ::-1].argsort(axis=1, kind="stable")[:, ::-1]


def chosen(x_GC: Array, index_Gc: Array) -> Array:
    """The values of each group at these indices; `take_along_axis` takes three times as long."""
    return x_GC[np.arange(len(x_GC))[:, None], index_Gc]
