"""Muon: like torch's own on matrices, and on parameters that torch's does not accept."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from hmerbench.benchmarks.config import Optimizer, Schedule
from hmerbench.benchmarks.training.optimizer import Muon, average_decay, make_optimizer, orthogonal, set_rate
from hmerbench.models.comer import CoMER
from hmerbench.models.settings import CoMERSettings

RATE, DECAY, MOMENTUM = 0.02, 0.1, 0.9


def ours(*parameters: nn.Parameter, packed: Sequence[nn.Parameter] = ()) -> Muon:
    marks = [any(p is one for one in packed) for p in parameters]
    group = {"params": parameters, "orthogonal": True, "packed": marks}
    return Muon([group], RATE, (MOMENTUM, 0.99), weight_decay=DECAY, fused=True)


def theirs(*parameters: nn.Parameter) -> torch.optim.Muon:
    return torch.optim.Muon(parameters, RATE, DECAY, MOMENTUM, adjust_lr_fn="match_rms_adamw")


def matrices(seed: int, *shapes: Sequence[int]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def take_steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    for seed in range(3):
        for p, gradient in zip(parameters, matrices(seed, *(p.shape for p in parameters)), strict=True):
            p.grad = gradient.detach()
        optimizer.step()


def test_matrices_are_updated_as_by_torchs_muon():
    """Up to the precision of bfloat16 products: 3 steps of at most 0.02 x 0.2 x 16 change entries by up to 0.1."""
    shapes = [(64, 64), (48, 200), (200, 48), (64, 64), (16, 130)]
    actual, expected, initial = (matrices(9, *shapes) for _ in range(3))
    take_steps(ours(*actual), actual)
    take_steps(theirs(*expected), expected)
    for a, b, start in zip(actual, expected, initial, strict=True):
        assert (a - b).norm() < 0.02 * (b - start).norm()


def test_products_are_exact_without_bf16():
    """Then directions are those of float64 matrices; in bf16, they differ by a hundred times as much."""
    differences = []
    for bf16 in (False, True):
        network = CoMER(CoMERSettings(d_model=32, nhead=2, growth_rate=4, num_layers=1, dim_feedforward=32))
        optimizer = make_optimizer(network, Optimizer(name="muon", weight_decay=0), bf16)
        weight = network.decoder.model.layers[0].linear1.weight
        before, gradient = weight.detach().clone(), torch.randn(weight.shape, generator=torch.manual_seed(1))
        weight.grad = gradient
        optimizer.step()
        expected = 0.08 * 0.2 * 32**0.5 * orthogonal(gradient[None].double())[0]
        differences.append(float((before - weight.detach() - expected).norm() / expected.norm()))
    assert differences[0] < 1e-5 < 1e-3 < differences[1]


def test_packed_projections_are_three_matrices_and_kernels_are_one():
    [packed, kernels] = matrices(9, (96, 32), (24, 90))
    three = [nn.Parameter(part.detach().clone()) for part in packed.chunk(3)]
    flat = [nn.Parameter(kernels.detach().clone())]
    kernels = nn.Parameter(kernels.detach().view(24, 10, 3, 3).to(memory_format=torch.channels_last))
    mine, other = ours(packed, kernels, packed=[packed]), theirs(*three, *flat)
    [gradient, change] = matrices(1, (96, 32), (24, 90))
    packed.grad, kernels.grad = gradient.detach(), change.detach().view(24, 10, 3, 3)
    for p, part in zip([*three, *flat], [*gradient.detach().chunk(3), change.detach()], strict=True):
        p.grad = part.clone()
    mine.step()
    other.step()
    assert torch.allclose(packed, torch.cat([*three]), atol=2e-4)
    assert torch.allclose(kernels.flatten(1), flat[0], atol=2e-4)
    assert packed.grad is not None  # a recorded CUDA graph needs gradients to keep their memory


@pytest.mark.parametrize("shape", [(3, 30, 100), (2, 100, 30), (1, 5, 5)])
def test_orthogonal(shape):
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.manual_seed(1))))
    assert values.min() > 0.6 and values.max() < 1.3


def test_adamw_updates_words_norms_and_biases():
    network = CoMER(CoMERSettings(d_model=32, nhead=2, growth_rate=4, num_layers=1, dim_feedforward=32))
    [matrices, words, vectors] = make_optimizer(network, Optimizer(name="muon")).param_groups
    assert matrices["orthogonal"] and not words["orthogonal"] and not vectors["orthogonal"]
    names = {name for name, p in network.named_parameters() if any(p is word for word in words["params"])}
    assert names == {"decoder.word_embed.0.weight", "decoder.proj.weight"}
    assert vectors["weight_decay"] == 0 and all(p.ndim == 1 for p in vectors["params"])
    assert sum(len(group["params"]) for group in (matrices, words, vectors)) == len(list(network.parameters()))


def test_attention_alone_is_packed():
    """Not a layer of the same shape, three times as wide as the network."""
    network = CoMER(CoMERSettings(d_model=32, nhead=2, growth_rate=4, num_layers=1, dim_feedforward=96))
    group = make_optimizer(network, Optimizer(name="muon")).param_groups[0]
    packed = [p for p, three in zip(group["params"], group["packed"], strict=True) if three]
    names = [name for name, p in network.named_parameters() if any(p is one for one in packed)]
    assert len(names) == 6 and all(name.endswith("attn.in_proj_weight") for name in names)


def test_a_plateau_begins_at_the_full_rate_after_its_warmup():
    optimizer = torch.optim.SGD(matrices(1, (2, 2)), 0.08)
    schedule = Schedule(name="plateau", warmup=0.02)
    rates = [set_rate(optimizer, schedule, 0.08, step / 100) for step in range(100)]
    assert rates[0] < rates[1] < 0.08 and rates[2:] == [0.08] * 98 and optimizer.param_groups[0]["lr"] == 0.08


def test_an_average_follows_faster_at_first():
    """As TensorFlow's ExponentialMovingAverage with the number of updates."""
    assert [average_decay(0.95, step) for step in (0, 8, 90, 1000)] == pytest.approx([0.1, 0.5, 0.91, 0.95])
