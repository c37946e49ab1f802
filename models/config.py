"""Sizes and switches of the network."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveInt, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.dataclasses import dataclass

MAX_STEPS = 500  # rows of the word table, a buffer of the authors' checkpoints


def _one_or_three(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:  # which would list the faults of either form
        raise ValueError(f"must be one or three whole numbers above 0, not {value!r}") from None


Three = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]  # JSON and YAML have no tuples
Depths = Annotated[PositiveInt | Three, WrapValidator(_one_or_three)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class CoMERConfig:
    """Sizes and switches; the defaults are the paper's CoMER with fusion coverage."""

    d_model: Annotated[int, Field(gt=0, multiple_of=4)] = 256  # sine, cosine; two axes
    growth_rate: PositiveInt = 24
    num_layers: Depths = 16  # bottlenecks per dense block: one number for all three, or one each
    stride: Literal[16, 8] = 16  # side of a feature cell in pixels; 8 omits the second pooling (unlike the authors)
    nhead: PositiveInt = 8
    num_decoder_layers: PositiveInt = 3
    dim_feedforward: PositiveInt = 1024
    dropout: Share = 0.3  # decoder
    encoder_dropout: Share = 0.2
    dc: PositiveInt = 32  # hidden channels of the refinement module
    cross_coverage: bool = True
    self_coverage: bool = True
    vocab_size: Annotated[int, Field(ge=4)] = 113
    mask_padding: bool = False  # True: features do not depend on the rest of the batch (unlike the authors')

    def __post_init__(self) -> None:
        if self.d_model % self.nhead:
            raise ValueError(f"nhead must divide d_model = {self.d_model}; {self.nhead} does not")

    @property
    def depths(self) -> tuple[int, ...]:
        """Bottlenecks in each of the three dense blocks."""
        return self.num_layers if isinstance(self.num_layers, tuple) else (self.num_layers,) * 3
