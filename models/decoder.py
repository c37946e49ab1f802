"""The Transformer decoder with coverage (CoMER, sections 3.1.2, 3.4 and 3.5).

The same modules train, search and are exported: what differs is where words find those before them (`Earlier`).

Names carry shapes: b images, B decoder rows (row r reads image r % b), T steps, G groups of words that read one image
(in training b), X words of a group, n sequences in all, sorted by image, S keys, L = h * w feature cells, H heads, E =
D / H, D model width, C coverage channels, V classes. Attention is spelled out because refinement takes place between
energies and softmax.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.coverage import AttentionRefinement, exclusive_coverage
from hmerbench.models.layers import Dropout, WordPosition, float32
from hmerbench.models.settings import CoMERSettings, TransformerSettings
from hmerbench.models.vocab import EOS, PAD, SOS


def bidirectional_targets(labels: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Decoder inputs and targets of both directions, each [2b, T] with T = longest label + 1, 0 = pad.

    Rows 0..b-1 read left to right (from sos to eos), rows b..2b-1 right to left (from eos to sos): the start token
    alone tells the direction (BTTR, section 3.4).
    """
    inputs = [[SOS, *label] for label in labels] + [[EOS, *label[::-1]] for label in labels]
    outputs = [[*label, EOS] for label in labels] + [[*label[::-1], SOS] for label in labels]
    return padded(inputs), padded(outputs)


def padded(rows: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@dataclass(frozen=True)
class LayerTrace:
    """The cross-attention of one layer, each [G, H, X, L], or [B, H, T, L] from `Decoder.forward`: the refinement term
    R (None without ARM and in the first layer) and the weights, in training after dropout."""

    refinement: Tensor | None
    attention: Tensor


Trace = list[LayerTrace]
Memory = list[tuple[Tensor, Tensor]]  # keys and values of the image, for each layer


def lowest(mask: Tensor) -> Tensor:
    """What to add to energies: 0, and the lowest number where the mask is True, beside which any energy vanishes.

    Not -inf: 0 times that is NaN. Added, not filled in: that needs no backward pass.
    """
    return mask.float() * torch.finfo(torch.float32).min


def fitting(x: Tensor, weight: Tensor) -> Tensor:
    """x in the type of the weights of a decoder that is cast for reading; under an autocast, as it is."""
    if x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(weight.dtype, memory_format=torch.contiguous_format)


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer; in a decoder that is cast for reading, the result has the type of the bias."""
    x = fitting(x, weight)
    return F.linear(x, weight, bias) if weight.dtype == bias.dtype else F.linear(x, weight) + bias


class Linear(nn.Linear):
    """torch's, as `product`."""

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


class Attention(nn.Module):
    """Multi-head attention with packed input projections: query, key, value."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        self.out_proj = Linear(d_model, d_model)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.in_proj_weight)  # over the whole packed matrix, as in the authors' code
        nn.init.zeros_(self.out_proj.bias)

    def project(self, x_GXD: Tensor) -> Tensor:
        """Unscaled queries, keys and values of words that attend to each other, [G, X, 3, H, E]."""
        return product(x_GXD, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.heads, -1))

    def project_query(self, x_GXD: Tensor) -> Tensor:
        """Scaled queries [G, H, X, E]."""
        D = x_GXD.shape[-1]
        query_GXD = product(x_GXD, self.in_proj_weight[:D], self.in_proj_bias[:D])
        return self._split_heads(query_GXD / math.sqrt(D // self.heads))

    def project_memory(self, x_GSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each [G, H, S, E]."""
        D = x_GSD.shape[-1]
        key_GSD, value_GSD = product(x_GSD, self.in_proj_weight[D:], self.in_proj_bias[D:]).chunk(2, dim=-1)
        return self._split_heads(key_GSD), self._split_heads(value_GSD)

    def energies(self, query_GHXE: Tensor, key_GHSE: Tensor, hidden: Tensor) -> Tensor:
        """Energies [G, H, X, S]; of keys that are `hidden`, broadcast to them, `lowest`."""
        return float32(query_GHXE @ key_GHSE.transpose(-1, -2)).add_(hidden)

    def weigh(self, energies_GHXS: Tensor) -> Tensor:
        """Softmax over the keys, then dropout."""
        return self.dropout(energies_GHXS.softmax(dim=-1))

    def read(self, weights_GHXS: Tensor, value_GHSE: Tensor) -> Tensor:
        """Weighted values of all heads [G, X, D], for `out_proj`."""
        read_GXHE = (weights_GHXS.to(value_GHSE.dtype) @ value_GHSE).transpose(-3, -2)
        return fitting(read_GXHE, self.out_proj.weight).flatten(-2)

    def _split_heads(self, x_GSD: Tensor) -> Tensor:
        return x_GSD.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward; each with dropout, residual and then LayerNorm."""

    def __init__(self, c: TransformerSettings) -> None:
        super().__init__()
        self.self_attn = Attention(c.d_model, c.nhead, c.dropout)
        self.multihead_attn = Attention(c.d_model, c.nhead, c.dropout)
        self.linear1 = Linear(c.d_model, c.dim_feedforward)
        self.linear2 = Linear(c.dim_feedforward, c.d_model)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(c.d_model) for _ in range(3))
        self.dropout = Dropout(c.dropout)

    def add_words(self, x_GXD: Tensor, read_GXD: Tensor) -> Tensor:
        """The rest of the self-attention sublayer, given what it reads."""
        return self.norm1(x_GXD + self.dropout(self.self_attn.out_proj(read_GXD)))

    def finish(self, x_GXD: Tensor, weights_GHXL: Tensor, value_GHLE: Tensor) -> Tensor:
        """The rest of the layer, given its cross-attention weights."""
        attn = self.multihead_attn
        x = self.norm2(x_GXD + self.dropout(attn.out_proj(attn.read(weights_GHXL, value_GHLE))))
        return self.norm3(x + self.dropout(self.linear2(self.dropout(F.relu_(self.linear1(x))))))


class Earlier(Protocol):
    """The images that the decoder reads, and all words before those that it reads: self-attention to them, and coverage
    by them, of each layer."""

    memory: Memory
    bias_G11L: Tensor  # `lowest` of padding

    def attend(self, j: int, attn: Attention, x_GXD: Tensor, /) -> Tensor:
        """What words [G, X, D] of layer j read in each other and in those before, [G, X, D]."""
        ...

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor, /) -> Tensor:
        """R of layer j, broadcast to [G, H, X, L]; `seen` by these words counts for later ones only (CoMER, eqs.
        15-25)."""
        ...


class Cache(Earlier, Protocol):
    """The same in a search."""

    @property
    def place(self) -> Tensor | int:
        """The position of the words that are read: one for all, or one each."""
        ...


class WholeSequences:
    """Words that are all there: in training. Each image is a group, of as many sequences of T words as it has rows."""

    def __init__(self, memory: Memory, masked_BTT: Tensor, mask_bhw: Tensor) -> None:
        self.memory, self.bias_G11L = memory, lowest(mask_bhw).flatten(1)[:, None, None]
        self.bias_n1TT, self.mask_bhw = by_image(lowest(masked_BTT), len(mask_bhw))[:, None], mask_bhw

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        """In each sequence by itself."""
        x_nTD = x_GXD.reshape(len(self.bias_n1TT), -1, x_GXD.shape[-1])
        key_nHTE, value_nHTE = attn.project_memory(x_nTD)
        weights_nHTT = attn.weigh(attn.energies(attn.project_query(x_nTD), key_nHTE, self.bias_n1TT))
        return attn.read(weights_nHTT, value_nHTE).view_as(x_GXD)

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        """Coverage by all earlier words of the sequence; gradients flow to all earlier steps."""
        rows = len(self.bias_n1TT) // len(self.mask_bhw)
        apart = seen_GCXL.unflatten(2, (rows, -1)).flatten(1, 2)  # [G, C * rows, T, L]
        return arm(exclusive_coverage(apart).reshape(seen_GCXL.shape), self.mask_bhw)


class DecoderStack(nn.Module):
    """All layers, and the one ARM they share. The first layer, which has none before it, is not refined."""

    layers: Sequence[DecoderLayer]

    def __init__(self, c: TransformerSettings) -> None:
        super().__init__()
        arm = None
        if isinstance(c, CoMERSettings) and (c.cross_coverage or c.self_coverage):
            arm = AttentionRefinement(c)
        layer = DecoderLayer(c)
        # copies: all layers start with the same weights, as in the authors' code
        copies = nn.ModuleList(copy.deepcopy(layer) for _ in range(c.num_decoder_layers))
        self.layers = copies  # pyright: ignore[reportAttributeAccessIssue]
        self.arm = arm

    def remember(self, features_bLD: Tensor) -> Memory:
        """Keys and values [b, H, L, E] of the images, for each layer."""
        return [layer.multihead_attn.project_memory(features_bLD) for layer in self.layers]

    def forward(self, x_GXD: Tensor, earlier: Earlier, trace: Trace | None = None) -> Tensor:
        """Words [G, X, D] after all layers."""
        weights = None
        for j, (layer, (key, value)) in enumerate(zip(self.layers, earlier.memory, strict=True)):
            x_GXD = layer.add_words(x_GXD, earlier.attend(j, layer.self_attn, x_GXD))
            attn = layer.multihead_attn
            energies, refinement = attn.energies(attn.project_query(x_GXD), key, earlier.bias_G11L), None
            if self.arm is not None and weights is not None:
                current = attn.weigh(energies) if self.arm.self_coverage else None
                refinement = earlier.refine(j, self.arm, self.arm.seen(weights, current))
            weights = attn.weigh(energies if refinement is None else energies - refinement)
            x_GXD = layer.finish(x_GXD, weights, value)
            if trace is not None:
                trace.append(LayerTrace(refinement, weights))
        return x_GXD


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
        self.model = DecoderStack(c)
        self.proj = Linear(c.d_model, classes)

    def step(self, words_GX: Tensor, cache: Cache, trace: Trace | None = None) -> Tensor:
        """Logits [G, X, V] in float32 after more words of G groups, given all words before them. A given `trace`
        receives one entry per layer."""
        x_GXD = self.norm(self.word_embed(words_GX) + self.pos_enc.pe[cache.place])
        return float32(self.proj(self.model(x_GXD, cache, trace)))

    def forward(self, features_bhwd: Tensor, mask_bhw: Tensor, inputs_BT: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, V] in float32 of the next token after each prefix of inputs; rows r, r + b, ... read image r. A
        given `trace`, which is empty, receives one entry per layer."""
        (B, T), b = inputs_BT.shape, features_bhwd.shape[0]
        if B % b:
            raise ValueError(f"{B} decoder rows cannot share the features of {b} images evenly")
        future_TT = torch.ones(T, T, dtype=torch.bool, device=inputs_BT.device).triu(1)
        memory = self.model.remember(features_bhwd.flatten(1, 2))
        earlier = WholeSequences(memory, future_TT | (inputs_BT == PAD)[:, None], mask_bhw)
        words_BTD = self.norm(self.pos_enc(self.word_embed(inputs_BT)))
        # rows that read the same image side by side, so that its keys, values and mask serve them without copies
        x_bXD = self.model(by_image(words_BTD, b).reshape(b, -1, words_BTD.shape[-1]), earlier, trace)
        if trace is not None:
            for j, layer in enumerate(trace):
                refinement = None if layer.refinement is None else by_row(layer.refinement, B // b)
                trace[j] = LayerTrace(refinement, by_row(layer.attention, B // b))
        x_BTD = x_bXD.unflatten(1, (-1, T)).transpose(0, 1).flatten(0, 1)
        return float32(self.proj(x_BTD))
