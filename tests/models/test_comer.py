"""Properties of the network that hold for any weights."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import MaskedBatchNorm
from hmerbench.models.decoder import Trace, bidirectional_targets
from hmerbench.models.layers import Conv2d, Dropout, pointwise, random_bits
from hmerbench.models.settings import CoMERSettings
from hmerbench.models.vocab import Vocabulary
from tests.helpers.networks import IMAGES, SMALL, padded, small

LABELS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]


@pytest.mark.parametrize(
    ("cross", "self_", "expected"),
    [(True, True, 6_389_041), (True, False, 6_382_641), (False, True, 6_382_641), (False, False, 6_375_937)],
)
def test_parameter_counts_are_the_authors(cross: bool, self_: bool, expected: int) -> None:
    model = CoMER(CoMERSettings(cross_coverage=cross, self_coverage=self_))
    assert sum(p.numel() for p in model.parameters()) == expected
    assert sum(p.numel() for p in model.encoder.parameters()) == 3_156_624
    assert sum(p.numel() for p in model.encoder.model.parameters()) == 2_980_752


@pytest.mark.parametrize("momentum", [0.1, None])
def test_masked_batch_norm_is_batch_norm_of_the_valid_positions(momentum: float | None) -> None:
    torch.manual_seed(0)
    x, valid = torch.randn(3, 120, dtype=torch.double), torch.rand(120) > 0.4
    ours, theirs = MaskedBatchNorm(3).double(), nn.BatchNorm1d(3, momentum=momentum).double()
    ours.bn.momentum = momentum
    for training in (True, True, False):
        ours.train(training)
        theirs.train(training)
        x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        y_ours, y_theirs = ours(x_ours, valid), theirs(x_theirs[:, valid].T).T
        torch.testing.assert_close(y_ours[:, valid], y_theirs)
        assert not y_ours[:, ~valid].any()
        y_ours.square().sum().backward()
        y_theirs.square().sum().backward()
        torch.testing.assert_close(x_ours.grad, x_theirs.grad)
        torch.testing.assert_close(ours.bn.state_dict(), theirs.state_dict())


def test_refinement_sees_only_earlier_steps_and_reaches_all_of_them() -> None:
    model = small()
    features, mask = model.encode(*padded(IMAGES[:1]))
    inputs = torch.tensor([[1, 5, 6, 7, 8, 9]])
    changed = inputs.clone()
    changed[0, 3] = 20
    traces: list[Trace] = [[], []]
    for ids, trace in zip((inputs, changed), traces, strict=True):
        model.decoder(features, mask, ids, trace)
    for before, after in zip(*traces, strict=True):
        if before.refinement is None or after.refinement is None:
            continue
        difference = (before.refinement - after.refinement).abs().amax((0, 1, 3))
        assert not difference[:4].any() and difference[4:].all()  # R of step 3 cannot know step 3 …
        assert (before.attention - after.attention).abs().amax((0, 1, 3))[3] > 1e-4  # … whose attention has changed
    first, second, _ = traces[0]
    assert second.refinement is not None
    (gradient,) = torch.autograd.grad(second.refinement[:, :, -1].square().sum(), first.attention)
    assert gradient.abs().amax((0, 1, 3))[:-1].all() and not gradient[:, :, -1].any()


@torch.no_grad()
def test_trace_does_not_change_logits_and_attention_sums_to_one_on_the_image() -> None:
    model = small()
    features, mask = model.encode(*padded(IMAGES))
    inputs, _ = bidirectional_targets(LABELS)
    trace: Trace = []
    assert torch.equal(model.decoder(features, mask, inputs, trace), model.decoder(features, mask, inputs))
    hidden = mask.repeat(2, 1, 1).flatten(1)
    for layer in trace:
        torch.testing.assert_close(layer.attention.sum(-1), torch.ones(layer.attention.shape[:3]))
        assert not layer.attention.permute(0, 3, 1, 2)[hidden].any()


def test_bfloat16_autocast_trains() -> None:
    model = small(dropout=0.0, encoder_dropout=0.0).train()
    images, mask = padded(IMAGES)
    inputs, outputs = bidirectional_targets(LABELS)
    exact = model.decoder(*model.encode(images, mask), inputs)
    trace: Trace = []
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.decoder(*model.encode(images, mask), inputs, trace)
    assert logits.dtype == torch.float32
    assert all(layer.attention.dtype == torch.float32 for layer in trace)
    assert trace[1].refinement is not None and trace[1].refinement.dtype == torch.float32
    assert 0 < (logits - exact).abs().max() < 0.5
    F.cross_entropy(logits.flatten(0, 1), outputs.flatten(), ignore_index=0).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_dropout_only_in_training() -> None:
    model = small(dropout=0.5)
    images, mask = padded(IMAGES)
    inputs, _ = bidirectional_targets(LABELS)
    features, feature_mask = model.encode(images, mask)
    assert torch.equal(model.decoder(features, feature_mask, inputs), model.decoder(features, feature_mask, inputs))
    model.train()
    trace: Trace = []
    model.decoder(features, feature_mask, inputs, trace)
    visible = ~feature_mask.repeat(2, 1, 1).flatten(1)[:, None, None].expand_as(trace[0].attention)
    assert 0.4 < (trace[0].attention[visible] == 0).float().mean() < 0.6  # attention weights are dropped too


def test_decode_rejects_wrong_numbers_of_rows_and_steps() -> None:
    model = small()
    features, mask = model.encode(*padded(IMAGES))
    with pytest.raises(ValueError, match="7 decoder rows"):
        model.decoder(features, mask, torch.ones(7, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="501 decoding steps"):
        model.decoder(features, mask, torch.ones(4, 501, dtype=torch.long))


def test_dense_blocks_may_differ_in_depth() -> None:
    model = small(num_layers=(1, 2, 3))
    blocks = [model.encoder.model.dense1, model.encoder.model.dense2, model.encoder.model.dense3]
    assert [len(block) for block in blocks] == [1, 2, 3]
    assert model.encoder.model.out_channels == (((8 + 4) // 2 + 8) // 2) + 12
    features, _ = model.encode(*padded(IMAGES))
    assert features.shape == (4, 4, 7, 32)
    listed = CoMER(replace(SMALL, num_layers=[2, 2, 2]))  # pyright: ignore[reportArgumentType]
    shapes, expected = ({n: p.shape for n, p in model.state_dict().items()} for model in (listed, small()))
    assert shapes == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"d_model": 30}, {"d_model": 0}, {"growth_rate": -1}, {"num_layers": 2.5}, {"nhead": 3},
        {"num_layers": (2, 3)}, {"num_layers": (2, 3, 0)}, {"num_layers": (2, True, 3)},
        {"dropout": 1.0}, {"encoder_dropout": -0.1}, {"dropout": "0.3"}, {"cross_coverage": 1},
        {"dc": True}, {"stride": 4}, {"num_decoder_layers": 0},
        {"dim_feedforward": None},
    ],
)  # fmt: skip
def test_config_errors_name_the_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CoMERSettings(**wrong)  # pyright: ignore[reportArgumentType]


def test_vocabulary_round_trip() -> None:
    vocabulary = Vocabulary()
    assert len(vocabulary) == 113
    assert list(vocabulary.words[3:]) == sorted(vocabulary.words[3:])  # the authors' order
    tokens = ["\\frac", "{", "x", "}", "{", "\\sqrt", "{", "3", "}", "}"]
    ids = vocabulary.encode(tokens)
    assert vocabulary.decode(ids) == tokens and min(ids) >= 3
    assert vocabulary.decode(range(len(vocabulary))) == list(vocabulary.words)
    for unknown in ("\\foo", "<eos>"):
        with pytest.raises(ValueError, match=re.escape(repr(unknown))):
            vocabulary.encode(["x", unknown])
    for outside in (-1, 113):
        with pytest.raises(ValueError, match=str(outside)):
            vocabulary.decode([outside])


@pytest.mark.parametrize("shape", [(40, 50, 60), (7, 12, 20, 31)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(shape, dtype):
    """Drops each element with probability p, keeps the mean, follows the seed and the memory format."""
    drop = Dropout(0.3)
    x = torch.full(shape, 2.0, dtype=dtype, requires_grad=True)
    torch.manual_seed(5)
    y = drop(x)
    torch.manual_seed(5)
    assert torch.equal(y, drop(x))
    assert set(y.unique().tolist()) == {0.0, torch.tensor(2 / 0.7, dtype=dtype).item()}
    share = (y == 0).double().mean().item()
    assert abs(share - 0.3) < 4 * (0.21 / x.numel()) ** 0.5
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)
    flat = (y == 0).flatten().double() - share
    for lag in (*range(1, 9), 16):  # the eight elements of a draw are independent
        assert abs((flat[lag:] * flat[:-lag]).mean().item()) < 5 * 0.21 / x.numel() ** 0.5
    assert drop.eval()(x) is x
    if len(shape) == 4:
        last = x.detach().to(memory_format=torch.channels_last)
        assert drop.train()(last).is_contiguous(memory_format=torch.channels_last)


def test_dropout_drops_less_than_its_bits_can_tell():
    """Two of 1,000 elements, half a step of eight bits."""
    torch.manual_seed(5)
    shares = [1 - Dropout(0.002).keep_mask(torch.empty(1000), random_bits()).double().mean() for _ in range(400)]
    assert abs(sum(shares) / 400 - 0.002) < 0.0005
    assert not all(shares)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_bf16_gradient_of_a_convolution_holds_no_uninitialized_memory(images):
    """On a processor with AMX, nn.Conv2d fails this for 1 and 3 images most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        conv = Conv2d(48, 12, 3, padding=1, bias=False)
        x, upstream = torch.randn(images, 48, 24, 92), torch.randn(images, 12, 24, 92)
        expected = torch.autograd.grad(conv(x), conv.weight, upstream)[0]
        for _ in range(20):
            soil = [torch.full((1 << bits,), float("nan")) for bits in (10, 14, 16, 18, 20, 21, 22) for _ in range(3)]
            del soil  # so that the kernel gets this memory next
            with torch.autocast("cpu", torch.bfloat16):
                y = conv(x.contiguous(memory_format=torch.channels_last))
            assert y.shape == upstream.shape
            gradient = torch.autograd.grad(y, conv.weight, upstream.bfloat16())[0]
            torch.testing.assert_close(gradient.float(), expected, rtol=0.02, atol=1.0)  # sums of thousands of terms
    finally:
        torch.set_num_threads(threads)


def test_pointwise_convolution():
    torch.manual_seed(7)
    layer, x = nn.Conv2d(24, 10, kernel_size=1), torch.randn(3, 24, 5, 7).to(memory_format=torch.channels_last)
    x.requires_grad_()
    results = []
    for convolve in (partial(pointwise, layer), layer):
        y = convolve(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert results[0][0].is_contiguous(memory_format=torch.channels_last)


class Convolutions(TorchDispatchMode):
    """Records the convolutions for which cuDNN would search a kernel: forward or gradient, and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("convolution", "convolution_backward"):
            forward = name == "convolution"
            x, weight = args[:2] if forward else args[1:3]
            parts = ["forward"] if forward else [part for part, on in zip("xw", args[-1], strict=False) if on]
            self.seen |= {(part, tuple(x.shape), tuple(weight.shape)) for part in parts}
        return func(*args, **(kwargs or {}))


def test_few_convolutions_need_a_kernel_search():
    """One training step of the paper's network, at one shape, as on a GPU."""
    with torch.device("meta"):
        model = CoMER(CoMERSettings()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, mask = torch.zeros(8, 1, 64, 160), torch.zeros(8, 64, 160, dtype=torch.bool)
        tokens = torch.zeros(16, 12, dtype=torch.long)
    with Convolutions() as convolutions:
        model.decoder(*model.encode(images, mask), tokens).sum().backward()
    assert len(convolutions.seen) <= 14
