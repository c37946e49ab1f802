"""What every search finds. Needs nothing but Python: an exported reader has it, too."""

from dataclasses import dataclass, field, replace
from typing import Literal


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

    def by_tokens(self, alpha: float) -> "Hypothesis":
        """With scores that were not divided before, divided as by BTTR's program: by tokens ** alpha, without the
        end."""
        tokens = max(len(self.ids), 1)
        scores = {name: getattr(self, name) / tokens**alpha for name in ("score", "forward", "reverse")}
        return replace(self, **scores, normalized_by=tokens)
