"""How far a reading can be trusted: one number, the share of readings with that number that are right.

The search leaves evidence of every reading; a logistic regression, fitted on training expressions that its network had
not been trained on (`hmerbench calibrate`, whose numbers are in confidence.json), makes a probability of it. It was
fitted to a network that reads in both directions; for one that reads in a single direction, it was not tried.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from hmerbench.models.inference.hypothesis import Hypothesis

FAR = 10.0  # nats: a margin that is not exceeded, and that of a reading without a rival
DOUBTFUL = 0.5  # a reading is doubtful if less than this share is right at its confidence


@dataclass(frozen=True)
class Evidence:
    """What the search tells of a reading; log-probabilities in nats, means over both directions."""

    logp: float = 0.0  # log-probability of all its tokens and of the end
    steps: float = 1.0  # tokens, the end included
    margin: float = FAR  # by how much more probable it is than the best other reading, FAR at most
    apart: float = 0.0  # by how much the directions differ
    spread: float = 0.0  # standard deviation over the sizes of the image
    both: float = 1.0  # 1: the search found it in both directions; 0: in one of them

    @property
    def per_token(self) -> float:
        """Geometric mean of the tokens' probabilities, from 0 to 1."""
        return math.exp(self.logp / self.steps)


FEATURES = tuple(field.name for field in fields(Evidence))


def evidence(hypotheses: Sequence[Hypothesis], alpha: float) -> Iterator[tuple[Hypothesis, Evidence]]:
    """The first hypothesis of each distinct reading and its evidence, in order; scores were divided by
    length ** alpha."""
    found: dict[tuple[int, ...], list[Hypothesis]] = {}
    for hypothesis in hypotheses:
        found.setdefault(hypothesis.ids, []).append(hypothesis)
    single = all(hypothesis.reverse == 0 for hypothesis in hypotheses)
    logps = {ids: logp(alike[0], alpha) for ids, alike in found.items()}
    for ids, (h, *again) in found.items():
        rival = max((value for other, value in logps.items() if other != ids), default=-math.inf)
        apart = 0.0 if single else abs(h.forward - h.reverse) * h.length**alpha
        both = float(single or any(other.direction != h.direction for other in again))
        yield h, Evidence(logps[ids], len(ids) + 1, min(logps[ids] - rival, FAR), apart, h.spread, both)


def logp(hypothesis: Hypothesis, alpha: float) -> float:
    """Log-probability of a hypothesis, without a language model's share: the mean of the directions that read it."""
    total = (hypothesis.forward + hypothesis.reverse) * hypothesis.length**alpha
    return total / (2 if hypothesis.reverse else 1)


@dataclass(frozen=True)
class Reading(Hypothesis):
    """A hypothesis with its confidence; readings are ranked by `score`."""

    tokens: tuple[str, ...] = ()  # in reading order
    evidence: Evidence = field(default_factory=Evidence)
    confidence: float = math.nan  # the share of readings with this number that are right, from 0 to 1

    @property
    def latex(self) -> str:
        """The tokens, separated by spaces."""
        return " ".join(self.tokens)


@dataclass(frozen=True)
class Calibration:
    """A fitted regression: a weight for some fields of Evidence."""

    intercept: float
    weights: dict[str, float]

    def __call__(self, found: Evidence) -> float:
        """The share of readings with this evidence that are right, from 0 to 1."""
        odds = self.intercept + sum(weight * getattr(found, name) for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, odds))))


def readings(
    hypotheses: Sequence[Hypothesis], words: Sequence[str], alpha: float, calibration: Calibration
) -> list[Reading]:
    """The distinct readings of hypotheses whose scores were divided by length ** alpha, in order."""
    return [
        Reading(**vars(h), tokens=tuple(words[id_] for id_ in h.ids), evidence=found, confidence=calibration(found))
        for h, found in evidence(hypotheses, alpha)
    ]
