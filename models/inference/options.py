"""Options and results of every search. Loads no torch."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass as checked

from hmerbench.models.settings import MAX_STEPS, STRICT


@checked(frozen=True, config=STRICT)
class SearchOptions:
    """Options of a search; the defaults are the authors'. Raises ValueError for impossible ones.

    No key of a preset reaches `early_stopping` and `temperature`, which the authors' search has and some others lack;
    with them it is compared with theirs (tests/models/inference/test_joint_search.py).
    """

    beam_size: PositiveInt = 10
    max_len: Annotated[int, Field(gt=1, le=MAX_STEPS)] = 200  # tokens of a hypothesis, including the start token
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # scores are divided by length ** alpha
    early_stopping: bool = False  # end a direction once beam_size hypotheses are complete
    temperature: Annotated[float, Field(gt=0)] = 1.0  # divides the logits
    direction: Literal["both", "l2r", "r2l"] = "both"


@dataclass(frozen=True)
class Hypothesis:
    """One recognized token sequence."""

    ids: tuple[int, ...]  # left to right, without sos and eos
    score: float  # forward + reverse (+ a language model's share); hypotheses are ranked by it
    forward: float  # length-normalized log-probability in the direction of the search
    reverse: float  # the same in the opposite direction; 0 if only one direction is searched
    direction: Literal["l2r", "r2l"]
    normalized_by: int = 0  # scores were divided by this length ** alpha; 0: the tokens and the end
    spread: float = field(default=0.0, compare=False)  # of `reverse` over image sizes and networks: nats, not divided

    @property
    def length(self) -> int:
        """The length; scores were divided by length ** alpha."""
        return self.normalized_by or len(self.ids) + 1
