"""Running statistics of batch normalization: control of their updates, and recalibration."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All batch normalization layers of a network, in order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def running(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Running means and variances, each [channels]."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var


@contextmanager
def momentum(norms: Sequence[_BatchNorm], value: float | None) -> Iterator[None]:
    """Set the momentum of running statistics inside: 0.0 freezes them, None averages over all batches."""
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = value
    try:
        yield
    finally:
        for norm, old in zip(norms, before, strict=True):
            norm.momentum = old


@contextmanager
def recalibrated(model: nn.Module) -> Iterator[None]:
    """Reset the running statistics and measure them on the batches that the network reads inside, without dropout."""
    norms = batch_norms(model.eval())
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    with momentum(norms, None):
        yield
