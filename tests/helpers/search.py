"""The search of a network, in one call."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import Searcher, View, searcher
from hmerbench.models.network import Network


def search(
    model: Network,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions | None = None,
    other_sizes: Sequence[View] = (),
    others: Sequence[Network] = (),
) -> list[list[Hypothesis]]:
    """Of networks whose weights stay as they are."""
    read = _searcher((model, *others), torch.is_autocast_enabled("cpu"))
    return read([(images_b1HW, mask_bHW), *other_sizes], options or SearchOptions())


@lru_cache(maxsize=16)
def _searcher(networks: tuple[Network, ...], autocast: bool) -> Searcher:
    """One that was made before reads again: it has copied its networks, for the products of its `autocast`."""
    return searcher(*networks)
