"""Networks of CoMER's kind, prepared to read: their weights cast once, whole hypotheses read without repetition, and
beams read word by word, each step continuing from the one before.

Names carry shapes: b images, G groups of hypotheses that read one image, M beams of a group, R rows, T steps, X words
that read one image, S word slots, D model width, L = h * w feature cells, H heads, E = D / H, J layers, C coverage
channels, V classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Attention, Decoder, Linear, lowest
from hmerbench.models.inference.searcher import frozen
from hmerbench.models.vocab import PAD

ROOM_STEPS = 8  # there are word slots for this many steps before `compact` must free some


@torch.no_grad()
def cast(decoder: Decoder, dtype: torch.dtype) -> None:
    """Let large products run in `dtype`, without casting their weights each time; fold the ARM's normalization, and
    normalize word vectors once.

    The residual stream stays in its type, and so does cross-attention, where a narrower one gains nothing.
    """
    words = torch.arange(decoder.proj.out_features, device=decoder.proj.weight.device)
    with torch.autocast(words.device.type, enabled=False):
        decoder.word_embed = nn.Sequential(nn.Embedding.from_pretrained(decoder.word_embed(words)))
    if decoder.model.arm is not None:
        decoder.model.arm.fold()
        # channels-last weights bring maps into that layout, too, which is twice as fast in bf16
        decoder.model.arm.conv.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for module in decoder.modules():
        if isinstance(module, Linear | nn.Conv2d):
            module.to(dtype)
        elif isinstance(module, Attention):
            module.in_proj_weight.data = module.in_proj_weight.to(dtype)
    for layer in decoder.model.layers:
        layer.self_attn.in_proj_bias.data = layer.self_attn.in_proj_bias.to(dtype)


class ReadingNetwork:
    """A network in evaluation mode, reusable for any number of batches.

    Large products run in the type of the autocast under which it was created, or in the model's own: float32 or
    float64. It does not follow later changes of the weights. Raises ValueError for a model in training mode.
    """

    def __init__(self, model: CoMER) -> None:
        model = frozen(model)
        self.stream = model.decoder.proj.weight.dtype
        device = model.decoder.proj.weight.device.type
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.stream
        cast(model.decoder, self.dtype)
        self.model = model
        model.encoder.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.autocast = torch.autocast(device, self.dtype, enabled=self.dtype != self.stream)


class BoundNetwork:
    """A network bound to the images that it reads."""

    def __init__(self, network: ReadingNetwork, images_b1HW: Tensor, mask_bHW: Tensor) -> None:
        self.network = network
        with network.autocast:
            features_bhwd, self.mask_bhw = network.model.encode(images_b1HW.to(network.stream), mask_bHW)
        self.bias_b11L = lowest(self.mask_bhw).flatten(1)[:, None, None]
        memory = network.model.decoder.model.remember(features_bhwd.flatten(1, 2))
        self.memory = [(key.contiguous(), value.contiguous()) for key, value in memory]  # else copied at every step

    def read(self, image: int, inputs_RT: Tensor, length_R: Tensor) -> Tensor:
        """Logits [R, T, V] after every prefix of R rows of one image, longest first; undefined from `length_R` on.

        Common prefixes are read only once, so it pays to pass rows of an image together.
        """
        last_X, number_RT, earlier_XX = distinct_prefixes(inputs_RT, length_R)
        words_X = inputs_RT.flatten()[last_X]
        prefixes = Prefixes(self, image, words_X, last_X % inputs_RT.shape[1], earlier_XX)
        return self.network.model.step(words_X[None], prefixes)[0, number_RT]


class Prefixes:
    """Prefixes of hypotheses that read one image, each standing for its last word, a `decoder.Cache`. A prefix comes
    after all those that it extends."""

    def __init__(self, bound: BoundNetwork, image: int, words_X: Tensor, place_X: Tensor, earlier_XX: Tensor) -> None:
        one, dtype = slice(image, image + 1), bound.network.dtype
        self.memory = [(key[one], value[one]) for key, value in bound.memory]
        self.bias_G11L, self.mask_1hw, self.place = bound.bias_b11L[one], bound.mask_bhw[one], place_X
        visible_XX = (earlier_XX > 0).fill_diagonal_(True) & (words_X != PAD)
        mask_XX = torch.zeros_like(earlier_XX, dtype=dtype).masked_fill_(~visible_XX, float("-inf"))
        self.mask_11XX, self.earlier_XX = mask_XX[None, None], earlier_XX.to(dtype)

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        words_1X3HE = attn.project(x_GXD)
        return attend(words_1X3HE[:, :, 0], words_1X3HE[:, :, 1:], self.mask_11XX)

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        seen_XCL = seen_GCXL[0].transpose(0, 1).to(self.earlier_XX.dtype)
        coverage_XCL = torch.mm(self.earlier_XX, seen_XCL.flatten(1)).view_as(seen_XCL)
        return arm(coverage_XCL.transpose(0, 1)[None], self.mask_1hw)


def attend(query_GXHE: Tensor, memory_GS2HE: Tensor, mask_G1XS: Tensor) -> Tensor:
    """Weighted values [G, X, D] of words. The mask is added: -inf hides a word."""
    key_GHSE, value_GHSE = memory_GS2HE.permute(2, 0, 3, 1, 4).unbind()
    read_GHXE = F.scaled_dot_product_attention(query_GXHE.transpose(1, 2), key_GHSE, value_GHSE, mask_G1XS)
    return read_GHXE.transpose(1, 2).flatten(2)


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


class IncrementalDecoder:
    """Decodes one step at a time for M beams in each of G groups; equals reading all prefixes again.

    It is a `decoder.Cache`: self-attention and coverage over the words decoded so far. Coverage, which excludes the
    current step, is a running sum for each layer but the first. The keys and values of words stay in their slots when
    beams are reordered; `mask_GMS` (0 or -inf) says which slots of its group are part of a beam.
    """

    def __init__(self, bound: BoundNetwork, image_G: Tensor, beams: int) -> None:
        self.network, dtype = bound.network.model, bound.network.dtype
        self.memory = [(key[image_G], value[image_G]) for key, value in bound.memory]
        self.bias_G11L, self.mask_Ghw = bound.bias_b11L[image_G], bound.mask_bhw[image_G]
        self.place, self.slots = 0, 0  # steps taken and slots written so far
        (G, H, L, E), M, J = self.memory[0][0].shape, beams, len(self.memory)
        self.mask_GMS = torch.full((G, M, ROOM_STEPS * M), float("-inf"), dtype=dtype, device=image_G.device)
        self.root_MM = self.mask_GMS.new_full((M, M), float("-inf")).fill_diagonal_(0)
        self.words_GS2HE = [self.mask_GMS.new_zeros(G, ROOM_STEPS * M, 2, H, E) for _ in range(J)]
        C = arm.conv.in_channels if (arm := self.network.decoder.model.arm) is not None else 0
        self.coverage_GMJCL = torch.zeros(G, M, J - 1, C, L, dtype=bound.network.stream, device=image_G.device)

    @property
    def full(self) -> bool:
        """Whether the beams lack free word slots; `compact` makes room."""
        return self.slots + self.mask_GMS.shape[1] > self.mask_GMS.shape[2]

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] after one more token per beam, each of which needs a free slot."""
        M = tokens_GM.shape[1]
        self.slots += M
        # a PAD inside a hypothesis is hidden from itself and from all later words, as in the authors' code
        self.mask_GMS[:, :, self.slots - M : self.slots] = self.root_MM[:M, :M].masked_fill(
            (tokens_GM == PAD)[:, None], float("-inf")
        )
        logits_GMV = self.network.step(tokens_GM, self)
        self.place += 1
        return logits_GMV

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        words_GM3HE, words_GS2HE = attn.project(x_GXD), self.words_GS2HE[j][:, : self.slots]
        words_GS2HE[:, -x_GXD.shape[1] :] = words_GM3HE[:, :, 1:]
        return attend(words_GM3HE[:, :, 0], words_GS2HE, self.mask_GMS[:, None, :, : self.slots])

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        coverage_GMCL = self.coverage_GMJCL[:, :, j - 1]
        refinement_GHML = arm(coverage_GMCL.transpose(1, 2), self.mask_Ghw)
        coverage_GMCL += seen_GCXL.transpose(1, 2)  # affects later steps only
        return refinement_GHML

    def reorder(self, parents_GM: Tensor) -> None:
        """Let beam m of each group continue what was beam parents[m]; there may be fewer beams than before."""
        G, M, _ = self.mask_GMS.shape
        rows_N = (parents_GM + torch.arange(0, G * M, M, device=parents_GM.device)[:, None]).flatten()
        self.mask_GMS = self.mask_GMS.flatten(0, 1).index_select(0, rows_N).unflatten(0, (G, -1))
        if self.coverage_GMJCL.numel():
            self.coverage_GMJCL = self.coverage_GMJCL.flatten(0, 1).index_select(0, rows_N).unflatten(0, (G, -1))

    def compact(self, live_G: Tensor) -> None:
        """Keep only the groups with the given indices and the slots that are part of some beam; make room for more."""
        if len(live_G) < len(self.bias_G11L):
            self.memory = [(key[live_G], value[live_G]) for key, value in self.memory]
            self.bias_G11L, self.mask_Ghw = self.bias_G11L[live_G], self.mask_Ghw[live_G]
            self.coverage_GMJCL = self.coverage_GMJCL[live_G]
        mask_GMS = self.mask_GMS[live_G, :, : self.slots]
        used_GS = (mask_GMS == 0).any(1)
        self.slots = int(used_GS.sum(1).max())
        slots_GS = used_GS.byte().argsort(dim=1, descending=True, stable=True)[:, : self.slots]
        room = ROOM_STEPS * mask_GMS.shape[1]
        mask_GMS = mask_GMS.gather(2, slots_GS[:, None].expand(-1, mask_GMS.shape[1], -1))
        self.mask_GMS = F.pad(mask_GMS, (0, room), value=float("-inf"))
        for j, words in enumerate(self.words_GS2HE):
            kept_GS2HE = words[live_G[:, None], slots_GS]
            if words.shape[1] < self.slots + room:  # zeros: a mask does not hide NaN
                words = words.new_zeros(len(live_G), 2 * (self.slots + room), *words.shape[2:])
            self.words_GS2HE[j] = words[: len(live_G)]
            self.words_GS2HE[j][:, : self.slots] = kept_GS2HE
