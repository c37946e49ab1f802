"""BTTR as first published: a Transformer that reads formulas in both directions (Zhao et al., ICDAR 2021).

It is the authors' program of June 2021, which fits their released checkpoint. CoMER is built on a later state of it,
called "BTTR (baseline)" there; the two differ in the encoder, in the word vectors, and in the search
(`models.inference.bttr_search`).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from models.comer import CoMER
from models.densenet import Encoder
from models.position import image_position
from models.settings import CoMERSettings
from models.vocab import Vocabulary


class BTTREncoder(Encoder):
    """CoMER's encoder, but with ReLU behind the projection, LayerNorm before instead of behind the position encoding,
    and a wavelength of its own for each channel of that encoding."""

    def add_position(self, features_bhwd: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize and add position encodings; returns features and their mask."""
        mask_bhw = mask_bHW.bool()[:, :: self.model.stride, :: self.model.stride]
        position_bhwd = image_position(mask_bhw, features_bhwd.shape[-1], paired=False)
        return self.norm(F.relu(features_bhwd)) + position_bhwd, mask_bhw


class BTTR(CoMER):
    """The whole network.

    Parameters are named as in the authors' checkpoints, but for `encoder.feature_proj.*`, theirs being
    `encoder.feature_proj.0.*`.
    """

    def __init__(self, settings: CoMERSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.encoder = BTTREncoder(settings)
        # word vectors are normalized before their position is added, not again behind it
        self.decoder.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
