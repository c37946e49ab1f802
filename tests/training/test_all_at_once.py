"""Weights that are cast together: the same gradients, bit for bit, by fewer operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.performance.bench import with_torch_dropout
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.training.all_at_once import AllAtOnce
from hmerbench.benchmarks.training.cuda_graphs import Replays
from hmerbench.benchmarks.training.distributed import Team
from hmerbench.benchmarks.training.learner import Learner
from tests.helpers.recording import GRAPHS, rehearsed
from tests.helpers.tiny import tiny_config


@contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        yield


class Uses(nn.Module):
    """Weights of all kinds of use: once, in parts, twice, in overlapping parts, in float32, in both types, and not."""

    def __init__(self) -> None:
        super().__init__()
        names = "once", "parts", "twice", "overlapping", "exact", "both", "unused"
        self.of = nn.ParameterDict({name: nn.Parameter(torch.randn(6, 6)) for name in names})

    def forward(self, x: Tensor) -> Tensor:
        of, exact = self.of, self.of["exact"].sum(0) + self.of["both"].sum(0)
        for part in (of["once"], of["parts"][:3], of["parts"][3:], of["overlapping"][:4], of["overlapping"][3:]):
            x = x + F.linear(x, part).sum(-1, keepdim=True) / 6
        for weight in (of["twice"], of["twice"], of["both"]):
            x = x + F.linear(x, weight) / 6
        return (x + exact).square().mean()


def test_which_weights_are_cast_together():
    torch.manual_seed(1)
    model, x = Uses(), torch.randn(5, 6)
    together = AllAtOnce(model)

    def gradients(loss: Callable[[Tensor], Tensor], add: Callable[[Tensor], None]) -> list[Tensor | None]:
        model.zero_grad(set_to_none=True)
        with autocast():
            value = loss(x)
        add(value)
        return [value.detach(), *(p.grad for p in model.parameters())]

    expected = gradients(model, lambda loss: loss.backward())
    for _ in range(2):  # the first call only looks
        torch.testing.assert_close(gradients(together, together.add_gradients), expected, rtol=0, atol=0)
    assert together.cast == ["of.once", "of.parts"]


class Counted(TorchDispatchMode):
    """Counts operations by name, without views and memory that is not written."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name, views = operation._overloadpacket.__name__, (a.alias_info for a in operation._schema.arguments)
        if "empty" not in name and not any(view and not view.is_write for view in views):
            self.counts[name] = self.counts.get(name, 0) + 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_learner_that_records_adds_the_same_gradients(archive, fixed):
    """And running statistics and counts of batches, with far fewer casts and sums."""
    settings = GRAPHS | {"training": GRAPHS["training"] | {"bf16": True}}
    generator, results, counts = torch.Generator().manual_seed(7), [], []
    images = torch.randint(256, (4, 1, 32, 48), dtype=torch.uint8, generator=generator)
    for together in (False, True):
        learner = Learner(tiny_config(archive, settings), Team(0, 1, torch.device("cpu")))
        learner.replays, learner.bf16 = Replays(rehearsed), True
        learner.train(fixed)
        targets = learner.model.targets([["x", "+", "1"]] * 4)
        inputs = Inputs(images, torch.zeros(4, 32, 48, dtype=torch.bool), targets)
        for step in range(3):
            torch.manual_seed(step)
            with Counted() as counted:
                if together:
                    learner._gradients(learner.model, inputs)
                else:
                    (learner._loss(learner.model, inputs) / learner.share).backward()
        results.append([learner.model.state_dict(), {name: p.grad for name, p in learner.model.named_parameters()}])
        counts.append(counted.counts)
        assert bool(learner.at_once.cast) == together
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    each, at_once = counts
    assert at_once["_to_copy"] < 0.6 * each["_to_copy"] and at_once["add_"] < 0.5 * each["add_"]


def test_a_micro_batch_of_large_is_three_tenths_fewer_operations():
    """Each of which is a kernel on a GPU, or several."""
    learner, counts = Learner(resolve("comer-fusion", "large", 7), Team(0, 1, torch.device("cpu"))), []
    learner.bf16, learner.layout, learner.replays = True, torch.channels_last, Replays(rehearsed)
    learner.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with_torch_dropout(learner.model)
    learner.train(fixed=False)
    targets = learner.model.targets([["x", "+", "1"]] * 2)
    inputs = Inputs(torch.zeros(2, 1, 32, 32, dtype=torch.uint8), torch.zeros(2, 32, 32, dtype=torch.bool), targets)
    for together in (False, False, True, True):  # the first time, some are different
        with Counted() as counted:
            if together:
                learner._gradients(learner.model, inputs)
            else:
                (learner._loss(learner.model, inputs) / learner.share).backward()
        counts.append(sum(counted.counts.values()))
    _, each, _, at_once = counts
    assert round(at_once / each, 1) == 0.7, counts
