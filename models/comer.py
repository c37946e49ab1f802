"""CoMER: a Transformer with coverage for handwritten formulas (Zhao & Gao, ECCV 2022).

Without coverage it is the "BTTR (baseline)" of the paper's tables. Parameters are named as in the authors'
checkpoints.
"""

from torch import Tensor, nn

from models.config import CoMERConfig
from models.decoder import Decoder, Trace
from models.densenet import Encoder


class CoMER(nn.Module):
    """The whole network: images in, logits of both reading directions out."""

    def __init__(self, config: CoMERConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] and their mask [b, h, w] (True = padding); h = ceil(H/stride), w = ceil(W/stride).

        Images are in [0, 1], white ink on black, zero-padded on the right and at the bottom.
        """
        return self.encoder(images_b1HW, mask_bHW)

    def decode(self, features_bhwd: Tensor, mask_bhw: Tensor, inputs_BT: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, V] of the next token after each prefix of inputs; rows r, r + b, ... read image r.

        A given `trace` receives one entry per layer.
        """
        return self.decoder(features_bhwd, mask_bhw, inputs_BT, trace)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits [B, T, V] for the inputs of `bidirectional_targets`, B = 2 b."""
        return self.decode(*self.encode(images_b1HW, mask_bHW), inputs_BT)
