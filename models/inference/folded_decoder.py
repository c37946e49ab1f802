"""The network for inference: the encoder, and what `hmerbench.models.decoder` computes, in far fewer operations.

Weights are cast once, the ARM's normalization is folded into its convolution, the keys and values of an image are
computed once, and rows with a common prefix share its computation. results/speed/search_tricks.csv has
what the whole copy saves, and what some of its tricks do.

Names carry shapes: b images, c channels, H x W pixels, h x w feature cells, G groups of hypotheses that read one image,
M beams of a group, R rows, T steps, N words in all, X words that read one image, S word slots, D model width, K outputs
of a linear layer, L = h * w, H heads, E = D / H, C coverage channels, V classes.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Decoder, DecoderLayer
from hmerbench.models.inference.searcher import frozen
from hmerbench.models.layers import float32
from hmerbench.models.vocab import PAD

Affine = tuple[Tensor, Tensor]  # weight, transposed, and bias


def product(x_ND: Tensor, affine: Affine) -> Tensor:
    """A linear layer [N, K] of words; x has the type of the weights."""
    weight_DK, bias_K = affine
    return torch.addmm(bias_K, x_ND, weight_DK)


class FoldedLayer:
    """A decoder layer. The residual stream x_ND of words stays in float32, large products run in `dtype`."""

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype) -> None:
        def affine(linear: nn.Linear) -> Affine:
            return linear.weight.to(dtype).t(), linear.bias.to(dtype)

        words, cells, self.heads, self.dtype = layer.self_attn, layer.multihead_attn, layer.self_attn.heads, dtype
        D = words.in_proj_weight.shape[1]
        scale = math.sqrt(D // self.heads)
        self.words_in = words.in_proj_weight.to(dtype).t(), words.in_proj_bias.to(dtype)
        self.words_out = affine(words.out_proj)
        # the biases of queries, keys and values in the stream's type, in which attention is computed
        self.query = (cells.in_proj_weight[:D] / scale).to(dtype).t(), cells.in_proj_bias[:D] / scale
        self.memory = cells.in_proj_weight[D:].to(dtype).t(), cells.in_proj_bias[D:]
        self.cells_out = affine(cells.out_proj)
        self.widen, self.narrow = affine(layer.linear1), affine(layer.linear2)
        self.norm1, self.norm2, self.norm3 = layer.norm1, layer.norm2, layer.norm3

    def project_memory(self, memory_bLD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [b, H, E, L] and values [b, H, L, E] of images, in the stream's type: a narrower one gains nothing."""
        b, L, D = memory_bLD.shape
        weight_DK, bias_K = self.memory
        both_NK = torch.mm(memory_bLD.reshape(-1, D).to(self.dtype), weight_DK) + bias_K
        both_bL2HE = both_NK.view(b, L, 2, self.heads, -1)
        return both_bL2HE[:, :, 0].permute(0, 2, 3, 1).contiguous(), both_bL2HE[:, :, 1].transpose(1, 2).contiguous()

    def project_words(self, x_ND: Tensor) -> Tensor:
        """Queries, keys and values [N, 3, H, E] of words."""
        return product(x_ND.to(self.dtype), self.words_in).view(len(x_ND), 3, self.heads, -1)

    def attend_words(self, query_RXHE: Tensor, memory_RS2HE: Tensor, mask_R1XS: Tensor) -> Tensor:
        """Weighted values [N, D] of words, N = R * X, before projection. The mask is added: -inf hides a word."""
        key_RHSE, value_RHSE = memory_RS2HE.permute(2, 0, 3, 1, 4).unbind()
        read_RHXE = F.scaled_dot_product_attention(query_RXHE.transpose(1, 2), key_RHSE, value_RHSE, mask_R1XS)
        return read_RHXE.transpose(1, 2).reshape(mask_R1XS.shape[0] * mask_R1XS.shape[2], -1)

    def add_words(self, x_ND: Tensor, read_ND: Tensor) -> Tensor:
        """The rest of the self-attention sublayer."""
        return self.norm1(x_ND + product(read_ND, self.words_out))

    def energies(self, x_ND: Tensor, key_GHEL: Tensor) -> Tensor:
        """Cross-attention energies [G, H, X, L] of N = G * X words, before mask and refinement."""
        (G, H, E, L), (weight_DD, bias_D) = key_GHEL.shape, self.query
        query_ND = torch.mm(x_ND.to(self.dtype), weight_DD) + bias_D
        query_nXE = query_ND.view(G, -1, H, E).transpose(1, 2).reshape(G * H, -1, E)
        return torch.bmm(query_nXE, key_GHEL.view(G * H, E, L)).view(G, H, -1, L)

    def finish(self, x_ND: Tensor, weights_GHXL: Tensor, value_GHLE: Tensor) -> Tensor:
        """The rest of the layer, given its cross-attention weights."""
        G, H, X, L = weights_GHXL.shape
        read_nXE = torch.bmm(weights_GHXL.view(G * H, X, L), value_GHLE.view(G * H, L, -1))
        read_GXHE = read_nXE.view(G, H, X, -1).transpose(1, 2).to(self.dtype, memory_format=torch.contiguous_format)
        x_ND = self.norm2(x_ND + product(read_GXHE.reshape(x_ND.shape), self.cells_out))
        hidden_NK = product(x_ND.to(self.dtype), self.widen).relu_()
        return self.norm3(x_ND + product(hidden_NK, self.narrow))


class FoldedRefinement:
    """The ARM with its batch normalization folded into its last convolution."""

    def __init__(self, arm: AttentionRefinement, dtype: torch.dtype) -> None:
        conv, norm = arm.conv, arm.post_norm.bn
        assert conv.bias is not None and norm.running_var is not None
        scale_H = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        self.cross_coverage, self.self_coverage = arm.cross_coverage, arm.self_coverage
        self.channels, self.dtype = conv.in_channels, dtype
        # channels-last weights bring maps into that layout, too, which is twice as fast in bf16
        self.conv = conv.weight.to(dtype, memory_format=torch.channels_last), conv.bias.to(dtype)
        self.proj_HC = (arm.proj.weight.flatten(1) * scale_H[:, None]).to(dtype)

    def __call__(self, coverage_xCL: Tensor, h: int) -> Tensor:
        """Refinement terms [H, *x, L] from coverage [*x, C, L] of maps of height h; undefined at padding.

        The shift of the normalization is left out: it is constant per head, and softmax ignores a constant.
        """
        *x, C, L = coverage_xCL.shape
        maps_nChw = coverage_xCL.to(self.dtype).view(-1, C, h, L // h)
        hidden_nhwc = F.conv2d(maps_nChw, *self.conv, padding=2).relu_().permute(0, 2, 3, 1)
        return torch.mm(self.proj_HC, hidden_nhwc.flatten(0, 2).t()).view(-1, *x, L)

    def increment(self, previous_GHXL: Tensor, energies_GHXL: Tensor) -> Tensor:
        """What a step adds to the coverage, [G, C, X, L]: previous layer's weights, unrefined weights of this layer."""
        sources = [previous_GHXL] * self.cross_coverage
        sources += [energies_GHXL.softmax(-1)] if self.self_coverage else []
        return torch.cat(sources, dim=1)


class FoldedDecoder:
    """The decoder in evaluation mode."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype) -> None:
        """Large products run in `dtype`: float32, or the type of an autocast."""
        words = torch.arange(decoder.proj.out_features, device=decoder.proj.weight.device)
        self.word_VD, self.step_TD = decoder.word_embed(words), decoder.pos_enc.pe
        self.norm = decoder.norm
        self.layers = [FoldedLayer(layer, dtype) for layer in decoder.model.layers]
        self.arm = FoldedRefinement(decoder.model.arm, dtype) if decoder.model.arm is not None else None
        self.proj = decoder.proj.weight.to(dtype).t(), decoder.proj.bias.to(dtype)
        self.dtype, self.stream = dtype, decoder.proj.weight.dtype

    def embed(self, words_N: Tensor, step: Tensor | int) -> Tensor:
        """Word vectors [N, D]; `step` is one for all words, or one per word."""
        return self.norm(F.embedding(words_N, self.word_VD) + self.step_TD[step])

    def step(
        self,
        x_ND: Tensor,
        memory: Sequence[tuple[Tensor, Tensor]],
        hidden_cells: Tensor,
        read_words: Callable[[int, Tensor], Tensor],
        refinement: Callable[[int, Tensor], Tensor],
    ) -> Tensor:
        """Logits [N, V] of N = G * X words: a decoder pass with coverage, for a search step and whole sequences alike.

        Equals `decoder.Decoder.forward` in evaluation mode up to rounding: folding changes only the order of
        sums (tests/models/inference/test_folded.py), and so does decoding step by step (test_joint_search.py).

        `memory`: keys [G, H, E, L] and values [G, H, L, E] of the images, one pair per layer; `hidden_cells`: True at
        padding, broadcast to [G, H, X, L]; `read_words(layer, words_N3HE)`: self-attention
        output [N, D] for these queries, keys and values; `refinement(layer, increment_GCXL)`: R of the layer, broadcast
        to [G, H, X, L]; the increment of these words counts towards the coverage of later words only (CoMER, eqs.
        15-25).
        """
        weights_GHXL = None
        for j, (layer, (key_GHEL, value_GHLE)) in enumerate(zip(self.layers, memory, strict=True)):
            x_ND = layer.add_words(x_ND, read_words(j, layer.project_words(x_ND)))
            energies_GHXL = layer.energies(x_ND, key_GHEL)
            energies_GHXL.masked_fill_(hidden_cells, torch.finfo(energies_GHXL.dtype).min)
            if self.arm is not None and weights_GHXL is not None:
                energies_GHXL -= refinement(j, self.arm.increment(weights_GHXL, energies_GHXL))
            weights_GHXL = energies_GHXL.softmax(-1)
            x_ND = layer.finish(x_ND, weights_GHXL, value_GHLE)
        return float32(product(x_ND.to(self.dtype), self.proj))


class Reader:
    """A decoder bound to the images that it reads."""

    def __init__(self, decoder: FoldedDecoder, features_bhwd: Tensor, mask_bhw: Tensor) -> None:
        self.decoder, self.h = decoder, mask_bhw.shape[1]
        self.mask_bL = mask_bhw.flatten(1)
        self.memory = [layer.project_memory(features_bhwd.flatten(1, 2)) for layer in decoder.layers]

    def read(self, image: int, inputs_RT: Tensor, length_R: Tensor) -> Tensor:
        """Logits [R, T, V] after every prefix of R rows of one image, longest first; undefined from `length_R` on.

        Common prefixes are read only once, so it pays to pass rows of an image together.
        """
        last_X, number_RT, earlier_XX = distinct_prefixes(inputs_RT, length_R)
        decoder, words_X = self.decoder, inputs_RT.flatten()[last_X]
        visible_XX = (earlier_XX > 0).fill_diagonal_(True) & (words_X != PAD)
        mask_XX = torch.zeros_like(earlier_XX, dtype=decoder.dtype).masked_fill_(~visible_XX, float("-inf"))
        earlier_XX = earlier_XX.to(decoder.dtype)

        def read_words(j: int, words_X3HE: Tensor) -> Tensor:
            query, memory = words_X3HE[None, :, 0], words_X3HE[None, :, 1:]
            return decoder.layers[j].attend_words(query, memory, mask_XX[None, None])

        def refinement(_: int, increment_1CXL: Tensor) -> Tensor:
            increment_XCL = increment_1CXL[0].transpose(0, 1).to(decoder.dtype)
            coverage_XCL = torch.mm(earlier_XX, increment_XCL.flatten(1)).view_as(increment_XCL)
            assert decoder.arm is not None
            return decoder.arm(coverage_XCL, self.h)

        memory = [(key[image : image + 1], value[image : image + 1]) for key, value in self.memory]
        x_XD = decoder.embed(words_X, last_X % inputs_RT.shape[1])
        return decoder.step(x_XD, memory, self.mask_bL[image], read_words, refinement)[number_RT]


class FoldedNetwork:
    """A network in evaluation mode, reusable for any number of batches.

    Large products run in the type of the autocast under which it was created, or in the model's own: float32 or
    float64. It does not follow later changes of the weights. Raises ValueError for a model in training mode.
    """

    @torch.no_grad()
    def __init__(self, model: CoMER) -> None:
        model = frozen(model)
        weight = model.decoder.proj.weight
        device = weight.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        with torch.autocast(device, enabled=False):
            self.decoder = FoldedDecoder(model.decoder, dtype)
        self.encoder = model.encoder
        self.encoder.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.autocast = torch.autocast(device, dtype, enabled=dtype != weight.dtype)

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] of images and their mask [b, h, w]."""
        with self.autocast:
            features_bhwd, mask_bhw = self.encoder(images_b1HW.to(self.decoder.stream), mask_bHW)
        return features_bhwd, mask_bhw


def distinct_prefixes(inputs_RT: Tensor, length_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The X distinct prefixes of rows, which must come longest first: the first row with a prefix must hold all of it.

    Returns the last word of each prefix as an index into R * T; for every word the number [R, T] of its prefix
    (arbitrary but below X from the end of its row on); and, as [X, X] of 0 and 1, which prefixes each one extends.
    """
    R, T = inputs_RT.shape
    same_RRT = (inputs_RT[:, None] == inputs_RT).cumprod(-1)  # [r, s, t]: r and s agree up to t
    first_RT = same_RRT.argmax(1)  # the first row of the same prefix
    row_R1, step_T = torch.arange(R, device=first_RT.device)[:, None], torch.arange(T, device=first_RT.device)
    own_RT = (first_RT == row_R1) & (step_T < length_R[:, None])
    number_RT = own_RT.flatten().cumsum(0).sub_(1).clamp_(min=0).view(R, T).gather(0, first_RT)
    last_X = own_RT.flatten().nonzero()[:, 0]
    before_XT = (step_T < (last_X % T)[:, None]).byte()
    earlier_XX = before_XT.new_zeros(len(last_X), len(last_X)).scatter_add_(1, number_RT[last_X // T], before_XT)
    return last_X, number_RT, earlier_XX
