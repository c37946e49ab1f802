"""A dense block as one fused function against its layers one by one."""

import pytest
import torch
from torch import Tensor, nn

import hmerbench.models.densenet
from hmerbench.models.densenet import GROUP, DenseBlock
from hmerbench.models.layers import Dropout, pad_batch, random_bits, running


def block(dropout: float = 0.0) -> DenseBlock:
    torch.manual_seed(3)
    dense = DenseBlock(channels=6, growth_rate=4, num_layers=GROUP + 2, dropout=dropout)
    for module in dense.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -0.5, 1.5)  # some negative
            nn.init.normal_(module.bias, std=0.3)
    return dense.train()


def fused(dense: DenseBlock, x: Tensor) -> Tensor:
    return dense(x)


def layer_by_layer(dense: DenseBlock, x: Tensor) -> Tensor:
    for bottleneck in dense:
        x = torch.cat((x, bottleneck(x)), dim=1)
    return x


def results(
    forward, dtype: torch.dtype, momentum: float | None, dropout: float = 0.0, fixed: bool = False
) -> list[Tensor]:
    """Output, gradients and buffers after two batches; with `fixed`, of norms with constant statistics."""
    dense, tensors = block(dropout).to(dtype), []
    for norm in (module for module in dense.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = momentum
        if fixed:
            mean, var = running(norm.eval())
            nn.init.normal_(mean, std=0.5)
            nn.init.uniform_(var, 0.5, 2)
    for seed in (1, 2):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(3, 6, 5, 7, dtype=dtype, generator=draw).requires_grad_()
        y = forward(dense, x)
        y.backward(torch.randn(y.shape, dtype=dtype, generator=draw))
        tensors += [y.detach(), x.grad]
    return tensors + [p.grad for p in dense.parameters()] + list(dense.buffers())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("momentum", "fixed"), [(0.1, False), (0.0, False), (None, False), (0.1, True)])
def test_block_equals_its_layers(dtype, momentum, fixed):
    ours, expected = (results(forward, dtype, momentum, fixed=fixed) for forward in (fused, layer_by_layer))
    rounding = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(ours, expected, atol=rounding, rtol=rounding)
    if fixed:
        assert not any(buffer.any() for buffer in ours[-36:] if buffer.dtype == torch.int64), "batches were counted"
        free = results(fused, dtype, momentum)
        assert not torch.allclose(ours[0], free[0], atol=0.1), "each batch was normalized by itself"


@pytest.mark.parametrize("forward", [fused, layer_by_layer])
def test_a_single_cell_has_no_statistics(forward):
    """Its variance would be NaN, and stay in the running statistics for good."""
    dense = block()
    with pytest.raises(ValueError, match=r"more than (1|one) value per channel"):
        forward(dense, torch.randn(1, 6, 1, 1))
    assert all(buffer.isfinite().all() for buffer in dense.buffers())


@pytest.mark.parametrize("fixed", [False, True])
def test_comparison_notices_a_wrong_gradient(fixed, monkeypatch):
    backward = hmerbench.models.densenet.Normalized.backward
    monkeypatch.setattr(
        hmerbench.models.densenet.Normalized, "backward", lambda self, g: backward(self, g * (1 + 1e-4))
    )
    with pytest.raises(AssertionError):
        test_block_equals_its_layers(torch.float64, 0.1, fixed)


def test_block_equals_its_layers_with_dropout(monkeypatch):
    """Given the same masks; the fused function draws them in an order of its own, and scales before it drops."""

    def keep_mask(self: Dropout, x: Tensor, bits: object) -> Tensor:
        return (torch.randn(x.shape, generator=torch.Generator().manual_seed(x.shape[1])) > -0.5).to(torch.int8)

    monkeypatch.setattr(Dropout, "keep_mask", keep_mask)
    ours, expected = (results(forward, torch.float64, 0.1, dropout=0.3) for forward in (fused, layer_by_layer))
    assert 0.2 < (ours[0][:, 6:] == 0).double().mean() < 0.8
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_relu_and_dropout_in_one_pass(dtype, layout):
    x = torch.randn(2, 8, 64, 64).to(dtype).contiguous(memory_format=layout)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), torch.finfo(dtype).tiny, torch.finfo(dtype).max])
    x[0, 0, 0, :6] = special.to(dtype)
    drop, y = Dropout(0.3), x.clone(memory_format=torch.preserve_format)
    torch.manual_seed(5)
    kept = drop.keep_mask(y, random_bits())
    torch.manual_seed(5)
    drop.relu_drop_(y, random_bits())
    assert torch.equal(y, torch.where(kept.bool(), x.relu(), 0))
    assert kept.stride() == x.stride() and abs(kept.double().mean() - 0.7) < 0.01


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_is_not_lost(sign, dtype, fixed):
    """Or a training whose weights are no numbers any more would go on."""
    dense = block(0.3)
    for norm in (module for module in dense.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.train(not fixed)
    list(dense)[1].conv1.weight.data[0, 0] = torch.copysign(torch.tensor(torch.nan), torch.tensor(float(sign)))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        assert dense(torch.randn(2, 6, 5, 7)).isnan().any()


def test_only_training_with_our_dropout_is_fused(monkeypatch):
    called = []
    monkeypatch.setattr("hmerbench.models.densenet.grow", lambda x, layers: called.append(x) or x)
    dense, x = block(0.1), torch.randn(2, 6, 4, 4)
    dense.eval()(x)
    for bottleneck in dense.train():
        bottleneck.add_module("dropout", nn.Dropout(0.1))
    dense(x)
    assert not called
    for bottleneck in dense:
        bottleneck.add_module("dropout", Dropout(0.1))
    dense(x)
    assert called


def test_bfloat16_under_autocast():
    dense, x = block(), torch.randn(4, 6, 8, 8)
    exact = dense(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = dense(x)
    assert y.dtype == torch.bfloat16
    assert 0 < (y.float() - exact).abs().max() < 0.2
    y.sum().backward()
    for parameter in dense.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("images", [1, 2, 3])
def test_batches_are_padded_to_a_multiple_of_the_threads(images):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(images, 2, 3, 4)
        padded = pad_batch(x)
        assert len(padded) % 2 == 0 and torch.equal(padded[:images], x) and not padded[images:].any()
    finally:
        torch.set_num_threads(threads)
