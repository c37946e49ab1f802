"""The image encoder: DenseNet-B, 2-D position encoding, LayerNorm (CoMER, sections 3.2 and 3.3).

Names carry shapes: b images, c channels, H x W pixels, h x w feature cells (16 or 8 pixels wide), d model width.
The padding of a batch counts as image, as in the authors' code, so an image's features depend on its batch.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.dense_block import Bottleneck, grow
from hmerbench.models.layers import BatchNorm2d, Conv2d, Dropout, image_position, pointwise
from hmerbench.models.settings import TransformerSettings


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
        self.bn1 = BatchNorm2d(channels // 2)
        self.dropout = Dropout(dropout)

    def forward(self, x_bchw: Tensor) -> Tensor:
        """[b, channels / 2, h / 2, w / 2], rounded up; h and w are kept if not `pools`."""
        halved = self.dropout(F.relu_(self.bn1(pointwise(self.conv1, x_bchw))))
        return F.avg_pool2d(halved, 2, ceil_mode=True) if self.pools else halved


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
        self.norm1: nn.Module = BatchNorm2d(channels) if outer_norms else nn.Identity()
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
        self.post_norm: nn.Module = BatchNorm2d(self.out_channels) if outer_norms else nn.Identity()

    def forward(self, images_b1HW: Tensor) -> Tensor:
        """Feature maps of images."""
        x = self.conv1(images_b1HW)
        if x.device.type != "cpu":  # a one-channel image has no layout to pass on, and products need channels last
            x = x.contiguous(memory_format=torch.channels_last)
        # pooling before ReLU is a quarter of the work; padding is 0, the maximum only where ReLU gives 0 anyway
        x = F.relu_(F.max_pool2d(self.norm1(x), 2, ceil_mode=True))
        x = self.trans1(self.dense1(x))
        x = self.trans2(self.dense2(x))
        return self.post_norm(self.dense3(x))


class Encoder(nn.Module):
    """Maps images and padding mask (True = padding) to features [b, h, w, d] and their mask [b, h, w]."""

    def __init__(self, c: TransformerSettings) -> None:
        super().__init__()
        self.model = DenseNet(c.growth_rate, c.depths, c.encoder_dropout, c.stride)
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
