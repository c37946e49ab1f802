"""The decoder as a search runs it: the numbers of `models.decoder` with far fewer operations.

Weights are cast once, batch normalisation is folded into the convolution before it, the keys and values of an image
are made once, and `IncrementalDecoder` goes on from the step before instead of reading whole prefixes anew.

Names carry shapes: b images, G groups of hypotheses that read one image, M beams of a group, R rows, T steps,
X = any number of words that read one image, S word slots, L = h * w feature cells, H heads, E = D / H, J layers,
C coverage channels, V classes, N = any number of maps.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from models.coverage import AttentionRefinement, exclusive_coverage
from models.decoder import Decoder, DecoderLayer
from models.layers import float32
from models.vocab import PAD

ROOM = 8  # steps for which an incremental decoder has word slots until it must be tidied

Affine = tuple[Tensor, Tensor]  # weight and bias


class FoldedLayer:
    """A decoder layer; the stream x stays in float32, its products are of the given type."""

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype) -> None:
        def affine(weight: Tensor, bias: Tensor) -> Affine:
            return weight.to(dtype), bias.to(dtype)

        words, cells, self.heads, self.dtype = layer.self_attn, layer.multihead_attn, layer.self_attn.heads, dtype
        D = words.in_proj_weight.shape[1]
        scale = math.sqrt(D // self.heads)
        self.words_in = affine(words.in_proj_weight, words.in_proj_bias)
        self.words_out = affine(words.out_proj.weight, words.out_proj.bias)
        self.query = affine(cells.in_proj_weight[:D] / scale, cells.in_proj_bias[:D] / scale)
        self.memory = affine(cells.in_proj_weight[D:], cells.in_proj_bias[D:])
        self.cells_out = affine(cells.out_proj.weight, cells.out_proj.bias)
        self.widen = affine(layer.linear1.weight, layer.linear1.bias)
        self.narrow = affine(layer.linear2.weight, layer.linear2.bias)
        self.norm1, self.norm2, self.norm3 = layer.norm1, layer.norm2, layer.norm3

    def project_memory(self, memory_bLD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [b, H, E, L] and values [b, H, L, E] of images."""
        both = F.linear(memory_bLD.to(self.dtype), *self.memory).unflatten(-1, (2, self.heads, -1))
        return both[:, :, 0].permute(0, 2, 3, 1).contiguous(), both[:, :, 1].transpose(1, 2).contiguous()

    def project_words(self, x_RXD: Tensor) -> Tensor:
        """Queries, keys and values [R, X, 3, H, E] of words."""
        R, X, D = x_RXD.shape
        return F.linear(x_RXD.to(self.dtype), *self.words_in).view(R, X, 3, self.heads, D // self.heads)

    def attend_words(self, x_RXD: Tensor, query_RXHE: Tensor, memory_RS2HE: Tensor, mask_R1XS: Tensor) -> Tensor:
        """Self-attention sublayer; the mask is added, so hidden is -inf."""
        key_RHSE, value_RHSE = memory_RS2HE.permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(query_RXHE.transpose(1, 2), key_RHSE, value_RHSE, mask_R1XS)
        return self.norm1(x_RXD + F.linear(read.transpose(1, 2).flatten(2), *self.words_out))

    def energies(self, x_GXD: Tensor, key_GHEL: Tensor) -> Tensor:
        """Cross-attention energies [G, H, X, L], neither masked nor refined."""
        G, H, E, L = key_GHEL.shape
        query_GXHE = F.linear(x_GXD.to(self.dtype), *self.query).view(G, -1, H, E)
        query_nXE = query_GXHE.transpose(1, 2).reshape(G * H, -1, E)
        return float32(torch.bmm(query_nXE, key_GHEL.view(G * H, E, L))).view(G, H, -1, L)

    def finish(self, x_GXD: Tensor, weights_GHXL: Tensor, value_GHLE: Tensor) -> Tensor:
        """Rest of the layer once the cross-attention weights are known."""
        read_nXE = torch.bmm(weights_GHXL.flatten(0, 1).to(self.dtype), value_GHLE.flatten(0, 1))
        read_GXD = read_nXE.view(*weights_GHXL.shape[:3], -1).transpose(1, 2).flatten(2)
        x_GXD = self.norm2(x_GXD + F.linear(read_GXD, *self.cells_out))
        wide = F.linear(x_GXD.to(self.dtype), *self.widen).relu_()
        return self.norm3(x_GXD + F.linear(wide, *self.narrow))


class FoldedRefinement:
    """The ARM with its batch normalisation folded into its last convolution."""

    def __init__(self, arm: AttentionRefinement, dtype: torch.dtype) -> None:
        conv, norm = arm.conv, arm.post_norm.bn
        mean, var = norm.running_mean, norm.running_var
        assert mean is not None and var is not None and conv.bias is not None
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        self.cross_coverage, self.self_coverage = arm.cross_coverage, arm.self_coverage
        self.channels, self.dtype = conv.in_channels, dtype
        self.conv = conv.weight.to(dtype, memory_format=torch.channels_last), conv.bias.to(dtype)
        self.proj_HC = (arm.proj.weight.flatten(1) * scale[:, None]).to(dtype)
        self.bias_H1 = (norm.bias - mean * scale)[:, None].to(dtype)

    def __call__(self, coverage_xCL: Tensor, h: int) -> Tensor:
        """Refinement terms [H, x, L], where x is any shape, of maps of h rows; of no meaning at padding."""
        *x, C, L = coverage_xCL.shape
        maps_xLC = coverage_xCL.transpose(-1, -2).to(self.dtype, memory_format=torch.contiguous_format)
        maps_NChw = maps_xLC.view(-1, h, L // h, C).permute(0, 3, 1, 2)  # channels last is twice as fast in bf16
        hidden_Nhwc = F.conv2d(maps_NChw, *self.conv, padding=2).relu_().permute(0, 2, 3, 1)
        return torch.addmm(self.bias_H1, self.proj_HC, hidden_Nhwc.flatten(0, 2).t()).view(-1, *x, L)


class FoldedDecoder:
    """A decoder in evaluation and the images it reads."""

    def __init__(self, decoder: Decoder, features_bhwd: Tensor, mask_bhw: Tensor, dtype: torch.dtype) -> None:
        """`dtype`: of the products, float32 or the type of an autocast."""
        self.embed = decoder.embed
        self.layers = [FoldedLayer(layer, dtype) for layer in decoder.model.layers]
        self.arm = FoldedRefinement(decoder.model.arm, dtype) if decoder.model.arm is not None else None
        self.proj = decoder.proj.weight.to(dtype), decoder.proj.bias.to(dtype)
        self.memory = [layer.project_memory(features_bhwd.flatten(1, 2)) for layer in self.layers]
        self.h, self.mask_bL, self.padded = mask_bhw.shape[1], mask_bhw.flatten(1), bool(mask_bhw.any())
        self.dtype, self.stream = dtype, float32(features_bhwd).dtype

    def classify(self, x_xD: Tensor) -> Tensor:
        """Logits [..., V]."""
        return float32(F.linear(x_xD.to(self.dtype), *self.proj))

    def read(self, image: int, inputs_RT: Tensor) -> Tensor:
        """Logits [R, T, V] after every prefix of R rows that read one image."""
        R, T = inputs_RT.shape
        future_TT = torch.ones(T, T, dtype=torch.bool, device=inputs_RT.device).triu(1)
        hidden_R1TT = (future_TT | (inputs_RT == PAD)[:, None])[:, None]
        mask_R1TT = torch.zeros_like(hidden_R1TT, dtype=self.dtype).masked_fill_(hidden_R1TT, float("-inf"))
        mask_1L = self.mask_bL[image : image + 1]
        x_RTD, weights_1HXL = self.embed(inputs_RT), None
        for layer, (key_bHEL, value_bHLE) in zip(self.layers, self.memory, strict=True):
            words_RT3HE = layer.project_words(x_RTD)
            x_RTD = layer.attend_words(x_RTD, words_RT3HE[:, :, 0], words_RT3HE[:, :, 1:], mask_R1TT)
            x_1XD = x_RTD.flatten(0, 1)[None]
            energies_1HXL = layer.energies(x_1XD, key_bHEL[image : image + 1])
            if self.padded:
                energies_1HXL.masked_fill_(mask_1L, torch.finfo(energies_1HXL.dtype).min)
            if self.arm is not None and weights_1HXL is not None:
                sources = [weights_1HXL] * self.arm.cross_coverage
                sources += [energies_1HXL.softmax(-1)] if self.arm.self_coverage else []
                looked_CRTL = torch.cat(sources, dim=1)[0].unflatten(1, (R, T))
                coverage_RTCL = exclusive_coverage(looked_CRTL).permute(1, 2, 0, 3)
                energies_1HXL -= self.arm(coverage_RTCL, self.h).flatten(1, 2)
            weights_1HXL = energies_1HXL.softmax(-1)
            x_RTD = layer.finish(x_1XD, weights_1HXL, value_bHLE[image : image + 1]).view_as(x_RTD)
        return self.classify(x_RTD)


class IncrementalDecoder:
    """One step at a time for M beams in each of G groups; equals reading all prefixes anew.

    Coverage is exclusive: what a layer must be refined by is known before the step, from running sums, so one
    call of the ARM serves all layers. Words' keys and values stay in the slot they were written to when beams
    change places; `mask_GMS` (0 or -inf) tells on which slots of its group a beam is built.
    """

    def __init__(self, folded: FoldedDecoder, image_G: Tensor, beams: int) -> None:
        self.folded, self.arm, self.layers = folded, folded.arm, folded.layers
        self.memory = [(key[image_G], value[image_G]) for key, value in folded.memory]
        self.hidden_GL = folded.mask_bL[image_G]
        self.steps, self.slots = 0, 0  # fed so far, written so far
        (G, H, E, L), M, J = self.memory[0][0].shape, beams, len(self.layers)
        self.words_JGS2HE = self.memory[0][0].new_zeros(J, G, ROOM * M, 2, H, E)
        self.mask_GMS = torch.full((G, M, ROOM * M), float("-inf"), dtype=folded.dtype, device=image_G.device)
        self.root_MM = self.mask_GMS.new_full((M, M), float("-inf")).fill_diagonal_(0)
        C = self.arm.channels if self.arm is not None else 0
        self.coverage_GMJCL = torch.zeros(G, M, J - 1, C, L, dtype=folded.stream, device=image_G.device)

    @property
    def full(self) -> bool:
        return self.slots == self.mask_GMS.shape[-1]

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] after one more token of every beam; needs a free slot per beam."""
        G, M = tokens_GM.shape
        x_GMD = self.folded.embed(tokens_GM.view(-1, 1), self.steps).view(G, M, -1)
        old, self.slots, self.steps = self.slots, self.slots + M, self.steps + 1
        # an inner PAD is hidden from all words after it and from itself, as in the authors' code
        self.mask_GMS[:, :, old : self.slots] = self.root_MM.masked_fill((tokens_GM == PAD)[:, None], float("-inf"))
        mask_G1MS = self.mask_GMS[:, None, :, : self.slots]
        refinement_HGMJL, weights_GHML = self._refinement(), None
        for j, (layer, (key_GHEL, value_GHLE)) in enumerate(zip(self.layers, self.memory, strict=True)):
            words_GM3HE, words_GS2HE = layer.project_words(x_GMD), self.words_JGS2HE[j, :, : self.slots]
            words_GS2HE[:, old:] = words_GM3HE[:, :, 1:]
            x_GMD = layer.attend_words(x_GMD, words_GM3HE[:, :, 0], words_GS2HE, mask_G1MS)
            energies_GHML = layer.energies(x_GMD, key_GHEL)
            if self.folded.padded:
                energies_GHML.masked_fill_(self.hidden_GL[:, None, None], torch.finfo(energies_GHML.dtype).min)
            if self.arm is not None and refinement_HGMJL is not None and weights_GHML is not None:
                coverage_GCML = self.coverage_GMJCL[:, :, j - 1].transpose(1, 2)
                if self.arm.cross_coverage:
                    coverage_GCML[:, : layer.heads] += weights_GHML
                if self.arm.self_coverage:
                    coverage_GCML[:, -layer.heads :] += energies_GHML.softmax(-1)
                energies_GHML -= refinement_HGMJL[:, :, :, j - 1].transpose(0, 1)
            weights_GHML = energies_GHML.softmax(-1)
            x_GMD = layer.finish(x_GMD, weights_GHML, value_GHLE)
        return self.folded.classify(x_GMD)

    def _refinement(self) -> Tensor | None:
        """R [H, G, M, J, L] of this step for all layers but the first."""
        if self.arm is None or self.coverage_GMJCL.shape[2] == 0:
            return None
        return self.arm(self.coverage_GMJCL, self.folded.h)

    def reorder(self, parents_GM: Tensor) -> None:
        """Beam m of each group goes on from what was beam parents[m]."""
        self.mask_GMS = _take(self.mask_GMS, parents_GM)
        if self.arm is not None:
            self.coverage_GMJCL = _take(self.coverage_GMJCL, parents_GM)

    def tidy(self, live_G: Tensor) -> None:
        """Keeps the groups whose indices are given and the slots that some beam is built on; makes room."""
        self.memory = [(key[live_G], value[live_G]) for key, value in self.memory]
        self.hidden_GL, self.coverage_GMJCL = self.hidden_GL[live_G], self.coverage_GMJCL[live_G]
        mask_GMS = self.mask_GMS[live_G, :, : self.slots]
        used_GS = (mask_GMS == 0).any(1)
        kept = int(used_GS.sum(1).max())
        slots_GS = used_GS.byte().argsort(dim=1, descending=True, stable=True)[:, :kept]
        room = ROOM * mask_GMS.shape[1]
        # room for new slots must not hold NaN, which a mask does not hide
        self.words_JGS2HE = F.pad(self.words_JGS2HE[:, live_G[:, None], slots_GS], (0, 0, 0, 0, 0, 0, 0, room))
        self.mask_GMS = mask_GMS.gather(2, slots_GS[:, None].expand(-1, mask_GMS.shape[1], -1))
        self.mask_GMS, self.slots = F.pad(self.mask_GMS, (0, room), value=float("-inf")), kept


def _take(x_GMx: Tensor, beams_GM: Tensor) -> Tensor:
    """x[g, beams[g, m]] for all g and m."""
    G, M = beams_GM.shape
    rows_GM = beams_GM + torch.arange(0, G * M, M, device=beams_GM.device)[:, None]
    return x_GMx.flatten(0, 1).index_select(0, rows_GM.flatten()).unflatten(0, (G, M))
