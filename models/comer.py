"""CoMER: a Transformer with coverage for handwritten formulas (Zhao & Gao, ECCV 2022).

With both coverages off it is the "BTTR (baseline)" of the paper's tables. Parameter names are those of the
authors' checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from models.decoder import Decoder, Trace
from models.densenet import Encoder


@dataclass(frozen=True)
class CoMERConfig:
    """Sizes and switches; the defaults are the paper's CoMER with fusion coverage."""

    d_model: int = 256
    growth_rate: int = 24
    num_layers: int | tuple[int, int, int] = 16  # bottlenecks in each dense block, or in the three of them
    stride: int = 16  # pixels a feature cell is wide and high; 8 leaves the second pooling out (not the authors' way)
    nhead: int = 8
    num_decoder_layers: int = 3
    dim_feedforward: int = 1024
    dropout: float = 0.3  # decoder
    encoder_dropout: float = 0.2
    dc: int = 32  # hidden channels of the refinement module
    cross_coverage: bool = True
    self_coverage: bool = True
    vocab_size: int = 113
    mask_padding: bool = False  # True: an image's features do not depend on its batch (not the authors' way)

    def __post_init__(self) -> None:
        if isinstance(self.num_layers, list):  # as JSON and YAML hold a tuple
            object.__setattr__(self, "num_layers", tuple(self.num_layers))
        numbers = self.num_layers if isinstance(self.num_layers, tuple) else (self.num_layers,)
        if len(numbers) not in (1, 3) or not all(type(number) is int and number > 0 for number in numbers):
            raise ValueError(f"num_layers must be one or three whole numbers of at least 1, not {self.num_layers!r}")
        sizes = ("d_model", "growth_rate", "nhead", "num_decoder_layers", "dim_feedforward")
        for key in (*sizes, "dc", "vocab_size"):
            value, least = getattr(self, key), 4 if key == "vocab_size" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{key} must be a whole number of at least {least}, not {value!r}")
        for key in ("dropout", "encoder_dropout"):
            value = getattr(self, key)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
                raise ValueError(f"{key} must be a number in [0, 1), not {value!r}")
        for key in ("cross_coverage", "self_coverage", "mask_padding"):
            if not isinstance(getattr(self, key), bool):
                raise ValueError(f"{key} must be true or false, not {getattr(self, key)!r}")
        if self.stride not in (8, 16):
            raise ValueError(f"stride must be 16 or 8, not {self.stride!r}")
        if self.d_model % 4:
            raise ValueError(f"d_model must be a multiple of 4 (sine, cosine; two axes), not {self.d_model}")
        if self.d_model % self.nhead:
            raise ValueError(f"nhead must divide d_model = {self.d_model}; {self.nhead} does not")


class CoMER(nn.Module):
    """The whole network: images in, logits of both reading directions out."""

    def __init__(self, config: CoMERConfig) -> None:
        super().__init__()
        c = self.config = config
        layers = c.num_layers if isinstance(c.num_layers, tuple) else (c.num_layers,) * 3
        self.encoder = Encoder(c.d_model, c.growth_rate, layers, c.encoder_dropout, c.stride, c.mask_padding)
        self.decoder = Decoder(
            c.d_model, c.nhead, c.num_decoder_layers, c.dim_feedforward, c.dropout,
            c.dc, c.cross_coverage, c.self_coverage, c.vocab_size,
        )  # fmt: skip

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features [b, h, w, d] and their mask [b, h, w] (True = padding), h = ceil(H/stride), w = ceil(W/stride).

        Images are in [0, 1], white ink on black, padded with 0 to the right and below.
        """
        return self.encoder(images_b1HW, mask_bHW)

    def decode(self, features_bhwd: Tensor, mask_bhw: Tensor, inputs_BT: Tensor, trace: Trace | None = None) -> Tensor:
        """Logits [B, T, V] of the next token after each prefix of inputs; rows r, r + b, ... read image r.

        A `trace` list, if given, receives energies, refinement term and attention of every layer.
        """
        return self.decoder(features_bhwd, mask_bhw, inputs_BT, trace)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits [B, T, V]; inputs as `bidirectional_targets` makes them, B = 2 b."""
        return self.decode(*self.encode(images_b1HW, mask_bHW), inputs_BT)
