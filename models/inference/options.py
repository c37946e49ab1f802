"""Options of every search. Loads no torch."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from hmerbench.models.settings import MAX_STEPS, STRICT


@dataclass(frozen=True, config=STRICT)
class SearchOptions:
    """Options of a search; the defaults are the authors'. Raises ValueError for impossible ones.

    No key of a preset reaches `early_stopping` and `temperature`, which the authors' search has and some others lack;
    they serve to compare ours with it (tests/models/inference/test_joint_search.py).
    """

    beam_size: PositiveInt = 10
    max_len: Annotated[int, Field(gt=1, le=MAX_STEPS)] = 200  # tokens of a hypothesis, including the start token
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # scores are divided by length ** alpha
    early_stopping: bool = False  # end a direction once beam_size hypotheses are complete
    temperature: Annotated[float, Field(gt=0)] = 1.0  # divides the logits
    direction: Literal["both", "l2r", "r2l"] = "both"
