"""A dense block as one function against its layers one by one."""

import pytest
import torch
from torch import Tensor, nn

import models.dense_block
from models.densenet import DenseBlock
from models.layers import Dropout, filled_up


def block(dropout: float = 0.0) -> DenseBlock:
    torch.manual_seed(3)
    made = DenseBlock(channels=6, growth_rate=4, num_layers=3, dropout=dropout)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -0.5, 1.5)  # some ReLUs see the norm upside down
            nn.init.normal_(module.bias, std=0.3)
    return made.train()


def layer_by_layer(made: DenseBlock, x: Tensor) -> Tensor:
    for bottleneck in made:
        x = torch.cat((x, bottleneck(x, None)), dim=1)
    return x


def results(way, dtype: torch.dtype, momentum: float | None, dropout: float = 0.0) -> list[Tensor]:
    """Output, gradients and buffers after two batches."""
    made, found = block(dropout).to(dtype), []
    for norm in (module for module in made.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = momentum
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(3, 6, 5, 7, dtype=dtype, requires_grad=True)
        y = way(made, x)
        y.backward(torch.randn(y.shape, dtype=dtype))
        found += [y.detach(), x.grad]
    return found + [p.grad for p in made.parameters()] + list(made.buffers())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
def test_a_block_is_its_layers(dtype, momentum):
    as_one = results(lambda made, x: made(x, None), dtype, momentum)
    rounding = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(as_one, results(layer_by_layer, dtype, momentum), atol=rounding, rtol=rounding)


def test_the_comparison_notices_a_gradient_that_is_off(monkeypatch):
    right = models.dense_block.Normalized.backward
    monkeypatch.setattr(models.dense_block.Normalized, "backward", lambda self, g: right(self, g * (1 + 1e-4)))
    with pytest.raises(AssertionError):
        test_a_block_is_its_layers(torch.float64, 0.1)


def test_dropout_falls_on_both_ways_alike():
    """Both draw for the same elements in the same order; what is kept is scaled before it is dropped or after."""
    as_one = results(lambda made, x: made(x.to(memory_format=torch.channels_last), None), torch.float64, 0.1, 0.3)
    plain = results(
        lambda made, x: layer_by_layer(made, x.to(memory_format=torch.channels_last)), torch.float64, 0.1, 0.3
    )
    assert 0.2 < (as_one[0][:, 6:] == 0).double().mean() < 0.8
    torch.testing.assert_close(as_one, plain)


def test_only_training_without_a_map_of_the_padding_goes_the_quick_way(monkeypatch):
    called = []
    monkeypatch.setattr("models.densenet.grow", lambda x, layers: called.append(x) or x)
    made, x = block(0.1), torch.randn(2, 6, 4, 4)
    made(x, torch.ones(2, 1, 4, 4))
    made.eval()(x, None)
    for bottleneck in made.train():
        bottleneck.add_module("dropout", nn.Dropout(0.1))
    made(x, None)
    assert not called
    for bottleneck in made:
        bottleneck.add_module("dropout", Dropout(0.1))
    made(x, None)
    assert called


def test_bfloat16_under_autocast():
    made, x = block(), torch.randn(4, 6, 8, 8)
    exact = made(x, None)
    with torch.autocast("cpu", torch.bfloat16):
        y = made(x, None)
    assert y.dtype == torch.bfloat16
    assert 0 < (y.float() - exact).abs().max() < 0.2
    y.sum().backward()
    for parameter in made.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_batch_is_filled_up_to_a_multiple_of_the_threads(images):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(images, 2, 3, 4)
        filled = filled_up(x)
        assert len(filled) % 2 == 0 and torch.equal(filled[:images], x) and not filled[images:].any()
    finally:
        torch.set_num_threads(threads)
