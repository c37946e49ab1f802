"""DenseWAP with several attention heads and decoder layers, after Ding, Chen, Huo (ICDAR 2021).

They take multi-head attention and the stacked decoder from the Transformer to a recurrent decoder. There is no program
to compare with. The descriptions at hand (section 2 of CoMER's paper) leave open, and this file chooses:

- a head: DenseWAP's attention with its share of the channels, which sees its own past attention alone;
- what heads read: a linear layer of all that they read side by side, without projections of its own for each;
- a layer: DenseWAP's GRU, attention, GRU; its input is the state of the layer below. Neither residuals nor norms;
- every layer begins with the same state, and the words are predicted from the top one;
- how many heads and layers: the settings `heads` and `layers`.

Names carry shapes: those of `densewap.py`, S layers, J heads of a layer.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hmerbench.models.densewap import ConditionalGRU, CoverageAttention, Decoder, DenseWAP, Features, GRUCell, Step
from hmerbench.models.settings import StackedSettings


class Memories(tuple):
    """One memory for each head, or for each layer."""

    def select(self, index_b: Tensor) -> "Memories":
        """The images with the given indices."""
        return Memories(memory.select(index_b) for memory in self)


class MultiHeadAttention(nn.Module):
    """Several coverage attentions side by side, and a linear layer that joins what they read."""

    def __init__(self, features: int, c: StackedSettings) -> None:
        super().__init__()
        sizes = c.hidden, c.attention // c.heads, c.coverage_channels // c.heads, c.coverage_kernel
        self.heads = nn.ModuleList(CoverageAttention(features, *sizes) for _ in range(c.heads))
        self.join = nn.Linear(c.heads * features, features)

    def remember(self, maps_bhwD: Tensor, mask_bhw: Tensor) -> Memories:
        """What each head needs at every step."""
        return Memories(head.remember(maps_bhwD, mask_bhw) for head in self.heads)  # pyright: ignore

    def forward(self, memory: Memories, state_bMn: Tensor, past_bMJhw: Tensor) -> tuple[Tensor, Tensor]:
        """Attention [b, M, J, h, w] and the features [b, M, D] that all heads read."""
        parts = zip(self.heads, memory, past_bMJhw.unbind(2), strict=True)
        attention, contexts = zip(*(head(part, state_bMn, past_bMhw) for head, part, past_bMhw in parts), strict=True)
        return torch.stack(attention, dim=2), self.join(torch.cat(contexts, dim=-1))


class UpperLayer(ConditionalGRU):
    """A layer that reads the states of the layer below."""

    def __init__(self, features: int, c: StackedSettings) -> None:
        super().__init__()
        self.cell1 = GRUCell(c.hidden, c.hidden)
        self.attention = MultiHeadAttention(features, c)
        self.cell2 = GRUCell(features, c.hidden, state_bias=True)


class StackedDecoder(Decoder):
    """DenseWAP's decoder with layers above it. States are [b, M, S, n], past attention is [b, M, S, J, h, w]."""

    def __init__(self, features: int, classes: int, c: StackedSettings) -> None:
        super().__init__(features, classes, c)
        self.upper = nn.ModuleList(UpperLayer(features, c) for _ in range(c.layers - 1))
        self.heads = c.heads

    @property
    def layers(self) -> list[ConditionalGRU]:
        """All layers, from the bottom up; the first is the decoder itself."""
        return [self, *self.upper]  # pyright: ignore[reportReturnType] (modules of a list have no class of their own)

    def new_attention(self, features: int, c: StackedSettings) -> MultiHeadAttention:
        """Attention that has not learned yet."""
        return MultiHeadAttention(features, c)

    def begin(self, features: Features) -> tuple[Memories, Tensor, Tensor]:
        """Memory, state [b, 1, S, n] and past attention [b, 1, S, J, h, w] before the first step."""
        memory = Memories(layer.attention.remember(*features[:2]) for layer in self.layers)
        (b, *cells), S = features.mask_bhw.shape, len(memory)
        state_b1Sn = features.state_bn[:, None, None].expand(-1, -1, S, -1)
        return memory, state_b1Sn, features.state_bn.new_zeros((b, 1, S, self.heads, *cells), dtype=torch.float32)

    def step(self, memory: Any, products_bM3n: Tensor, state_bMSn: Tensor, past_bMSJhw: Tensor) -> Step:
        """One step of every layer; the attention to show is the mean of the top layer's heads."""
        steps: list[Step] = []
        for s, layer in enumerate(self.layers):
            if steps:
                products_bM3n = layer.cell1.input(steps[-1].state_bMn)
            state_bMn, past_bMJhw = state_bMSn[:, :, s], past_bMSJhw[:, :, s]
            steps.append(ConditionalGRU.step(layer, memory[s], products_bM3n, state_bMn, past_bMJhw))
        middle_bMn, attention_bMJhw, context_bMD, *_ = steps[-1]
        state_bMSn = torch.stack([step.state_bMn for step in steps], dim=2)
        past_bMSJhw = torch.stack([step.past_bMhw for step in steps], dim=2)
        return Step(middle_bMn, attention_bMJhw.mean(2), context_bMD, state_bMSn, past_bMSJhw)

    def scores(self, context_xD: Tensor, state_xSn: Tensor, previous_xm: Tensor) -> Tensor:
        """Logits [..., V] from what the top layer reads and its state."""
        return super().scores(context_xD, state_xSn[..., -1, :], previous_xm)


class DenseWAPStacked(DenseWAP):
    """DenseWAP with this decoder."""

    settings: StackedSettings
    decoder_class: ClassVar = StackedDecoder
