"""What the searches of networks have in common: they read images, most of them word by word.

Names carry shapes: G groups of M beams, N = G * M hypotheses, T steps, V classes (beam_search.py).
"""

import copy
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hmerbench.models.inference.beam_search import Array, BeamSearch
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.network import Network

AnyNetwork = TypeVar("AnyNetwork", bound=Network)
View = tuple[Tensor, Tensor]  # images [b, 1, H, W] and mask [b, H, W] (True = padding), as for `Network`


class Searcher(Protocol):
    """Frozen copies of networks in evaluation mode that read images, any number of batches.

    If its network can be exported, its class names in `rules` the exported reader's search (a key of
    SEARCHES in benchmarks/recognition/onnx_reader.py).
    """

    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first.

        Several views are the same images at other sizes, which are read together: the log-probability of a word is its
        mean over them and over the networks. Raises ValueError for options that the search does not have.
        """
        ...


def searcher(network: Network, *others: Network) -> Searcher:
    """The search of a network, on its device; `others` read together with it, by the rules of its search.

    Large products run in the type of an autocast around this call and every reading. The search does not follow later
    changes of the weights. Raises ValueError for a network in training mode, and for networks that cannot read
    together.
    """
    alone = [each.settings.network for each in (network, *others) if not each.settings.together]
    if others and alone:
        raise ValueError(f"{alone[0]} reads alone; only networks of CoMER's kind read together")
    return resolve_name(network.settings.searcher)(network, *others)


def frozen(model: AnyNetwork) -> AnyNetwork:
    """A copy of a network, which does not follow later changes of the weights. Raises ValueError in training mode."""
    if model.training:
        raise ValueError("a network in training mode drops out at random; call model.eval() before it reads")
    return copy.deepcopy(model)


# ----------------------------------------------------------------------------------------------------- word by word


class StepDecoder(Protocol):
    """All that a beam search needs of a network: `beam_search.Decoder` in PyTorch, but for the choice of the best."""

    @property
    def full(self) -> bool: ...
    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] of the next token after one more token per beam; the first is the start token."""
        ...

    def reorder(self, parents_GM: Tensor) -> None: ...
    def compact(self, live_G: Tensor) -> None: ...


class _Decoders:
    """Several that read the same images, at several sizes or with several networks, as one `beam_search.Decoder`."""

    def __init__(self, decoders: Sequence[StepDecoder], device: torch.device, options: SearchOptions) -> None:
        self.decoders, self.device, self.options = decoders, device, options

    @property
    def full(self) -> bool:
        return self.decoders[0].full

    def best(self, tokens_GM: Array, sums_GM: Array, count: int) -> tuple[Array, Array, Array]:
        tokens, sums = self._tensor(tokens_GM), self._tensor(sums_GM)
        logp_GMV = log_probabilities((decoder.feed(tokens) for decoder in self.decoders), self.options)
        best_GC, index_GC = (sums[..., None] + logp_GMV).flatten(1).topk(count)
        index, V = index_GC.numpy(force=True), logp_GMV.shape[-1]  # the only time a step waits for the device
        return best_GC.numpy(force=True), index // V, index % V

    def reorder(self, parents_GM: Array) -> None:
        for decoder in self.decoders:
            decoder.reorder(self._tensor(parents_GM))

    def compact(self, live_G: Array) -> None:
        for decoder in self.decoders:
            decoder.compact(self._tensor(live_G))

    def _tensor(self, x: Array) -> Tensor:
        return torch.from_numpy(x).to(self.device)


def beam_search(
    search: type[BeamSearch], decoders: Sequence[StepDecoder], start_G: Tensor, end_G: Tensor, options: SearchOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [N, T], lengths [N] and scores [N] of the M best hypotheses of each group, as in `Found`. Of several
    decoders of the same images, a token's log-probability is its mean over them."""
    found = search(
        _Decoders(decoders, start_G.device, options),
        start_G.numpy(force=True),
        end_G.numpy(force=True),
        beam_size=options.beam_size,
        max_len=options.max_len,
        alpha=options.alpha,
        early_stopping=options.early_stopping,
    ).run()
    columns = (found.tokens_NT, found.length_N, found.score_N)
    tokens_NT, length_N, score_N = (torch.from_numpy(column).to(start_G.device) for column in columns)
    return tokens_NT, length_N, score_N


def log_probabilities(logits: Iterable[Tensor], options: SearchOptions) -> Tensor:
    """Log-probabilities [..., V] of the next token: the mean over all decoders, given the logits of each."""
    return torch.stack([(logits_V / options.temperature).log_softmax(-1) for logits_V in logits]).mean(0)
