"""Sizes and switches of the language model; loads no torch."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, PositiveInt
from pydantic.dataclasses import dataclass

Share = Annotated[float, Field(ge=0, le=0.99)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class LanguageConfig:
    """Sizes and switches; the defaults are LSTM-Char-Small (paper, table 2)."""

    words: Literal["spelled", "table"] = "spelled"  # a word's vector: from its characters, or a row of a table
    word_size: PositiveInt = 200  # columns of that table
    character_size: PositiveInt = 15
    widths: Annotated[int, Field(gt=0, le=65)] = 6  # filters are 1 to this many characters wide
    filters: PositiveInt = 25  # for each character of a filter's width
    most_filters: PositiveInt = 1000  # of one width
    highways: Annotated[int, Field(ge=0)] = 1
    hidden: PositiveInt = 300
    layers: Annotated[int, Field(gt=0, le=100)] = 2
    dropout: Share = 0.5  # between LSTM layers and before the softmax
    input_dropout: Share = 0.0  # of what the first LSTM layer reads; the authors drop none of it

    @property
    def filters_by_width(self) -> dict[int, int]:
        """How many filters there are of each width in characters."""
        return {width: min(self.most_filters, self.filters * width) for width in range(1, self.widths + 1)}
