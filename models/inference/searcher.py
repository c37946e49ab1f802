"""What every network's search has in common: it reads images."""

import copy
from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.network import Network, named

AnyNetwork = TypeVar("AnyNetwork", bound=Network)
View = tuple[Tensor, Tensor]  # images [b, 1, H, W] and mask [b, H, W] (True = padding), as for `Network`


class Searcher(Protocol):
    """Frozen copies of networks in evaluation mode that read images, any number of batches.

    The class of one whose network can be exported has as `rules` what the exported reader calls this search (a key of
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
    return named(network.settings.searcher)(network, *others)


def frozen(model: AnyNetwork) -> AnyNetwork:
    """A copy of a network, which does not follow later changes of the weights. Raises ValueError in training mode."""
    if model.training:
        raise ValueError("a network in training mode drops out at random; call model.eval() before it reads")
    return copy.deepcopy(model)
