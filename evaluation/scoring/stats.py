"""Intervals (of 95 % by default) and tests for paired rates of the same images, on scipy.stats; those over writers and
seeds are in `sampling`. Scoring needs none of them and does without scipy, which takes half a second to import."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hmerbench.evaluation.scoring import sampling
from hmerbench.evaluation.scoring.metrics import proportion_interval
from hmerbench.evaluation.scoring.sampling import Images


def prediction_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where one more value falls with this confidence: mean ± t s sqrt(1 + 1/n), exact for normal values.
    Raises ValueError for fewer than two."""
    if len(values) < 2:
        raise ValueError(f"at least two values are needed, not {len(values)}")
    t = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    mean, width = np.mean(values), t * np.std(values, ddof=1) * math.sqrt(1 + 1 / len(values))
    return float(mean - width), float(mean + width)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean. Raises ValueError for fewer than two values."""
    low, high = prediction_interval(values)
    middle, width = (low + high) / 2, (high - low) / 2 / math.sqrt(len(values) + 1)
    return middle - width, middle + width


@dataclass(frozen=True)
class PairedComparison:
    """Two systems on the same n expressions. Rates and their difference (A - B) in percent, with its interval and what
    that is over; `mean_errors` is the mean D_B. p values are two-sided: `p` is of the difference, over the same as its
    interval, the others are over images."""

    n: int
    exact_a: int
    exact_b: int
    only_a: int  # right in A, wrong in B
    only_b: int
    difference: float
    interval: tuple[float, float]
    over: str  # writers | images
    p: float
    mcnemar_p: float  # exact, on who is right
    mean_errors_a: float
    mean_errors_b: float
    permutation_p: float  # paired, on the mean difference of error counts

    def __str__(self) -> str:
        low, high = self.interval
        interval = f"95 %: {low:+.2f} to {high:+.2f} over {self.over}, p = {self.p:.4g}"
        return f"A - B = {self.difference:+.2f} points ({interval})"


def compare_paired(errors_a: Sequence[int], errors_b: Sequence[int], ids: Sequence[str] = ()) -> PairedComparison:
    """Compare the error counts (D_B) of two systems, given in the same order of expressions. The interval is over the
    writers that `ids` name; if they name too few, over images: Newcombe's."""
    a, b = np.asarray(errors_a), np.asarray(errors_b)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"error counts of the same expressions are needed, not {a.shape} and {b.shape}")
    right_a, right_b = a == 0, b == 0
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    both = int((right_a & right_b).sum())
    low, high = (100 * end for end in difference_interval(both, only_a, only_b, a.size))
    over, p = "images", mcnemar(only_a, only_b)
    if (images := Images(ids or [""] * a.size)).over == "writers":
        found = sampling.difference(100.0 * (right_a.astype(int) - right_b)[None], images)
        low, high, over, p = found.low, found.high, found.over, found.p
    return PairedComparison(
        n=a.size,
        exact_a=both + only_a,
        exact_b=both + only_b,
        only_a=only_a,
        only_b=only_b,
        difference=100 * (only_a - only_b) / a.size,
        interval=(low, high),
        over=over,
        p=p,
        mcnemar_p=mcnemar(only_a, only_b),
        mean_errors_a=float(a.mean()),
        mean_errors_b=float(b.mean()),
        permutation_p=permutation(a - b),
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p value of the exact McNemar test from the two discordant counts."""
    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def permutation(differences: np.ndarray) -> float:
    """Two-sided p value of the paired permutation test on the mean of whole-number differences, exact: how often their
    sum is as far from 0 as here if a coin decides the sign of each."""
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    chances = np.ones(1)  # of each sum of the positive differences
    for size, count in zip(sizes, counts, strict=True):
        longer = np.zeros(len(chances) + size * count)
        for positive, chance in enumerate(stats.binom.pmf(np.arange(count + 1), count, 0.5)):
            longer[positive * size : positive * size + len(chances)] += chance * chances
        chances = longer
    sums = 2 * np.arange(len(chances)) - (len(chances) - 1)
    return min(1.0, float(chances[np.abs(sums) >= abs(differences.sum())].sum()))


def difference_interval(both: int, only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10) of p_A - p_B for paired counts, as
    fractions."""
    neither = n - both - only_a - only_b
    p_a, p_b = (both + only_a) / n, (both + only_b) / n
    (low_a, high_a), (low_b, high_b) = (proportion_interval(both + k, n) for k in (only_a, only_b))
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    excess = both * neither - only_a * only_b
    if excess > 0:
        excess = max(excess - n / 2, 0)
    phi = excess / math.sqrt(margins) if margins else 0.0

    def width(one: float, other: float) -> float:
        return math.sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))

    difference = p_a - p_b
    return difference - width(p_a - low_a, high_b - p_b), difference + width(high_a - p_a, p_b - low_b)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the given order: rejecting all below 0.05 keeps the family-wise error rate at 5 %
    (Scandinavian Journal of Statistics 6, 1979)."""
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted
