"""The image encoder: DenseNet-B, 2-D position encoding, LayerNorm (CoMER, sections 3.2 and 3.3).

Names carry shapes: b images, c channels, H x W pixels, h x w feature cells (16 or 8 pixels wide), d model width.
The padding of a batch is treated in one of two ways. With `valid` None it counts as image, as in the authors' code, so
an image's features depend on its batch. Given a `valid` map (1 = image, 0 = padding), every layer keeps padding at 0
and out of all statistics and averages, so in evaluation an image has the same features in any batch.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.dense_block import Bottleneck, grow
from models.layers import BatchNorm2d, Conv2d, Dropout, pointwise
from models.position import image_position
from models.settings import TransformerSettings


class DenseBlock(nn.ModuleList):
    """Bottlenecks, each of which reads the block's input and the output of all bottlenecks before it."""

    def __init__(self, channels: int, growth_rate: int, num_layers: int, dropout: float) -> None:
        widths = range(channels, channels + num_layers * growth_rate, growth_rate)
        super().__init__(Bottleneck(width, growth_rate, dropout) for width in widths)

    def __iter__(self) -> Iterator[Bottleneck]:
        return super().__iter__()  # pyright: ignore[reportReturnType]

    def forward(self, x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
        """[b, channels + num_layers * growth, h, w]."""
        ours = isinstance(self[0].dropout, Dropout)  # not replaced by torch's
        if self.training and valid_b1hw is None and x_bchw.device.type == "cpu" and ours:
            return grow(x_bchw, list(self))
        for bottleneck in self:
            x_bchw = torch.cat((x_bchw, bottleneck(x_bchw, valid_b1hw)), dim=1)
        return x_bchw


class Transition(nn.Module):
    """Halves the channels and, if `pools`, height and width."""

    def __init__(self, channels: int, dropout: float, pools: bool = True) -> None:
        super().__init__()
        self.pools = pools
        self.conv1 = nn.Conv2d(channels, channels // 2, kernel_size=1, bias=False)
        self.bn1 = BatchNorm2d(channels // 2)
        self.dropout = Dropout(dropout)

    def forward(self, x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
        """[b, channels / 2, h / 2, w / 2], rounded up; h and w are kept if not `pools`."""
        halved = pointwise(self.conv1, x_bchw)
        return self.pool(self.dropout(F.relu_(self.bn1(halved, valid_b1hw))), valid_b1hw)

    def pool(self, x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
        """Means over the valid cells of 2 x 2 windows; x itself if not `pools`."""
        if not self.pools:
            return x_bchw
        pooled = F.avg_pool2d(x_bchw, 2, ceil_mode=True)
        if valid_b1hw is None:
            return pooled
        # padding is 0, so dividing by the valid share of a window gives the mean over its image cells
        share = F.avg_pool2d(valid_b1hw, 2, ceil_mode=True)
        return pooled / share.clamp(min=0.25).to(pooled.dtype)


class Unnormalized(nn.Module):
    """Stands where a network has no batch normalization; given `valid_b1hw`, it too sets padding to 0."""

    def forward(self, x_bchw: Tensor, valid_b1hw: Tensor | None) -> Tensor:
        """x itself, or x without its padding."""
        return x_bchw if valid_b1hw is None else x_bchw * valid_b1hw


class DenseNet(nn.Module):
    """Images [b, 1, H, W] to feature maps [b, channels, ceil(H/stride), ceil(W/stride)].

    CoMER and BTTR normalize after the first convolution and at the end, DenseWAP does not (`outer_norms`).
    """

    def __init__(
        self,
        growth_rate: int,
        num_layers: Sequence[int],
        dropout: float,
        stride: int = 16,
        outer_norms: bool = True,
    ) -> None:
        super().__init__()
        self.stride = stride
        layers1, layers2, layers3 = num_layers

        channels = 2 * growth_rate
        self.conv1 = Conv2d(1, channels, kernel_size=7, stride=2, padding=3, bias=False)
        self.norm1: BatchNorm2d = BatchNorm2d(channels) if outer_norms else Unnormalized()  # pyright: ignore
        self.dense1 = DenseBlock(channels, growth_rate, layers1, dropout)
        channels += layers1 * growth_rate
        self.trans1 = Transition(channels, dropout)
        channels //= 2
        self.dense2 = DenseBlock(channels, growth_rate, layers2, dropout)
        channels += layers2 * growth_rate
        self.trans2 = Transition(channels, dropout, pools=stride == 16)
        channels //= 2
        self.dense3 = DenseBlock(channels, growth_rate, layers3, dropout)
        self.out_channels = channels + layers3 * growth_rate
        self.post_norm: BatchNorm2d = BatchNorm2d(self.out_channels) if outer_norms else Unnormalized()  # pyright: ignore

    def forward(self, images_b1HW: Tensor, valid_b1HW: Tensor | None) -> Tensor:
        """Feature maps of images; `valid_b1HW`: see the module docstring."""
        valid = self.validity(valid_b1HW)
        x = images_b1HW if valid[0] is None else images_b1HW * valid[0]
        x = self.conv1(x)
        if x.device.type != "cpu":  # a one-channel image has no layout to pass on, and products need channels last
            x = x.contiguous(memory_format=torch.channels_last)
        # pooling before ReLU is a quarter of the work; padding is 0, the maximum only where ReLU gives 0 anyway
        x = F.relu_(F.max_pool2d(self.norm1(x, valid[1]), 2, ceil_mode=True))
        x = self.dense1(x, valid[2])
        x = self.trans1(x, valid[2])
        x = self.dense2(x, valid[3])
        x = self.trans2(x, valid[3])
        x = self.dense3(x, valid[4])
        return self.post_norm(x, valid[4])

    def validity(self, valid_b1HW: Tensor | None) -> list[Tensor | None]:
        """The valid map at every resolution: images, first convolution, three dense blocks."""
        strides = (1, 2, 4, 8, self.stride)
        return [None if valid_b1HW is None else valid_b1HW[:, :, ::stride, ::stride] for stride in strides]


class Encoder(nn.Module):
    """Maps images and padding mask (True = padding) to features [b, h, w, d] and their mask [b, h, w]."""

    def __init__(self, c: TransformerSettings) -> None:
        super().__init__()
        self.mask_padding = c.mask_padding
        self.model = DenseNet(c.growth_rate, c.depths, c.encoder_dropout, c.stride)
        self.feature_proj = nn.Conv2d(self.model.out_channels, c.d_model, kernel_size=1)
        self.norm = nn.LayerNorm(c.d_model)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features and their mask; ink is 1, background 0."""
        valid_b1HW = self.valid_map(images_b1HW, mask_bHW)
        features_bhwd = pointwise(self.feature_proj, self.model(images_b1HW, valid_b1HW)).permute(0, 2, 3, 1)
        return self.add_position(features_bhwd, mask_bHW)

    def valid_map(self, images_b1HW: Tensor, mask_bHW: Tensor) -> Tensor | None:
        """1 = image, 0 = padding, or None where padding counts as image."""
        return (~mask_bHW.bool())[:, None].to(images_b1HW.dtype) if self.mask_padding else None

    def add_position(self, features_bhwd: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Add position encodings and normalize; returns features and their mask."""
        mask_bhw = mask_bHW.bool()[:, :: self.model.stride, :: self.model.stride]
        return self.norm(features_bhwd + image_position(mask_bhw, features_bhwd.shape[-1])), mask_bhw
