"""The search of a network, in one call."""

from collections.abc import Sequence

from torch import Tensor

from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.inference.searcher import View, searcher
from hmerbench.models.network import Network


def search(
    model: Network,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions | None = None,
    other_sizes: Sequence[View] = (),
    others: Sequence[Network] = (),
) -> list[list[Hypothesis]]:
    return searcher(model, *others)([(images_b1HW, mask_bHW), *other_sizes], options or SearchOptions())
