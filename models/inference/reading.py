"""Networks of CoMER's kind, prepared to read: their weights cast once, and whole hypotheses read without repetition.

Names carry shapes: b images, G groups of hypotheses that read one image, R rows, T steps, X words that read one image,
S word slots, D model width, L = h * w feature cells, H heads, E = D / H, C coverage channels, V classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Attention, Decoder, Linear, lowest
from hmerbench.models.inference.searcher import frozen
from hmerbench.models.vocab import PAD


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

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] of images and their mask [b, h, w]."""
        with self.autocast:
            return self.model.encode(images_b1HW.to(self.stream), mask_bHW)


class Reader:
    """A network bound to the images that it reads."""

    def __init__(self, network: ReadingNetwork, images_b1HW: Tensor, mask_bHW: Tensor) -> None:
        self.network = network
        features_bhwd, self.mask_bhw = network.encode(images_b1HW, mask_bHW)
        self.hidden_b11L = lowest(self.mask_bhw).flatten(1)[:, None, None]
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
    """Prefixes of hypotheses that read one image, each standing for its last word: those that one extends come before
    it (`decoder.Cache`)."""

    def __init__(self, reader: Reader, image: int, words_X: Tensor, place_X: Tensor, earlier_XX: Tensor) -> None:
        one, dtype = slice(image, image + 1), reader.network.dtype
        self.memory = [(key[one], value[one]) for key, value in reader.memory]
        self.hidden_G11L, self.mask_1hw, self.place = reader.hidden_b11L[one], reader.mask_bhw[one], place_X
        visible_XX = (earlier_XX > 0).fill_diagonal_(True) & (words_X != PAD)
        mask_XX = torch.zeros_like(earlier_XX, dtype=dtype).masked_fill_(~visible_XX, float("-inf"))
        self.mask_11XX, self.earlier_XX = mask_XX[None, None], earlier_XX.to(dtype)

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        """To the words of the prefix."""
        words_1X3HE = attn.project(x_GXD)
        return attend(words_1X3HE[:, :, 0], words_1X3HE[:, :, 1:], self.mask_11XX)

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        """Coverage by the words of the prefix but for its last."""
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
