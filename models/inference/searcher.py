"""What every network's search has in common: it reads images."""

import copy
from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from models.inference.options import Hypothesis, SearchOptions
from models.network import Network, load

AnyNetwork = TypeVar("AnyNetwork", bound=Network)
View = tuple[Tensor, Tensor]  # images [b, 1, H, W] and mask [b, H, W] (True = padding), as for `Network`


class Searcher(Protocol):
    """A frozen copy of a network in evaluation mode that reads images, any number of batches."""

    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first.

        Several views are the same images at other sizes, which are read together: the log-probability of a word is its
        mean over them. Raises ValueError for options that the network's search does not have.
        """
        ...


def searcher(network: Network) -> Searcher:
    """The search of a network, on its device. Large products run in the type of an autocast around this call.

    It does not follow later changes of the weights. Raises ValueError for a network in training mode.
    """
    return load(network.settings.searcher)(network)


def frozen(model: AnyNetwork) -> AnyNetwork:
    """A copy of a network, which does not follow later changes of the weights. Raises ValueError in training mode."""
    if model.training:
        raise ValueError("a network in training mode drops out at random; call model.eval() before it reads")
    return copy.deepcopy(model)
