"""Gradients by three tenths fewer kernels: what is done to each of some 250 weights by itself is done to all at once.

Autocast casts each weight where it is used, and its gradient back; autograd then adds that to those before it; and each
batch normalization counts its batch. On a GPU, such a small kernel takes about as long as a convolution of a small
batch. Here all weights are cast together before they are used, and their gradients together after. The numbers are the
same, as each is rounded once, as before: a weight of which a part is used twice, whose gradients would then be added
before they are cast back, or that is used in float32, is left to autocast.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hmerbench.benchmarks.training import foreach
from hmerbench.models.layers import BatchNorm2d


class AllAtOnce(nn.Module):
    """A network in training that casts its weights together. The first call finds out which autocast would cast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.cast: list[str] | None = None  # names of the parameters that are cast; None before the first call

    def forward(self, *inputs: Any) -> Tensor:
        parameters = dict(self.model.named_parameters())
        with counted_at_once(self.model):
            if self.cast is None:
                with Uses(parameters) as uses:
                    loss = self.model(*inputs)
                self.cast = [name for name in parameters if uses.cast_once(name)]
                return loss
            if not self.cast:
                return self.model(*inputs)
            weights: Any = Cast.apply(*(parameters[name] for name in self.cast))
            return functional_call(self.model, dict(zip(self.cast, weights, strict=True)), inputs)

    def add_gradients(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of the parameters, as `loss.backward()` does."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        alike: dict[bool, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                sum_, term = p.grad.squeeze(), gradient.squeeze()  # the strides of sides of 1 say nothing
                alike[sum_.stride() == term.stride()].append((sum_, term))
        for pairs in alike.values():  # one pair of other strides would make all of a list slow
            foreach.add_(*map(list, zip(*pairs, strict=True)))


class Cast(torch.autograd.Function):
    """Parameters in bfloat16, and their gradients in float32."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        return _copies(parameters, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _copies(gradients, torch.float32)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    foreach.copy_(copies, tensors)
    return tuple(copies)


class Uses(TorchDispatchMode):
    """Notes what a forward pass does with parameters: which parts it casts to bfloat16, and what else reads them."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {p.untyped_storage().data_ptr(): name for name, p in parameters.items()}
        self.casts: dict[str, list[tuple[int, int]]] = defaultdict(list)  # first and last place in memory of each
        self.otherwise: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            name = self.names.get(tensor.untyped_storage().data_ptr())
            if name is None or any(a.alias_info and not a.alias_info.is_write for a in operation._schema.arguments):
                continue  # a view is no use
            if operation._overloadpacket is torch.ops.aten._to_copy and kwargs.get("dtype") == torch.bfloat16:
                reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
                first = int(tensor.storage_offset())
                self.casts[name].append((first, first + int(reach)))
            else:
                self.otherwise.add(name)
        return operation(*args, **(kwargs or {}))

    def cast_once(self, name: str) -> bool:
        """Whether a parameter was used, always cast to bfloat16, and no part of it twice."""
        parts = sorted(self.casts[name])
        apart = all(last < first for (_, last), (first, _) in pairwise(parts))
        return bool(parts) and apart and name not in self.otherwise


@contextmanager
def counted_at_once(model: nn.Module) -> Iterator[None]:
    """Let all batch normalization that is in training count the batch of one forward pass together."""
    norms = [norm for norm in model.modules() if isinstance(norm, BatchNorm2d) and norm.training]
    counts = [norm.num_batches_tracked for norm in norms]
    for norm in norms:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, count in zip(norms, counts, strict=True):
            norm.num_batches_tracked = count
    if counts:
        foreach.add_(counts, 1)
