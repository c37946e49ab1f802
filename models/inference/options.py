"""Options and results of every search."""

import math
from dataclasses import dataclass, field
from typing import Literal

from hmerbench.models.settings import MAX_STEPS


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search; the defaults are the authors'. Raises ValueError for impossible ones.

    No key of a preset reaches `early_stopping` and `temperature`, which the authors' search has and some others lack;
    with them it is compared with theirs (tests/models/inference/test_joint_search.py).
    """

    beam_size: int = 10
    max_len: int = 200  # tokens of a hypothesis, including the start token
    alpha: float = 1.0  # scores are divided by length ** alpha
    early_stopping: bool = False  # end a direction once beam_size hypotheses are complete
    temperature: float = 1.0  # divides the logits
    direction: Literal["both", "l2r", "r2l"] = "both"

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise ValueError(f"beam_size must be at least 1, not {self.beam_size}")
        if not 2 <= self.max_len <= MAX_STEPS:
            raise ValueError(f"max_len must be between 2 and {MAX_STEPS}, not {self.max_len}")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be at least 0 and finite, not {self.alpha}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, not {self.temperature}")
        if self.direction not in ("both", "l2r", "r2l"):
            raise ValueError(f"direction must be both, l2r or r2l, not {self.direction!r}")


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
