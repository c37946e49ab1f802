"""What one training step and one search are made of, counted operator by operator and without computing a step.

A training step runs on fake tensors, which have shapes but no numbers, so a count takes a second whatever the sizes;
it takes the way of a GPU (one operator a dropout). A view or an allocation is no operator here, as it starts no kernel;
some operators start several kernels, so `launches` is the least there can be. `byte` is all that operators read and
write, each by itself (no fusion, no cache). `least` is what no program that keeps the same activations can avoid: they
are written once and read once, parameters are read in both passes, gradients written, the optimizer's state updated.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.config import Config, Training
from models import CoMER, SearchOptions, joint_search
from models.layers import Dropout
from models.vocab import EOS, PAD, SOS

KINDS = ("launches", "flop", "byte", "least")
STEP = ("batch", "encoder forward", "decoder forward", "decoder backward", "encoder backward")  # of a micro-batch
FREE = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}
BLIND = {"copy_", "fill_", "zero_", "random_"}  # do not read what they write to

Costs = dict[str, np.ndarray]  # part -> float [4], in the order of KINDS
Mark = Callable[[str], None]


class Counter(TorchDispatchMode):
    """Adds up every operator that is dispatched while it is active, under the name of the current `part`."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: Costs = defaultdict(lambda: np.zeros(len(KINDS)))
        self.part = ""

    def mark(self, part: str) -> None:
        self.part = part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, returns = func._schema.name.removeprefix("aten::"), func._schema.returns
        view = bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)
        if func.namespace != "aten" or name in FREE or view:
            return out
        written = _written(func._schema, args, kwargs)
        fresh = [] if any(r.alias_info for r in returns) else _tensors(out)
        if not fresh and not written:
            return out  # asks, does nothing
        read = _tensors((args, kwargs))
        if name in BLIND:
            read = read[1:]
        count = flop_registry.get(func._overloadpacket)
        flop = count(*args, **kwargs, out_val=out) if count else 0
        self.costs[self.part][:3] += 1, flop, sum(map(size, [*read, *written, *fresh]))
        return out


def _written(schema: Any, args: Any, kwargs: Any) -> list[Tensor]:
    named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    return _tensors([named.get(a.name) for a in schema.arguments if a.alias_info and a.alias_info.is_write])


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def size(tensor: Tensor) -> int:
    """Bytes of the elements that are really there: a dimension that was expanded has one."""
    sides = (side for side, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sides) * tensor.element_size()


# --------------------------------------------------------------------------------------------- a training step


def micro_step(
    model: CoMER,
    training: Training,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    inputs_BT: Tensor,
    outputs_BT: Tensor,
    mark: Mark = lambda part: None,
) -> Tensor:
    """Forward and backward of one micro-batch as in training (uint8 images in, loss out), telling where it is."""
    mark("batch")
    images_b1HW = images_b1HW.float() / 255
    if training.bf16:
        images_b1HW = images_b1HW.contiguous(memory_format=torch.channels_last)
    mark("encoder forward")
    with torch.autocast("cpu", torch.bfloat16, enabled=training.bf16):
        features, mask_bhw = model.encode(images_b1HW, mask_bHW)
    cut = features.detach().requires_grad_()
    mark("decoder forward")
    with torch.autocast("cpu", torch.bfloat16, enabled=training.bf16):
        logits = model.decode(cut, mask_bhw, inputs_BT)
    smoothing = training.label_smoothing
    loss = F.cross_entropy(
        logits.float().flatten(0, 1), outputs_BT.flatten(), ignore_index=PAD, label_smoothing=smoothing
    )
    mark("decoder backward")
    loss.backward()
    mark("encoder backward")
    features.backward(cut.grad)
    return loss.detach()


class StepCounter:
    """Counts a micro-batch of any shape. `device_way` False counts what a CPU does (its own dropout)."""

    def __init__(self, config: Config, device_way: bool = True) -> None:
        self.training, model = config.training, CoMER(config.model).train()
        if device_way:
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, Dropout):
                        setattr(module, name, DeviceDropout(child.p))
        self.parameters = {
            part: sum(size(p) for p in child.parameters())
            for part, child in (("encoder", model.encoder), ("decoder", model.decoder))
        }
        self.model, self.fake = model, FakeTensorMode()
        with self.fake:
            for module in model.modules():
                for name, p in module._parameters.items():
                    if p is not None:
                        module._parameters[name] = nn.Parameter(torch.empty(p.shape))
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)

    def __call__(self, b: int, height: int, width: int, steps: int) -> Costs:
        """The cost of every part for b images of height x width pixels and labels of `steps` steps, start included."""
        with self.fake, Counter() as counter, kept_for_backward(self.model, counter) as kept:
            images = torch.empty(b, 1, height, width, dtype=torch.uint8)
            mask, ids = torch.empty(b, height, width, dtype=torch.bool), torch.empty(2 * b, steps, dtype=torch.long)
            micro_step(self.model, self.training, images, mask, ids, ids, counter.mark)
            self.model.zero_grad(set_to_none=True)
        costs = {part: counter.costs[part] for part in STEP}
        costs["batch"][3] = costs["batch"][2]
        for part, parameters in self.parameters.items():
            costs[f"{part} forward"][3] = kept[f"{part} forward"] + parameters
            costs[f"{part} backward"][3] = kept[f"{part} forward"] + 2 * parameters
        return costs


class DeviceDropout(nn.Module):
    """Dropout as the one operator it is on a GPU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.p, True)[0] if self.p else x


@contextmanager
def kept_for_backward(model: nn.Module, counter: Counter) -> Iterator[dict[str, int]]:
    """Bytes of the activations that wait for the backward pass, by the part that left them there."""
    kept: dict[str, int] = defaultdict(int)
    known = {p.untyped_storage()._cdata: p.untyped_storage() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known[storage._cdata] = storage  # held, so that no other takes its place in memory
            kept[counter.part] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def optimizer_cost(config: Config) -> np.ndarray:
    """One optimizer step: clipping, update, averaged weights. Done for real, on gradients of 1."""
    from benchmarks.train import Trainer

    model, o = CoMER(config.model), config.training.optimizer
    parameters = list(model.parameters())
    optimizer = Trainer._optimizer(_Stand(config, model))  # pyright: ignore[reportArgumentType]
    average = [p.detach().clone() for p in parameters] if config.training.average else []
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()  # makes its state
    with torch.no_grad(), Counter() as counter:
        if o.clip:
            nn.utils.clip_grad_norm_(parameters, o.clip, foreach=True)
        optimizer.step()
        if average:
            get_ema_multi_avg_fn(config.training.average)(average, [*model.parameters()], None)  # pyright: ignore[reportArgumentType]
    state = sum(size(v) for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor) and v.ndim)
    weights = sum(map(size, parameters))
    cost = counter.costs[""]
    cost[3] = 3 * weights + 2 * state + 2 * sum(map(size, average))  # gradients read; the others read and written
    return cost


class _Stand:
    """What of a trainer its optimizer is made from."""

    def __init__(self, config: Config, model: CoMER) -> None:
        self.config, self.model = config, model


# -------------------------------------------------------------------------------------------------- a search


class SearchCounter:
    """Counts a joint search, done for real by random weights that know no end."""

    def __init__(self, config: Config) -> None:
        torch.manual_seed(7)
        self.search, self.model = config.search, CoMER(config.model).eval()
        with torch.no_grad():
            assert self.model.decoder.proj.bias is not None
            self.model.decoder.proj.bias[[SOS, EOS]] = -1e3

    def __call__(self, b: int, height: int, width: int, steps: int) -> np.ndarray:
        """The cost for b images of height x width pixels and hypotheses of `steps` steps."""
        options = SearchOptions(self.search.beam_size, steps + 1, self.search.alpha, direction=self.search.direction)
        images, mask = torch.rand(b, 1, height, width), torch.zeros(b, height, width, dtype=torch.bool)
        mask[:, :, -1] = True  # padding takes operators of its own
        with torch.autocast("cpu", torch.bfloat16, enabled=self.search.bf16), Counter() as counter:
            joint_search(self.model, images, mask, options)
        cost = counter.costs[""]
        cost[3] = cost[2]
        return cost
