"""The image encoder: DenseNet-B, 2-D position encoding, LayerNorm (CoMER, sections 3.2 and 3.3).

In training on a CPU, the layers of a dense block are one autograd function, equal to them but faster. It writes all
channels into one tensor, so nothing is concatenated, and sums their gradients in another. 1x1 convolutions are matrix
products that read the first channels of that tensor in place. Of ReLU and dropout only the output is saved: where it is
0, so is the gradient.

Names carry shapes: b images, c channels, H x W pixels, h x w feature cells (16 or 8 pixels wide), N = b * h * w, d
model width. The padding of a batch counts as image, as in the authors' code, so an image's features depend on its
batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.layers import Bits, Conv2d, Dropout, image_position, pad_batch, pointwise, random_bits, running
from hmerbench.models.settings import DenseNetSettings, TransformerSettings

GROUP = 4  # layers whose weight gradients are one matrix product: wider products are faster


class Bottleneck(nn.Module):
    """A dense layer without its concatenation: 1x1 conv to 4 * growth channels, 3x3 conv to growth channels.

    Post-activation (conv, norm, ReLU, dropout), unlike the paper's text and the original DenseNet.
    """

    def __init__(self, channels: int, growth_rate: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 4 * growth_rate, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4 * growth_rate)
        self.conv2 = Conv2d(4 * growth_rate, growth_rate, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(growth_rate)
        self.dropout = Dropout(dropout)

    def forward(self, x_bchw: Tensor) -> Tensor:
        """[b, growth, h, w] from [b, channels, h, w]."""
        new = self.dropout(F.relu_(self.bn1(pointwise(self.conv1, x_bchw))))
        return self.dropout(F.relu_(self.bn2(self.conv2(new))))


def grow(x_bchw: Tensor, layers: Sequence[Bottleneck]) -> Tensor:
    """The channels of x and those that the layers add; for training."""
    if torch.is_autocast_enabled(x_bchw.device.type):
        x_bchw = x_bchw.to(torch.get_autocast_dtype(x_bchw.device.type))
    parts = zip(
        [layer.conv1.weight for layer in layers],
        *scaled_for_dropout([layer.bn1 for layer in layers], layers[0].dropout),
        [layer.conv2.weight for layer in layers],
        *scaled_for_dropout([layer.bn2 for layer in layers], layers[0].dropout),
        strict=True,
    )
    return Grow.apply(x_bchw, layers, *itertools.chain.from_iterable(parts))  # type: ignore[return-value]


def scaled_for_dropout(norms: Sequence[nn.BatchNorm2d], dropout: Dropout) -> list[Sequence[Tensor]]:
    """The weights and the biases of norms, scaled: all at once, as many small operations take long."""
    weights: list[Tensor] = [norm.weight for norm in norms]
    biases: list[Tensor] = [norm.bias for norm in norms]
    return [(torch.stack(tensors) / (1 - dropout.p)).unbind() for tensors in (weights, biases)]


class Normalized:
    """Batch normalization, ReLU and dropout of feature maps, and their backward pass.

    `weight` and `bias` are those of the norm, scaled for dropout; `bits` is None without dropout. A norm that is not in
    training normalizes with its running statistics, which are constants.
    """

    def __init__(
        self, x_bchw: Tensor, norm: nn.BatchNorm2d, weight: Tensor, bias: Tensor, dropout: Dropout, bits: Bits | None
    ) -> None:
        self.x_bchw, self.weight, self.eps = x_bchw, weight, norm.eps
        self.fixed, (mean_c, var_c) = not norm.training, running(norm)
        if self.fixed:
            self.probe_c = x_bchw.sum((0, 2, 3))
        elif x_bchw.numel() == x_bchw.shape[1]:  # as in torch: their variance would be NaN, and stay in the statistics
            raise ValueError(f"expected more than one value per channel in training, got {list(x_bchw.shape)}")
        else:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            weight_of_batch = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            mean_c, var_c = torch.batch_norm_update_stats(x_bchw, mean_c, var_c, weight_of_batch)
            self.probe_c = mean_c
        self.mean_c, self.var_c = mean_c, var_c
        y_bchw = F.batch_norm(x_bchw, mean_c, var_c, weight, bias, eps=norm.eps)  # faster than both in one call
        self.factor_c = torch.rsqrt(var_c + norm.eps)
        self.y_bchw = y_bchw.relu_() if bits is None else dropout.relu_drop_(y_bchw, bits)

    def backward(self, gradient_bchw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of x, weight and bias, given that of y."""
        gradient_bchw = torch.ops.aten.threshold_backward(gradient_bchw, self.y_bchw, 0)
        return torch.ops.aten.native_batch_norm_backward(
            gradient_bchw, self.x_bchw, self.weight, self.mean_c, self.var_c, self.mean_c, self.factor_c,
            not self.fixed, self.eps, [True, True, True],
        )  # fmt: skip


class Grow(torch.autograd.Function):
    """`grow` as a function of the layers' parameters: six per layer, in the order in which `grow` lists them."""

    @staticmethod
    def forward(ctx: Any, x_bchw: Tensor, layers: Sequence[Bottleneck], *parameters: Tensor) -> Tensor:
        """[b, c + layers * growth, h, w]; saves the activations of each layer."""
        (b, c, h, w), dtype = x_bchw.shape, x_bchw.dtype
        growth = len(layers[0].conv2.weight)
        # zeros: oneDNN's bf16 product reads on to a multiple of 32 channels, and 0 times garbage may be NaN
        grown_bhwc = x_bchw.new_zeros(b, h, w, c + len(layers) * growth)
        grown_bhwc[..., :c] = x_bchw.permute(0, 2, 3, 1)
        grown_Nc = grown_bhwc.flatten(0, 2)
        ctx.activations, bits = [], random_bits() if layers[0].dropout.p else None
        for n, layer in enumerate(layers):
            end = c + n * growth
            conv1, weight1, bias1, conv2, weight2, bias2 = parameters[6 * n : 6 * n + 6]
            narrow, widen = conv1.flatten(1).to(dtype), conv2.to(dtype)
            x_bchw = torch.mm(grown_Nc[:, :end], narrow.t()).view(b, h, w, -1).permute(0, 3, 1, 2)
            narrowed = Normalized(x_bchw, layer.bn1, weight1, bias1, layer.dropout, bits)
            # contiguous: normalization of channels-last maps is slow for few channels
            x_bchw = F.conv2d(narrowed.y_bchw, widen, padding=1).contiguous()
            added = Normalized(x_bchw, layer.bn2, weight2, bias2, layer.dropout, bits)
            grown_bhwc[..., end : end + growth] = added.y_bchw.permute(0, 2, 3, 1)
            ctx.activations.append((narrow, narrowed, widen, added))
        probes = [part.probe_c.float() for _, narrowed, _, added in ctx.activations for part in (narrowed, added)]
        if not torch.cat(probes).isfinite().all():
            grown_bhwc.fill_(torch.nan)  # `relu_drop_` may have turned NaN into 0, and training would go on
        grown_bchw = grown_bhwc.permute(0, 3, 1, 2)
        ctx.save_for_backward(grown_bchw)
        return grown_bchw

    @staticmethod
    def backward(ctx: Any, gradient_bchw: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of x and of each parameter."""
        (grown_bchw,) = ctx.saved_tensors
        grown_Nc = grown_bchw.permute(0, 2, 3, 1).flatten(0, 2)
        gradient_bhwc = gradient_bchw.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
        gradient_Nc, end = gradient_bhwc.flatten(0, 2), gradient_bhwc.shape[-1]
        gradients: list[Tensor] = []
        while ctx.activations:
            group, ctx.activations = ctx.activations[-GROUP:], ctx.activations[:-GROUP]
            growth = len(group[0][2])
            last, shared = end - growth, end - growth * len(group)  # channels that its last layer reads; that all read
            narrows, upstreams, others = [], [], []  # last layer first
            while group:
                narrow, narrowed, widen, added = group.pop()
                start = end - growth
                upstream = gradient_bhwc[..., start:end].permute(0, 3, 1, 2).contiguous()
                upstream, weight2, bias2 = added.backward(upstream)
                upstream, kernel = convolution_gradients(upstream, narrowed.y_bchw, widen)
                upstream, weight1, bias1 = narrowed.backward(upstream)
                upstream_Nc = upstream.permute(0, 2, 3, 1).flatten(0, 2)
                gradient_Nc[:, shared:start].addmm_(upstream_Nc, narrow[:, shared:])
                narrows.append(narrow[:, :shared])
                upstreams.append(upstream_Nc)
                others.append([weight1, bias1, kernel, weight2, bias2])
                end = start
            upstream_Nc = torch.cat(upstreams, dim=1)
            gradient_Nc[:, :shared].addmm_(upstream_Nc, torch.cat(narrows))
            matrices = torch.mm(upstream_Nc.t(), grown_Nc[:, :last]).split(len(narrows[0]))
            for n, (matrix, other) in enumerate(zip(matrices, others, strict=True)):
                gradients = [matrix[:, : last - n * growth, None, None], *other, *gradients]
        return gradient_bhwc[..., :end].permute(0, 3, 1, 2), None, *gradients


def convolution_gradients(upstream_bchw: Tensor, x_bchw: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight of a 3x3 convolution with padding 1."""
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    upstream_bchw = upstream_bchw.contiguous(memory_format=torch.channels_last)  # once for both
    backward = torch.ops.aten.convolution_backward
    x, _, _ = backward(upstream_bchw, x_bchw, weight, None, *settings, [True, False, False])
    _, kernel, _ = backward(pad_batch(upstream_bchw), pad_batch(x_bchw), weight, None, *settings, [False, True, False])
    return x, kernel


class DenseBlock(nn.ModuleList):
    """Bottlenecks, each of which reads the block's input and the output of all bottlenecks before it."""

    def __init__(self, channels: int, growth_rate: int, num_layers: int, dropout: float) -> None:
        widths = range(channels, channels + num_layers * growth_rate, growth_rate)
        super().__init__(Bottleneck(width, growth_rate, dropout) for width in widths)

    def __iter__(self) -> Iterator[Bottleneck]:
        return super().__iter__()  # pyright: ignore[reportReturnType]

    def forward(self, x_bchw: Tensor) -> Tensor:
        """[b, channels + num_layers * growth, h, w]."""
        ours = isinstance(self[0].dropout, Dropout)  # not replaced by torch's
        if self.training and x_bchw.device.type == "cpu" and ours:
            return grow(x_bchw, list(self))
        for bottleneck in self:
            x_bchw = torch.cat((x_bchw, bottleneck(x_bchw)), dim=1)
        return x_bchw


class Transition(nn.Module):
    """Halves the channels and, if `pools`, height and width."""

    def __init__(self, channels: int, dropout: float, pools: bool = True) -> None:
        super().__init__()
        self.pools = pools
        self.conv1 = nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels // 2)
        self.dropout = Dropout(dropout)

    def forward(self, x_bchw: Tensor) -> Tensor:
        """[b, channels / 2, h / 2, w / 2], rounded up; h and w are kept if not `pools`."""
        halved = self.dropout(F.relu_(self.bn1(pointwise(self.conv1, x_bchw))))
        return F.avg_pool2d(halved, 2, ceil_mode=True) if self.pools else halved


class DenseNet(nn.Module):
    """Images [b, 1, H, W] to feature maps [b, channels, ceil(H/stride), ceil(W/stride)].

    CoMER and BTTR normalize after the first convolution and at the end, DenseWAP does not (`outer_norms`).
    """

    def __init__(self, c: DenseNetSettings, outer_norms: bool = True) -> None:
        super().__init__()
        self.stride, growth_rate, dropout = c.stride, c.growth_rate, c.encoder_dropout
        layers1, layers2, layers3 = c.depths
        channels = 2 * growth_rate
        self.conv1 = Conv2d(1, channels, kernel_size=7, stride=2, padding=3, bias=False)
        self.norm1: nn.Module = nn.BatchNorm2d(channels) if outer_norms else nn.Identity()
        self.dense1 = DenseBlock(channels, growth_rate, layers1, dropout)
        channels += layers1 * growth_rate
        self.trans1 = Transition(channels, dropout)
        channels //= 2
        self.dense2 = DenseBlock(channels, growth_rate, layers2, dropout)
        channels += layers2 * growth_rate
        self.trans2 = Transition(channels, dropout, pools=self.stride == 16)
        channels //= 2
        self.dense3 = DenseBlock(channels, growth_rate, layers3, dropout)
        self.out_channels = channels + layers3 * growth_rate
        self.post_norm: nn.Module = nn.BatchNorm2d(self.out_channels) if outer_norms else nn.Identity()

    def forward(self, images_b1HW: Tensor) -> Tensor:
        x = self.conv1(images_b1HW)
        if x.device.type != "cpu":  # a one-channel image has no layout to pass on, and products need channels last
            x = x.contiguous(memory_format=torch.channels_last)
        # pooling before ReLU is a quarter of the work and gives the same, as ReLU is monotone
        x = F.relu_(F.max_pool2d(self.norm1(x), 2, ceil_mode=True))
        x = self.trans1(self.dense1(x))
        x = self.trans2(self.dense2(x))
        return self.post_norm(self.dense3(x))


class Encoder(nn.Module):
    """Maps images and padding mask (True = padding) to features [b, h, w, d] and their mask [b, h, w]."""

    def __init__(self, c: TransformerSettings) -> None:
        super().__init__()
        self.model = DenseNet(c)
        self.feature_proj = nn.Conv2d(self.model.out_channels, c.d_model, kernel_size=1)
        self.norm = nn.LayerNorm(c.d_model)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features and their mask; ink is 1, background 0."""
        features_bhwd = pointwise(self.feature_proj, self.model(images_b1HW)).permute(0, 2, 3, 1)
        mask_bhw = mask_bHW.bool()[:, :: self.model.stride, :: self.model.stride]
        return self.add_position(features_bhwd, mask_bhw), mask_bhw

    def add_position(self, features_bhwd: Tensor, mask_bhw: Tensor) -> Tensor:
        """Add position encodings and normalize."""
        return self.norm(features_bhwd + image_position(mask_bhw, features_bhwd.shape[-1]))
