"""DenseWAP with dropped attention, after Li, Jin, Lai, Zhu (ICFHR 2020).

In training, part of the attention is dropped at random, so that the decoder learns to read where it looks imprecisely.
The scale augmentation of the same paper is in the presets. There is no program to compare with, and this is their idea
on DenseWAP, not their network, whose encoder is a ResNet. The descriptions at hand (the paper's abstract, section 2 of
CoMER's) leave open, and this file chooses:

- what is dropped: single cells of a step's attention, each with the same probability, the setting `drop_attention`;
- the others are scaled as in dropout, so that the mean of what is read stays the same;
- coverage sums the attention as it was before.
"""

from typing import ClassVar

from torch import Tensor

from hmerbench.models.densewap import CoverageAttention, Decoder, DenseWAP, Memory
from hmerbench.models.layers import Dropout
from hmerbench.models.settings import DropAttentionSettings


class DropAttention(CoverageAttention):
    """Attention that reads a random part of what it looks at, in training."""

    def __init__(self, features: int, c: DropAttentionSettings) -> None:
        super().__init__(features, c.hidden, c.attention, c.coverage_channels, c.coverage_kernel)
        self.drop = Dropout(c.drop_attention)

    def read(self, memory: Memory, weights_bML: Tensor) -> Tensor:
        """The features [b, M, D], weighted by what is left of the attention."""
        return super().read(memory, self.drop(weights_bML))


class DropAttentionDecoder(Decoder):
    """DenseWAP's decoder with this attention."""

    def new_attention(self, features: int, c: DropAttentionSettings) -> DropAttention:
        """Attention that has not learned yet."""
        return DropAttention(features, c)


class DenseWAPDropAttention(DenseWAP):
    """DenseWAP that drops attention while it learns. It reads as DenseWAP does."""

    settings: DropAttentionSettings
    decoder_class: ClassVar = DropAttentionDecoder
