"""The encoder for inference: what `models.densenet` computes, in far fewer operations.

Weights are cast once, every batch normalization is folded into an adjacent convolution, and 1x1 convolutions are matrix
products. Names carry shapes: b images, c channels, o output channels, H x W pixels, h x w feature cells.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.densenet import Encoder

Affine = tuple[Tensor, Tensor]  # weight and bias


def affine(norm: _BatchNorm) -> Affine:
    """Scale and shift of a batch normalization in evaluation mode."""
    mean_c, var_c = norm.running_mean, norm.running_var
    assert mean_c is not None and var_c is not None
    scale_c = norm.weight * torch.rsqrt(var_c + norm.eps)
    return scale_c, norm.bias - mean_c * scale_c


def fold(conv: nn.Conv2d, norm: _BatchNorm) -> Affine:
    """A convolution without bias and the normalization after it, as one convolution."""
    scale_c, shift_c = affine(norm)
    return conv.weight * scale_c[:, None, None, None], shift_c


def product(x_bchw: Tensor, matrix_co: Tensor) -> Tensor:
    """A 1x1 convolution as one matrix product, of channels-last maps whose first channel is all 1 (for the bias)."""
    x_bhwc = x_bchw.permute(0, 2, 3, 1)
    return torch.mm(x_bhwc.flatten(0, 2), matrix_co).view(*x_bhwc.shape[:3], -1).permute(0, 3, 1, 2)


def blank(x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
    """Set the padding of x to 0, in place."""
    return x_bchw if valid_b1hw is None else x_bchw.mul_(valid_b1hw)


class FoldedEncoder:
    """The encoder in evaluation mode. Maps are channels last, and each dense block writes into a single tensor.

    The first channel of that tensor is all 1, so that the bias of a 1x1 convolution is a row of its matrix.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        """Convolutions run in `dtype`: float32, or the type of an autocast."""

        def kernel(weight_ockk: Tensor, bias_o: Tensor) -> Affine:
            return weight_ockk.to(dtype, memory_format=torch.channels_last), bias_o.to(dtype)

        def matrix(weight_oc11: Tensor, bias_o: Tensor) -> Tensor:
            return torch.cat((bias_o[:, None], weight_oc11.flatten(1)), dim=1).to(dtype).t()

        net, self.encoder, self.dtype = encoder.model, encoder, dtype
        self.first = kernel(*fold(net.conv1, net.norm1))
        self.blocks = [
            [(matrix(*fold(layer.conv1, layer.bn1)), kernel(*fold(layer.conv2, layer.bn2))) for layer in block]
            for block in (net.dense1, net.dense2, net.dense3)
        ]
        self.transitions = [(matrix(*fold(t.conv1, t.bn1)), t.pool) for t in (net.trans1, net.trans2)]
        weight_dc11, bias_d = encoder.feature_proj.weight, encoder.feature_proj.bias
        assert bias_d is not None
        scale_c, shift_c = affine(net.post_norm)
        self.proj = matrix(weight_dc11 * scale_c[:, None, None], bias_d + weight_dc11.flatten(1) @ shift_c)

    def __call__(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] and their mask [b, h, w], equal to the encoder's but undefined at padding."""
        valid = self.encoder.model.validity(self.encoder.valid_map(images_b1HW, mask_bHW))
        x = images_b1HW if valid[0] is None else images_b1HW * valid[0]
        x = F.conv2d(x.to(self.dtype), *self.first, stride=2, padding=3).relu_()
        x = F.max_pool2d(blank(x.contiguous(memory_format=torch.channels_last), valid[1]), 2, ceil_mode=True)
        for block, (halve, pool), valid_b1hw in zip(self.blocks, self.transitions, valid[2:], strict=False):
            x = pool(blank(product(self._grow(x, block, valid_b1hw), halve).relu_(), valid_b1hw), valid_b1hw)
        features_bdhw = product(self._grow(x, self.blocks[2], valid[4]), self.proj)
        return self.encoder.add_position(features_bdhw.permute(0, 2, 3, 1), mask_bHW)

    def _grow(self, x_bchw: Tensor, block: list[tuple[Tensor, Affine]], valid_b1hw: Tensor | None) -> Tensor:
        """The output of a dense block: a channel of 1, the channels of x, and those that its bottlenecks add."""
        (b, c, h, w), growth = x_bchw.shape, len(block[0][1][1])
        # zeros: oneDNN's bf16 product reads on to a multiple of 32 channels, and 0 times garbage may be NaN
        grown = x_bchw.new_zeros((b, h, w, 1 + c + len(block) * growth)).permute(0, 3, 1, 2)
        grown[:, 0] = 1
        grown[:, 1 : 1 + c] = x_bchw
        for n, (narrow, widen) in enumerate(block):
            end = 1 + c + n * growth
            narrowed = blank(product(grown[:, :end], narrow).relu_(), valid_b1hw)
            grown[:, end : end + growth] = blank(F.conv2d(narrowed, *widen, padding=1).relu_(), valid_b1hw)
        return grown
