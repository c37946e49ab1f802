"""BTTR as first published: a Transformer that reads formulas in both directions (Zhao et al., ICDAR 2021).

It is the authors' program of June 2021, which fits their released checkpoint. CoMER is built on a later state of it,
its "BTTR (baseline)"; the two differ in the encoder, in the word vectors, and in the search
(`hmerbench.models.inference.joint_search`).
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.comer import CoMER, Words
from hmerbench.models.densenet import Encoder
from hmerbench.models.layers import image_position
from hmerbench.models.settings import BTTRSettings
from hmerbench.models.vocab import Vocabulary


class BTTREncoder(Encoder):
    """CoMER's encoder, but with ReLU behind the projection, LayerNorm before instead of behind the position encoding,
    and a wavelength of its own for each channel of that encoding."""

    def add_position(self, features_bhwd: Tensor, mask_bhw: Tensor) -> Tensor:
        """Normalize and add position encodings."""
        return self.norm(F.relu(features_bhwd)) + image_position(mask_bhw, features_bhwd.shape[-1], paired=False)


class BTTR(CoMER):
    """The whole network, in the parts of CoMER's but without coverage.

    Parameters are named as in the authors' checkpoints, except that their `encoder.feature_proj.0.*` is called
    `encoder.feature_proj.*`.
    """

    settings: BTTRSettings
    encoder_class = BTTREncoder

    def __init__(self, settings: BTTRSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.decoder.norm = nn.Identity()  # words are normalized before their position is added, not again behind it

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> Words:
        """Words of both directions, or of left to right alone; T >= longest caption + 1."""
        words = super().targets(captions, padded)
        rows = None if self.settings.bidirectional else len(captions)
        return Words(*(words_BT[:rows] for words_BT in words))
