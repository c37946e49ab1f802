"""Optimizers, the learning-rate schedule, and the moving average of the weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim.swa_utils import get_ema_multi_avg_fn

from hmerbench.benchmarks.config import Optimizer, Schedule
from hmerbench.benchmarks.training import foreach
from hmerbench.models.network import Network

# Muon zero-pads matrices to a multiple of this many columns, to process many of the same shape at once
COLUMN_MULTIPLE = 128
FEW_ROWS, FEW_COLUMNS = 128, 512  # of recorded updates: rows are a multiple, columns a power of two of at least that


def make_optimizer(
    model: Network, settings: Optimizer, bf16: bool = True, rate_on: torch.device | None = None
) -> optim.Optimizer:
    """SGD or Adadelta as in the programs of CoMER's and of BTTR's authors, AdamW or Muon; the latter two do not decay
    norms and biases, and have a beta2 of 0.99. Muon's matrix products run in bfloat16, without `bf16` in float32.

    With `rate_on`, the learning rate is a tensor on that device, so that steps can be recorded.
    """
    parameters = dict(model.named_parameters())
    rate = settings.lr if rate_on is None else torch.tensor(settings.lr, device=rate_on)
    if settings.name == "sgd":
        return optim.SGD(parameters.values(), rate, settings.momentum, weight_decay=settings.weight_decay, fused=True)
    recorded: dict[str, Any] = {"capturable": True} if rate_on is not None and rate_on.type == "cuda" else {}
    if settings.name == "adadelta":
        return optim.Adadelta(
            parameters.values(), rate, settings.momentum, weight_decay=settings.weight_decay, **recorded
        )
    # each row of embedding and classifier belongs to one word: these are not linear maps between spaces
    words = [parameters.pop(name) for name in model.word_rows]
    matrices = {name: p for name, p in parameters.items() if p.ndim > 1}
    vectors = [p for p in parameters.values() if p.ndim <= 1]
    packed = [name.endswith(model.triples) for name in matrices]
    groups = [
        {"params": list(matrices.values()), "orthogonal": settings.name == "muon", "packed": packed},
        {"params": words, "orthogonal": False},
        {"params": vectors, "orthogonal": False, "weight_decay": 0.0},
    ]
    betas = settings.momentum, 0.99
    optimizer = Muon(groups, rate, betas, weight_decay=settings.weight_decay, fused=True, **recorded)
    optimizer.products = torch.bfloat16 if bf16 else torch.float32
    return optimizer


class Muon(optim.AdamW):
    """AdamW, but in groups marked `orthogonal` the momentum of each matrix is made nearly orthogonal.

    Jordan et al., 2024, kellerjordan.github.io/posts/muon, scaled to the size of AdamW's steps (Liu et al.,
    arXiv:2502.16982, sec. 2.2), so that one learning rate serves both. Unlike torch.optim.Muon, it takes convolution
    kernels, too, as matrices with a row per output channel, and parameters that hold three matrices, for which such a
    group's list `packed` is True.
    """

    products = torch.bfloat16  # type of the matrix products that make a momentum orthogonal

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters that have a gradient; gradients keep their memory."""
        updated = [p for group in self.param_groups if group["orthogonal"] for p in self._orthogonal_step(group)]
        gradients = [p.grad for p in updated]
        for p in updated:
            p.grad = None  # AdamW skips these
        super().step()
        for p, gradient in zip(updated, gradients, strict=True):
            p.grad = gradient

    def _orthogonal_step(self, group: dict[str, Any]) -> list[Tensor]:
        """Update the parameters of a group that have a gradient, and return them."""
        momentum, rate = group["betas"][0], group["lr"]
        matrices = {p: 3 if packed else 1 for p, packed in zip(group["params"], group["packed"], strict=True)}
        parameters = [p for p in matrices if p.grad is not None]
        for p in parameters:
            if not self.state[p]:  # with a step, which AdamW expects in every state
                self.state[p] = {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(p)}
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages = [self.state[p]["momentum_buffer"] for p in parameters]
        foreach.lerp_(averages, gradients, 1 - momentum)
        updates = foreach.lerp(gradients, averages, momentum)  # Nesterov's
        foreach.mul_(parameters, 1 - rate * group["weight_decay"])
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for p, update in zip(parameters, updates, strict=True):
            for part, matrix in zip(p.chunk(matrices[p]), update.flatten(1).chunk(matrices[p]), strict=True):
                by_shape.setdefault(_padded(*matrix.shape, few=isinstance(rate, Tensor)), []).append((part, matrix))
        for shape, pairs in by_shape.items():
            parts, changes = zip(*pairs, strict=True)
            stack = changes[0].new_zeros(len(pairs), *shape, dtype=self.products)
            foreach.copy_([row[: len(m), : m.shape[1]] for row, m in zip(stack, changes, strict=True)], changes)
            directions = orthogonal(stack).float()
            _descend(parts, directions, rate, [0.2 * math.sqrt(max(matrix.shape)) for matrix in changes])
        return parameters


def _padded(rows: int, columns: int, few: bool) -> tuple[int, int]:
    """The shape of the stack in which a matrix is made orthogonal, which its zeros do not change; of `few` shapes for
    recorded updates, as there each product of a stack takes as long as of a larger one."""
    if few:
        return -(-rows // FEW_ROWS) * FEW_ROWS, max(FEW_COLUMNS, 1 << (columns - 1).bit_length())
    return rows, -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


def _descend(parts: Sequence[Tensor], directions: Tensor, rate: float | Tensor, sizes: Sequence[float]) -> None:
    """Subtract from each part, a matrix or a convolution's kernel, rate * size times its direction."""
    pairs = zip(parts, directions, strict=True)
    steps = [matrix[: len(part), : part[0].numel()].reshape(part.shape) for part, matrix in pairs]
    if isinstance(rate, Tensor):
        foreach.mul_(steps, rate)
        foreach.mul_(steps, sizes)
        foreach.sub_(parts, steps)
    else:
        for part, step, size in zip(parts, steps, sizes, strict=True):
            part.sub_(step, alpha=rate * size)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [n, R, C] with singular values moved close to 1 (0.7 to 1.2) by five Newton-Schulz steps; zeros stay."""
    x = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    x = x / x.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).to(x.dtype)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x if matrices.shape[1] <= matrices.shape[2] else x.mT


def set_rate(optimizer: optim.Optimizer, schedule: Schedule, peak: float, progress: float) -> float:
    """Set and return the learning rate of a step; `progress` runs from 0 to 1 over the whole training.

    `peak` is the rate after the warmup, to which it rises evenly from peak / (1 + 1000 warmup); of a plateau schedule,
    the current one.
    """
    if progress < schedule.warmup:
        rate = peak * (progress + 1e-3) / (schedule.warmup + 1e-3)
    else:
        rate = peak if schedule.name == "plateau" else peak * 0.5 * (1 + math.cos(math.pi * progress))
    assign_rate(optimizer, rate)
    return rate


def assign_rate(optimizer: optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups; one that is a tensor keeps its address."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def average_decay(decay: float, step: int) -> float:
    """Decay of the moving average of the weights after `step` steps: it decays faster at first."""
    return min(decay, (1 + step) / (10 + step))


def update_average(average: Mapping[str, Tensor], model: nn.Module, decay: float | Tensor) -> None:
    if not average:
        return
    averages, weights = list(average.values()), [parameter.detach() for parameter in model.parameters()]
    if isinstance(decay, Tensor):  # which torch's function does not take
        differences = foreach.sub(weights, averages)
        foreach.mul_(differences, 1 - decay)
        foreach.add_(averages, differences)
    else:
        get_ema_multi_avg_fn(decay)(averages, weights, None)
