"""The optimizer, its learning rate, and the average of the weights."""

import math
from collections.abc import Mapping

from torch import Tensor, nn, optim
from torch.optim.swa_utils import get_ema_multi_avg_fn

from benchmarks.config import Optimizer, Schedule


def make_optimizer(model: nn.Module, settings: Optimizer) -> optim.Optimizer:
    """SGD as the authors have it, or AdamW, which leaves norms and biases undecayed."""
    parameters = list(model.parameters())
    if settings.name == "sgd":
        return optim.SGD(parameters, settings.lr, settings.momentum, weight_decay=settings.weight_decay, fused=True)
    decayed = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return optim.AdamW(groups, settings.lr, (settings.momentum, 0.99), weight_decay=settings.weight_decay, fused=True)


def set_rate(optimizer: optim.Optimizer, schedule: Schedule, peak: float, progress: float) -> float:
    """Gives the optimizer the learning rate of a step; `progress` runs from 0 to 1 over the whole training.

    A plateau schedule keeps the rate it has come to, but for the warmup.
    """
    if schedule.name == "plateau":
        rate = optimizer.param_groups[0]["lr"]
    else:
        rate = peak * 0.5 * (1 + math.cos(math.pi * progress))
    if progress < schedule.warmup:
        rate = peak * (progress + 1e-3) / (schedule.warmup + 1e-3)
    if schedule.name != "plateau" or progress < schedule.warmup:
        for group in optimizer.param_groups:
            group["lr"] = rate
    return rate


def update_average(average: Mapping[str, Tensor], model: nn.Module, decay: float, step: int) -> None:
    """Moves the exponential average towards the weights after `step` steps; it is quicker at first."""
    if average:
        decay = min(decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(average.values()), list(model.parameters()), None)
