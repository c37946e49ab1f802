"""Steps, the differences between two rows: their intervals and tests over seeds and writers.

A difference is sampled twice: other writers would have written other images, and other seeds would have trained other
networks. Its interval and its test are over both (`evaluation.scoring.sampling`): rows trained with the same seed are
blocks, and how much a run differs from its row and its block is estimated from all rows of a comparison. One seed in
common is an interval over writers alone, which leaves out how much trainings differ, and no verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.paper import REPORTED, model_name
from hmerbench.benchmarks.report.scored_runs import Rows, ScoredRun
from hmerbench.evaluation.scoring import sampling
from hmerbench.evaluation.scoring.stats import holm

LEVEL = 0.05  # of significance
MIN_SEEDS = 2  # that both rows of a step share


@dataclass
class Step:
    """The difference between two rows, `upper` (better according to the paper) minus `lower`, in percentage points.

    `low` and `high` bound its 95 % interval, over `over`. It is measured with the seeds that both rows have; without
    any, with the mean of each row, over writers. `p_alone` is two-sided, `p` corrected over the family. `reported` is
    the paper's difference.
    """

    lower: str
    upper: str
    difference: float
    low: float
    high: float
    over: str
    images: int
    seeds: int  # in common
    p_alone: float
    p: float = 1.0
    reported: float | None = None  # in Table 1
    verdict: str = "too few seeds"  # significant | opposite | not significant | too few seeds

    @property
    def tested(self) -> bool:
        """Whether the rows share seeds enough for a test over them."""
        return self.seeds >= MIN_SEEDS

    @property
    def name(self) -> str:
        """Both rows under the paper's names."""
        return f"{model_name(self.lower)} → {model_name(self.upper)}"


def measure(rows: Rows, pairs: Sequence[tuple[str, str]], *parts: Sequence[str]) -> list[Step]:
    """The differences between pairs of rows, uncorrected, on the images of a part (keys; by default all), or how much
    larger they are on it than on a second part."""
    if not pairs:
        return []
    first = next(iter(rows.values()))[0]
    for recipe, runs in rows.items():
        if any(run.ids != first.ids for run in runs):
            both = f"{first.recipe} and {recipe}"
            raise UserError(f"{both}: they were scored on different expressions; score them again")
    keys = list(chain(*parts)) if parts else first.ids
    images, values = images_of(keys), {recipe: _values(runs, parts or (keys,)) for recipe, runs in rows.items()}
    rates = {
        recipe: {run.seed: float(value) for run, value in zip(runs, values[recipe].mean(1), strict=True)}
        for recipe, runs in rows.items()
    }
    spread, steps = sampling.spread_between_runs(rates), list[Step]()
    for lower, upper in pairs:
        common = [seed for seed in rates[lower] if seed in rates[upper]]
        a, b = (
            values[recipe][[list(rates[recipe]).index(seed) for seed in common or rates[recipe]]]
            for recipe in (lower, upper)
        )
        found = sampling.difference(b - a if common else (b.mean(0) - a.mean(0))[None], images, spread)
        step = Step(lower, upper, found.value, found.low, found.high, found.over, images.n, len(common), found.p)
        if lower in REPORTED and upper in REPORTED:
            step.reported = REPORTED[upper] - REPORTED[lower]
        steps.append(step)
    return steps


def correct(steps: Sequence[Step]) -> None:
    """Correct the p-values of one family; those of steps with one seed, which have no verdict, among themselves."""
    for tested in (True, False):
        family = [step for step in steps if step.tested is tested]
        for step, p in zip(family, holm([step.p_alone for step in family]), strict=True):
            step.p = p
            if tested:
                step.verdict = "not significant" if p >= LEVEL else "significant" if step.difference > 0 else "opposite"


def images_of(keys: Sequence[str]) -> sampling.Images:
    """The images behind keys "set/id"."""
    sets, ids = zip(*(key.split("/", 1) for key in keys), strict=True)
    return sampling.Images(ids, sets)


def _values(runs: Sequence[ScoredRun], parts: Sequence[Sequence[str]]) -> np.ndarray:
    """[seed, image]: 100 where a run is right. With a second part, values whose mean is the rate on the first less that
    on the second, and which deviate from it as that difference does with each image."""
    place = {key: index for index, key in enumerate(runs[0].ids)}
    right = [100.0 * np.array([run.right_N[[place[key] for key in keys]] for run in runs]) for keys in parts]
    if len(parts) == 1:
        return right[0]
    n, means = sum(map(len, parts)), [values.mean(1, keepdims=True) for values in right]
    signed = [
        sign * (values - mean) * n / values.shape[1] for sign, values, mean in zip((1, -1), right, means, strict=True)
    ]
    return np.concatenate(signed, axis=1) + means[0] - means[1]


def printed_p(p: float | None, equals: str = "") -> str:
    """Format a p-value with three decimals, `equals` before it where it is not below 0.001; a dash for None."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{equals}{p:.3f}"
