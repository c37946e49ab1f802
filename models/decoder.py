"""The Transformer decoder with coverage (CoMER, sections 3.1.2, 3.4 and 3.5).

Names carry shapes: b images, B decoder rows (row r reads image r % b), T steps, S keys, L = h * w feature
cells, H heads, E = D / H, D model width, V classes. Attention is spelled out because refinement takes place between
energies and softmax.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.layers import Dropout, float32
from hmerbench.models.position import WordPosition
from hmerbench.models.settings import CoMERSettings, TransformerSettings
from hmerbench.models.vocab import EOS, PAD, SOS


def bidirectional_targets(labels: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Decoder inputs and targets of both directions, each [2b, T] with T = longest label + 1, 0 = pad.

    Rows 0..b-1 read left to right (from sos to eos), rows b..2b-1 right to left (from eos to sos): the start token
    alone tells the direction (BTTR, section 3.4).
    """
    left = [([SOS, *label], [*label, EOS]) for label in labels]
    right = [([EOS, *label[::-1]], [*label[::-1], SOS]) for label in labels]
    length = max(len(label) for label in labels) + 1
    inputs_BT = torch.full((2 * len(labels), length), PAD)
    outputs_BT = inputs_BT.clone()
    for row, (source, target) in enumerate(left + right):
        inputs_BT[row, : len(source)] = torch.tensor(source)
        outputs_BT[row, : len(target)] = torch.tensor(target)
    return inputs_BT, outputs_BT


@dataclass(frozen=True)
class LayerTrace:
    """The cross-attention of one layer, each [B, H, T, L]: the refinement term R (None without ARM and in the first
    layer) and the weights, in training after dropout."""

    refinement: Tensor | None
    attention: Tensor


Trace = list[LayerTrace]


class Attention(nn.Module):
    """Multi-head attention with packed input projections: query, key, value."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.in_proj_weight)  # over the whole packed matrix, as in the authors' code
        nn.init.zeros_(self.out_proj.bias)

    def project_query(self, x_BTD: Tensor) -> Tensor:
        """Scaled queries [B, H, T, E]."""
        D = x_BTD.shape[-1]
        query_BTD = F.linear(x_BTD, self.in_proj_weight[:D], self.in_proj_bias[:D])
        return self._split_heads(query_BTD / math.sqrt(D // self.heads))

    def project_memory(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each [B, H, S, E]."""
        D = x_BSD.shape[-1]
        key_BSD, value_BSD = F.linear(x_BSD, self.in_proj_weight[D:], self.in_proj_bias[D:]).chunk(2, dim=-1)
        return self._split_heads(key_BSD), self._split_heads(value_BSD)

    def energies(self, query_BHTE: Tensor, key_BHSE: Tensor) -> Tensor:
        """Unmasked energies [B, H, T, S]."""
        return float32(query_BHTE @ key_BHSE.transpose(-1, -2))

    def weigh(self, energies_BHTS: Tensor, mask: Tensor) -> Tensor:
        """Softmax over the keys that `mask` (True = hidden, broadcast to [B, H, T, S]) leaves visible, then dropout."""
        # not -inf: 0 times that is NaN
        lowest = torch.finfo(energies_BHTS.dtype).min
        # added, not filled in: energies vanish beside it, and addition needs no backward pass
        return self.dropout((energies_BHTS + mask.to(energies_BHTS.dtype) * lowest).softmax(dim=-1))

    def read(self, weights_BHTS: Tensor, value_BHSE: Tensor) -> Tensor:
        """Weighted values of all heads, projected: [B, T, D]."""
        return self.out_proj((weights_BHTS.to(value_BHSE.dtype) @ value_BHSE).transpose(1, 2).flatten(2))

    def _split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward; each with dropout, residual and then LayerNorm."""

    def __init__(self, d_model: int, heads: int, dim_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, heads, dropout)
        self.multihead_attn = Attention(d_model, heads, dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = Dropout(dropout)

    def attend_words(self, x_BTD: Tensor, mask: Tensor) -> Tensor:
        """Self-attention sublayer on words [B, T, D]."""
        attn = self.self_attn
        key_BHTE, value_BHTE = attn.project_memory(x_BTD)
        weights_BHTT = attn.weigh(attn.energies(attn.project_query(x_BTD), key_BHTE), mask)
        return self.norm1(x_BTD + self.dropout(attn.read(weights_BHTT, value_BHTE)))

    def finish(self, x_BTD: Tensor, weights_BHTL: Tensor, value_BHLE: Tensor) -> Tensor:
        """The rest of the layer, given its cross-attention weights."""
        x = self.norm2(x_BTD + self.dropout(self.multihead_attn.read(weights_BHTL, value_BHLE)))
        return self.norm3(x + self.dropout(self.linear2(self.dropout(F.relu(self.linear1(x))))))


class DecoderStack(nn.Module):
    """All layers, and the one ARM they share. The first layer, which has none before it, is not refined."""

    layers: Sequence[DecoderLayer]

    def __init__(self, layer: DecoderLayer, num_layers: int, arm: AttentionRefinement | None) -> None:
        super().__init__()
        # copies: all layers start with the same weights, as in the authors' code
        copies = nn.ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.layers = copies  # pyright: ignore[reportAttributeAccessIssue]
        self.arm = arm

    def forward(
        self, x_BTD: Tensor, memory_bLD: Tensor, mask_bhw: Tensor, hidden_BTT: Tensor, trace: Trace | None
    ) -> Tensor:
        """Words [B, T, D] after all layers; `hidden_BTT` is True where a word must not attend to another."""
        (B, T, _), b = x_BTD.shape, len(memory_bLD)
        rows = B // b
        # rows that read the same image side by side, so that its keys, values and mask serve them without copies
        x, hidden_R1TT = by_image(x_BTD, b), by_image(hidden_BTT, b)[:, None]
        hidden_b11L = mask_bhw.flatten(1)[:, None, None]
        weights = None
        for layer in self.layers:
            x = layer.attend_words(x, hidden_R1TT).view(b, rows * T, -1)
            attn = layer.multihead_attn
            key, value = attn.project_memory(memory_bLD)
            energies, refinement = attn.energies(attn.project_query(x), key), None
            if self.arm is not None and weights is not None:
                current = attn.weigh(energies, hidden_b11L) if self.arm.self_coverage else None
                refinement = self.arm(weights, current, mask_bhw, rows)
            weights = attn.weigh(energies if refinement is None else energies - refinement, hidden_b11L)
            x = layer.finish(x, weights, value).view(B, T, -1)
            if trace is not None:
                refinement = None if refinement is None else by_row(refinement, rows)
                trace.append(LayerTrace(refinement, by_row(weights, rows)))
        return x.unflatten(0, (b, rows)).transpose(0, 1).flatten(0, 1)


def by_image(x_Bx: Tensor, b: int) -> Tensor:
    """Decoder rows, of which row r reads image r % b, sorted by image."""
    return x_Bx.unflatten(0, (-1, b)).transpose(0, 1).flatten(0, 1)


def by_row(x_bHNL: Tensor, rows: int) -> Tensor:
    """[B, H, T, L] from [b, H, N, L], which holds the N = rows * T words of each image: reverses `by_image`."""
    if rows == 1:
        return x_bHNL
    return x_bHNL.unflatten(2, (rows, -1)).permute(2, 0, 1, 3, 4).flatten(0, 1)


class Decoder(nn.Module):
    """Maps token ids to class logits, given image features."""

    def __init__(self, c: TransformerSettings, classes: int) -> None:
        super().__init__()
        self.word_embed = nn.Sequential(nn.Embedding(classes, c.d_model), nn.LayerNorm(c.d_model))
        self.pos_enc = WordPosition(c.d_model)
        self.norm: nn.Module = nn.LayerNorm(c.d_model)
        arm = None
        if isinstance(c, CoMERSettings) and (c.cross_coverage or c.self_coverage):
            arm = AttentionRefinement(c.nhead, c.dc, c.cross_coverage, c.self_coverage)
        layer = DecoderLayer(c.d_model, c.nhead, c.dim_feedforward, c.dropout)
        self.model = DecoderStack(layer, c.num_decoder_layers, arm)
        self.proj = nn.Linear(c.d_model, classes)

    def forward(self, features_bhwd: Tensor, mask_bhw: Tensor, inputs_BT: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, V] in float32; B is a multiple of b. A given `trace` receives one entry per layer."""
        (B, T), b = inputs_BT.shape, features_bhwd.shape[0]
        if B % b:
            raise ValueError(f"{B} decoder rows cannot share the features of {b} images evenly")
        future_TT = torch.ones(T, T, dtype=torch.bool, device=inputs_BT.device).triu(1)
        hidden_BTT = future_TT | (inputs_BT == PAD)[:, None]
        words_BTD = self.norm(self.pos_enc(self.word_embed(inputs_BT)))
        x_BTD = self.model(words_BTD, features_bhwd.flatten(1, 2), mask_bhw, hidden_BTT, trace)
        return float32(self.proj(x_BTD))
