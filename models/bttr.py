"""BTTR as first published: a Transformer that reads formulas in both directions (Zhao et al., ICDAR 2021).

It is the authors' program of June 2021, which fits their released checkpoint. CoMER is built on a later state of it,
called "BTTR (baseline)" there; the two differ in the encoder, in the word vectors, and in the search
(`models.inference.bttr_search`).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from models.config import CoMERConfig
from models.decoder import Decoder, Trace
from models.densenet import Encoder
from models.position import image_position


class BTTREncoder(Encoder):
    """CoMER's encoder, but with ReLU behind the projection, LayerNorm before instead of behind the position encoding,
    and a wavelength of its own for each channel of that encoding."""

    def add_position(self, features_bhwd: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize and add position encodings; returns features and their mask."""
        mask_bhw = mask_bHW.bool()[:, :: self.model.stride, :: self.model.stride]
        position_bhwd = image_position(mask_bhw, features_bhwd.shape[-1], paired=False)
        return self.norm(F.relu(features_bhwd)) + position_bhwd, mask_bhw


class BTTR(nn.Module):
    """The whole network: images in, logits of both reading directions out.

    Parameters are named as in the authors' checkpoints, but for `encoder.feature_proj.*`, theirs being
    `encoder.feature_proj.0.*`.
    """

    def __init__(self, config: CoMERConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = BTTREncoder(config)
        self.decoder = Decoder(config)
        # word vectors are normalized before their position is added, not again behind it
        self.decoder.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] and their mask [b, h, w] (True = padding); h = ceil(H/stride), w = ceil(W/stride)."""
        return self.encoder(images_b1HW, mask_bHW)

    def decode(self, features_bhwd: Tensor, mask_bhw: Tensor, inputs_BT: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, V] of the next token after each prefix of inputs; rows r, r + b, ... read image r."""
        return self.decoder(features_bhwd, mask_bhw, inputs_BT, trace)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits [B, T, V] for the inputs of `bidirectional_targets`, or for those of one direction."""
        return self.decode(*self.encode(images_b1HW, mask_bHW), inputs_BT)
