"""The layers of a dense block, and all of them as one autograd function: equal in training, but faster.

That function writes all channels into one tensor, so nothing is concatenated, and sums their gradients in another. 1x1
convolutions are matrix products that read the first channels of that tensor in place. Of ReLU and dropout only the
output is saved: where it is 0, so is the gradient.

Names carry shapes: b images, c channels, h x w feature cells, N = b * h * w.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import BatchNorm2d, Conv2d, Dropout, pad_batch, pointwise


class Bottleneck(nn.Module):
    """A dense layer without its concatenation: 1x1 conv to 4 * growth channels, 3x3 conv to growth channels.

    Post-activation (conv, norm, ReLU, dropout), unlike the paper's text and the original DenseNet.
    """

    def __init__(self, channels: int, growth_rate: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 4 * growth_rate, kernel_size=1, bias=False)
        self.bn1 = BatchNorm2d(4 * growth_rate)
        self.conv2 = Conv2d(4 * growth_rate, growth_rate, kernel_size=3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(growth_rate)
        self.dropout = Dropout(dropout)

    def forward(self, x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
        """[b, growth, h, w] from [b, channels, h, w]."""
        new = self.dropout(F.relu_(self.bn1(pointwise(self.conv1, x_bchw), valid_b1hw)))
        return self.dropout(F.relu_(self.bn2(self.conv2(new), valid_b1hw)))


def grow(x_bchw: Tensor, layers: Sequence[Bottleneck]) -> Tensor:
    """The channels of x and those that the layers add; for training, without masking of padding."""
    if torch.is_autocast_enabled(x_bchw.device.type):
        x_bchw = x_bchw.to(torch.get_autocast_dtype(x_bchw.device.type))
    parameters: list[Tensor] = []
    for layer in layers:
        parameters += [layer.conv1.weight, layer.bn1.weight, layer.bn1.bias]
        parameters += [layer.conv2.weight, layer.bn2.weight, layer.bn2.bias]
    return Grow.apply(x_bchw, layers, *parameters)  # type: ignore[return-value]


class Normalized:
    """Batch normalization, ReLU and dropout of feature maps, and their backward pass."""

    def __init__(self, norm: BatchNorm2d, dropout: Dropout, x_bchw: Tensor) -> None:
        self.norm, self.x_bchw, self.scale = norm, x_bchw, 1 / (1 - dropout.p)
        weight, bias = norm.weight * self.scale, norm.bias * self.scale  # scaled for dropout
        mean, var, momentum = norm.running_mean, norm.running_var, norm.count_batch()
        self.mean_c, var_c = torch.batch_norm_update_stats(x_bchw, mean, var, momentum)
        y_bchw = F.batch_norm(x_bchw, self.mean_c, var_c, weight, bias, eps=norm.eps)  # faster than both in one call
        self.factor_c = torch.rsqrt(var_c + norm.eps)
        self.y_bchw = dropout.drop_(y_bchw.relu_())

    def backward(self, gradient_bchw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of x, weight and bias, given that of y."""
        gradient_bchw = torch.ops.aten.threshold_backward(gradient_bchw, self.y_bchw, 0)
        x, weight, bias = torch.ops.aten.native_batch_norm_backward(
            gradient_bchw, self.x_bchw, self.norm.weight * self.scale, None, None, self.mean_c, self.factor_c,
            True, self.norm.eps, [True, True, True],
        )  # fmt: skip
        return x, weight * self.scale, bias * self.scale


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
        ctx.activations = []
        for n, layer in enumerate(layers):
            end = c + n * growth
            narrow, widen = layer.conv1.weight.flatten(1).to(dtype), layer.conv2.weight.to(dtype)
            narrowed_Nc = torch.mm(grown_Nc[:, :end], narrow.t())
            narrowed = Normalized(layer.bn1, layer.dropout, narrowed_Nc.view(b, h, w, -1).permute(0, 3, 1, 2))
            added = Normalized(layer.bn2, layer.dropout, F.conv2d(narrowed.y_bchw, widen, padding=1))
            grown_bhwc[..., end : end + growth] = added.y_bchw.permute(0, 2, 3, 1)
            ctx.activations.append((narrow, narrowed, widen, added))
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
            narrow, narrowed, widen, added = ctx.activations.pop()
            start = end - len(widen)
            upstream = torch.narrow_copy(gradient_bhwc, 3, start, end - start).permute(0, 3, 1, 2)
            upstream, weight2, bias2 = added.backward(upstream)
            upstream, kernel = convolution_gradients(upstream, narrowed.y_bchw, widen)
            upstream, weight1, bias1 = narrowed.backward(upstream)
            upstream_Nc = upstream.permute(0, 2, 3, 1).flatten(0, 2)
            matrix = torch.mm(upstream_Nc.t(), grown_Nc[:, :start])
            gradient_Nc[:, :start].addmm_(upstream_Nc, narrow)
            gradients = [matrix[:, :, None, None], weight1, bias1, kernel, weight2, bias2, *gradients]
            end = start
        return gradient_bhwc[..., :end].permute(0, 3, 1, 2), None, *gradients


def convolution_gradients(upstream_bchw: Tensor, x_bchw: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight of a 3x3 convolution with padding 1."""
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    backward = torch.ops.aten.convolution_backward
    x, _, _ = backward(upstream_bchw, x_bchw, weight, None, *settings, [True, False, False])
    _, kernel, _ = backward(pad_batch(upstream_bchw), pad_batch(x_bchw), weight, None, *settings, [False, True, False])
    return x, kernel
