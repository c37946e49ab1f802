"""Sizes and switches of the network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_STEPS = 500  # rows of the word table, a buffer of the authors' checkpoints


@dataclass(frozen=True)
class CoMERConfig:
    """Sizes and switches; the defaults are the paper's CoMER with fusion coverage."""

    d_model: int = 256
    growth_rate: int = 24
    num_layers: int | tuple[int, int, int] = 16  # bottlenecks per dense block: one number for all three, or one each
    stride: int = 16  # side of a feature cell in pixels; 8 omits the second pooling (unlike the authors)
    nhead: int = 8
    num_decoder_layers: int = 3
    dim_feedforward: int = 1024
    dropout: float = 0.3  # decoder
    encoder_dropout: float = 0.2
    dc: int = 32  # hidden channels of the refinement module
    cross_coverage: bool = True
    self_coverage: bool = True
    vocab_size: int = 113
    mask_padding: bool = False  # True: features do not depend on the rest of the batch (unlike the authors')

    def __post_init__(self) -> None:
        """Raise ValueError, naming the key and what it must be, for a network that cannot be built."""
        if isinstance(self.num_layers, list):  # JSON and YAML have no tuples
            object.__setattr__(self, "num_layers", tuple(self.num_layers))

        def must_be(what: str, is_valid: Callable[[Any], bool], *keys: str) -> None:
            for key in keys:
                if not is_valid(value := getattr(self, key)):
                    raise ValueError(f"{key} must be {what}, not {value!r}")

        def positive(value: Any) -> bool:
            return type(value) is int and value > 0

        must_be(
            "one or three whole numbers of at least 1",
            lambda _: len(self.depths) == 3 and all(map(positive, self.depths)),
            "num_layers",
        )
        sizes = ("d_model", "growth_rate", "nhead", "num_decoder_layers", "dim_feedforward", "dc")
        must_be("a whole number of at least 1", positive, *sizes)
        must_be("a whole number of at least 4", lambda value: positive(value) and value >= 4, "vocab_size")
        must_be("a number in [0, 1)", lambda p: type(p) in (int, float) and 0 <= p < 1, "dropout", "encoder_dropout")
        switches = ("cross_coverage", "self_coverage", "mask_padding")
        must_be("true or false", lambda value: isinstance(value, bool), *switches)
        must_be("16 or 8", lambda stride: stride in (8, 16), "stride")
        must_be("a multiple of 4 (sine, cosine; two axes)", lambda d_model: d_model % 4 == 0, "d_model")
        if self.d_model % self.nhead:
            raise ValueError(f"nhead must divide d_model = {self.d_model}; {self.nhead} does not")

    @property
    def depths(self) -> tuple[int, ...]:
        """Bottlenecks in each of the three dense blocks."""
        return self.num_layers if isinstance(self.num_layers, tuple) else (self.num_layers,) * 3
