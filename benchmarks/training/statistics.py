"""Running statistics of batch normalization: which batches they follow, and measuring them again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All batch normalizations of a network, in order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def momentum(norms: Sequence[_BatchNorm], value: float | None) -> Iterator[None]:
    """While this lasts, running statistics move by `value`: 0.0 keeps them, None makes them the mean of all batches."""
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = value
    try:
        yield
    finally:
        for norm, old in zip(norms, before, strict=True):
            norm.momentum = old


@contextmanager
def measured_again(model: nn.Module) -> Iterator[None]:
    """The batches that the network reads inside are all that its running statistics know afterwards; no dropout."""
    norms = batch_norms(model.eval())
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    with momentum(norms, None):
        yield
