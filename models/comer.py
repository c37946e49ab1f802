"""CoMER: a Transformer with coverage for handwritten formulas (Zhao & Gao, ECCV 2022), and BTTR, which it is built on.

Without coverage CoMER is the "BTTR (baseline)" of the paper's tables. `BTTR` is the authors' program of June 2021,
which fits their released checkpoint; CoMER is built on a later state of it. The two differ in the encoder, in the word
vectors, and in the search (`hmerbench.models.inference.joint_search`). Parameters are named as in the authors'
checkpoints, but for BTTR's `encoder.feature_proj`, which they call `encoder.feature_proj.0`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.decoder import Cache, Decoder, Trace, bidirectional_targets
from hmerbench.models.densenet import Encoder
from hmerbench.models.layers import image_position
from hmerbench.models.network import NO_WORD, AttentionMaps, Network
from hmerbench.models.settings import BTTRSettings, CoMERSettings, TransformerSettings
from hmerbench.models.vocab import PAD, Vocabulary


class Words(NamedTuple):
    """Words of both reading directions, padded with PAD: rows 0 to b - 1 left to right, b to 2 b - 1 right to left."""

    inputs_BT: Tensor
    outputs_BT: Tensor


class CoMER(Network):
    """DenseNet encoder and bidirectionally trained Transformer decoder, with coverage where the settings say so."""

    settings: CoMERSettings
    encoder_class: ClassVar = Encoder
    word_rows = ("decoder.word_embed.0.weight", "decoder.proj.weight")
    triples = ("in_proj_weight",)  # queries, keys and values

    def __init__(self, settings: TransformerSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.encoder = self.encoder_class(settings)
        self.decoder = Decoder(settings, len(self.vocabulary))

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> Words:
        """Words of both directions, T >= longest caption + 1."""
        inputs_BT, outputs_BT = bidirectional_targets([self.vocabulary.encode(caption) for caption in captions])
        extra = padded(inputs_BT.shape[1]) - inputs_BT.shape[1]
        return Words(F.pad(inputs_BT, (0, extra)), F.pad(outputs_BT, (0, extra)))

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] and their mask [b, h, w] (True = padding); h = ceil(H/stride), w = ceil(W/stride)."""
        return self.encoder(images_b1HW, mask_bHW)

    def step(self, words_GM: Tensor, cache: Cache, trace: Trace | None = None) -> Tensor:
        """Logits [G, M, V] of the next token; a given `trace` receives one entry per layer."""
        return self.decoder.step(words_GM, cache, trace)

    def teacher_forced(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: Words) -> tuple[Tensor, Tensor]:
        """Logits [B, T, V] and true ids [B, T] of both directions, B = 2 b (the loss is BTTR's eq. 14)."""
        logits_BTV = self.decoder(*self.encode(images_b1HW, mask_bHW), targets.inputs_BT)
        return logits_BTV, targets.outputs_BT.masked_fill(targets.outputs_BT == PAD, NO_WORD)

    def trace(self, images_11HW: Tensor, mask_1HW: Tensor, tokens: Sequence[str]) -> AttentionMaps:
        """Cross-attention and refinement term of the last layer, mean over its heads, read left to right."""
        features, mask_1hw = self.encode(images_11HW, mask_1HW)
        layers = Trace()
        self.decoder(features, mask_1hw, self.targets([tokens]).inputs_BT[:1], layers)
        last, cells = layers[-1], mask_1hw.shape[1:]
        looked_Thw = last.attention[0].mean(0).unflatten(-1, cells)
        suppressed_Thw = None if last.refinement is None else last.refinement[0].mean(0).unflatten(-1, cells)
        return AttentionMaps(looked_Thw, suppressed_Thw, self.settings.stride)


class BTTREncoder(Encoder):
    """CoMER's encoder, but with ReLU after the projection, LayerNorm before instead of after the position encoding,
    and a wavelength of its own for each channel of that encoding."""

    def add_position(self, features_bhwd: Tensor, mask_bhw: Tensor) -> Tensor:
        return self.norm(F.relu(features_bhwd)) + image_position(mask_bhw, features_bhwd.shape[-1], paired=False)


class BTTR(CoMER):
    """BTTR as published (recipe `bttr-original`): the parts of CoMER, but without coverage."""

    settings: BTTRSettings
    encoder_class = BTTREncoder

    def __init__(self, settings: BTTRSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.decoder.norm = nn.Identity()  # words are normalized before their position is added, not again after it

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> Words:
        """Words of both directions, or of left to right alone; T >= longest caption + 1."""
        words = super().targets(captions, padded)
        rows = None if self.settings.bidirectional else len(captions)
        return Words(*(words_BT[:rows] for words_BT in words))
