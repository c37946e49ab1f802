"""Intervals (95 %) and tests of rates, and of their differences, over what they are sampled from: writers and seeds.

A rate measured on a test set would be another with other writers, and with networks trained from other seeds. Both are
samples: writers, each with several images (within a year, as each year's were chosen apart), and seeds, each a block
of rows trained with it. The variance of a difference is that over writers plus that over seeds less what both hold,
the variance of single writers' answers to single seeds (Cameron, Gelbach and Miller, JBES 29, 2011); its degrees of
freedom are Satterthwaite's. Bootstrapping three seeds would find two thirds of their variance.

Who wrote an image is known as far as the ids tell. CROHME's images come in sheets, some 5 to 30 expressions in one
hand. An id is its writer's name and a number (`UN_101_em_7`), but for sources that are numbered through, whose writers
filled a few expressions each, mostly in a row: every so many numbers stand for a sheet (`sheets` in
benchmarks/datasets/). tests/evaluation/scoring/test_stats_writers.py compares this with the writers in the InkML.

Scoring needs none of these and does without scipy, which takes half a second to import.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy import special

from hmerbench.evaluation.datasets import datasets
from hmerbench.evaluation.scoring.metrics import proportion_interval

UPPER = 0.975  # quantile at the upper end of an interval
LEAST = 10  # fewer groups say nothing of how writers differ; the ids may not name any
NUMBER = re.compile(r"(?:_em)?[_-]?(\d+)[a-z]?$")


@lru_cache(maxsize=1 << 16)  # tables ask for the same few thousand hundreds of times
def writer(id_: str) -> str:
    """The writer, or the sheet, of an image: its id without the number at the end; of ids without one, the whole."""
    for beginning, sheet in _sheets().items():
        if id_.startswith(beginning) and (number := id_.removeprefix(beginning)).isdecimal():
            return f"{beginning}{(int(number) - 1) // sheet}"
    return NUMBER.sub("", id_) or id_


@cache
def _sheets() -> dict[str, int]:
    return {beginning: sheet for known in datasets().values() for beginning, sheet in known.sheets.items()}


def writers(ids: Sequence[str]) -> tuple[list[str], str]:
    """The group of every image, and what the groups are: "writers", or "images", each its own group, where the ids tell
    fewer than LEAST writers apart, or more than four for five images: digests end in digits, too, and those of a
    thousand images would tell 930."""
    named = [writer(id_) for id_ in ids]
    if LEAST <= len({*named}) <= 0.8 * len(named):
        return named, "writers"
    return list(ids), "images"


@dataclass(frozen=True)
class Estimate:
    """A rate or a difference, in percent or points, its interval and what it is over; `p`, two-sided, that it is 0."""

    value: float
    low: float
    high: float
    over: str  # images | writers | seeds and images | seeds and writers
    p: float = math.nan


@dataclass(frozen=True)
class Spread:
    """Variance of the mean of one run over seeds, in squared points, and its degrees of freedom."""

    variance: float
    df: int


class Images:
    """The images of one or more test sets: by whom each was written, and in which set it is."""

    def __init__(self, ids: Sequence[str], sets: Sequence[str] | None = None):
        """`sets` names the set of each image; without it, all are of one."""
        sets = sets or [""] * len(ids)
        names = list(dict.fromkeys(sets))
        found = [writers([id_ for id_, of in zip(ids, sets, strict=True) if of == name]) for name in names]
        self.over = "writers" if all(kind == "writers" for _, kind in found) else "images"
        named = [writer(id_) if self.over == "writers" else id_ for id_ in ids]
        codes: dict[tuple[str, str], int] = {}
        self.n = len(ids)
        self.group = np.array([codes.setdefault(key, len(codes)) for key in zip(sets, named, strict=True)])
        self.stratum = np.array([names.index(name) for name, _ in codes])  # the set of each group

    def between_groups(self, values: np.ndarray) -> np.ndarray:
        """[seed, image] -> [seed, group]: what each group adds to the mean beyond its set's mean, times the factor that
        makes the sum of squares an unbiased variance of the mean. A set of one group adds nothing."""
        set_of = self.stratum[self.group]
        means = _sums(values, set_of) / np.bincount(set_of)
        groups = np.bincount(self.stratum)
        factor = np.sqrt(groups / np.maximum(groups - 1, 1))[self.stratum]
        return _sums(values - means[:, set_of], self.group) * factor / self.n

    def apart(self) -> "Images":
        """The same images, each a group of its own."""
        return Images([f"{k:x}-" for k in range(self.n)], [str(code) for code in self.stratum[self.group]])

    @property
    def df(self) -> int:
        """Degrees of freedom: groups less sets."""
        return len(self.stratum) - len({*self.stratum.tolist()})


def _sums(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(codes, row) for row in values])


def spread_between_runs(rates: Mapping[str, Mapping[int, float]]) -> Spread | None:
    """How much one run differs from what its row and its seed lead to expect: the mean square of the residuals of a
    model of rows and seeds, from all rows (recipe -> seed -> rate). None where nothing is left to estimate it from."""
    cells = [(row, seed) for row, seeds in rates.items() for seed in seeds]
    if not cells:
        return None
    rows, seeds = (list(dict.fromkeys(names)) for names in (rates, (seed for _, seed in cells)))
    design = np.zeros((len(cells), len(rows) + len(seeds)))
    for index, (row, seed) in enumerate(cells):
        design[index, [rows.index(row), len(rows) + seeds.index(seed)]] = 1
    values = np.array([rates[row][seed] for row, seed in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, values)
    df = len(cells) - int(rank)
    left = values - design @ fitted
    left[np.abs(left) < 1e-9] = 0  # rounded away where runs are alike
    return Spread(float((left**2).sum()) / df, df) if df > 0 else None


def difference(gains: np.ndarray, images: Images, run: Spread | None = None) -> Estimate:
    """The mean of `gains` [seed, image] in points, 100 where a row is right and the other wrong with that seed, -100
    the other way round. `run` is the spread of one run of either row; without it, or with one seed, the interval is
    over writers alone and leaves out how much trainings differ."""
    seeds = len(gains)
    over_seeds = Spread(2 * run.variance / seeds, run.df) if run and seeds > 1 else None
    return _estimate(gains, images, over_seeds)


def rate(right: np.ndarray, images: Images) -> Estimate:
    """The mean of `right` [seed, image], true or false, in percent: Wilson's interval for as many independent images as
    would have the variance found (Korn and Graubard, Survey Methodology 24, 1998), at most as many as were read. If all
    are right, or none, nothing varies, and the interval is over images."""
    seeds, values = len(right), 100.0 * right
    own = Spread(float(values.mean(1).var(ddof=1)) / seeds, seeds - 1) if seeds > 1 else None
    variance, df, over = _variance(values, images, own)
    share, size = float(right.mean()), float(images.n)
    if variance and over != "images":  # else they are independent, and Wilson's interval stands
        wider = float(special.stdtrit(df, UPPER) / special.ndtri(UPPER))
        size = min(seeds * size, 1e4 * share * (1 - share) / variance / wider**2)
    low, high = proportion_interval(share * size, size)
    over = over if own is None or own.variance else images.over  # seeds that all read as many show no spread
    return Estimate(100 * share, 100 * low, 100 * high, over if variance else "images")


def _estimate(values: np.ndarray, images: Images, over_seeds: Spread | None) -> Estimate:
    """The mean of values [seed, image] with Student's interval, clipped to [-100, 100]; of a single group, all of that.
    If all groups and seeds agree, it is over images; if all images agree, too, as wide as Wilson's of n equal outcomes.
    """
    value = float(values.mean())
    variance, df, over = _variance(values, images, over_seeds)
    if not df:
        return Estimate(value, -100.0, 100.0, over, 1.0)
    if not variance and images.over == "writers":
        return _estimate(values, images.apart(), None)
    if not variance:
        unseen = 100 * proportion_interval(0, images.n)[1]
        p = min(1.0, 2 * 0.5**images.n) if value else 1.0  # as of so many tosses of a coin
        return Estimate(value, max(value - unseen, -100.0), min(value + unseen, 100.0), "images", p)
    error = math.sqrt(variance)
    width = float(special.stdtrit(df, UPPER)) * error
    low, high = max(value - width, -100.0), min(value + width, 100.0)
    return Estimate(value, low, high, over, float(2 * special.stdtr(df, -abs(value) / error)))


def _variance(values: np.ndarray, images: Images, over_seeds: Spread | None) -> tuple[float, float, str]:
    """The variance of the mean of values [seed, image], its degrees of freedom, and what it is over."""
    shares = images.between_groups(values)
    over_groups = Spread(float((shares.mean(0) ** 2).sum()), images.df)
    if over_seeds is None:
        return over_groups.variance, over_groups.df, images.over
    seeds = len(values)
    both = float(((shares - shares.mean(0)) ** 2).sum()) / (seeds * (seeds - 1))
    parts = [part for part in (over_groups, over_seeds) if part.variance]
    variance = max(sum(part.variance for part in parts) - both, *(part.variance for part in (over_groups, over_seeds)))
    df = variance**2 / sum(part.variance**2 / part.df for part in parts) if parts else images.df
    return variance, df, f"seeds and {images.over}"


# --- two systems on the same images -------------------------------------------------------------------------------


def prediction_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where one more value falls with this confidence: mean ± t s sqrt(1 + 1/n), exact for normal values.
    Raises ValueError for fewer than two."""
    if len(values) < 2:
        raise ValueError(f"at least two values are needed, not {len(values)}")
    t = special.stdtrit(len(values) - 1, (1 + confidence) / 2)
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
    both, discordant = int((right_a & right_b).sum()), mcnemar(only_a, only_b)
    if (images := Images(ids or [""] * a.size)).over == "writers":
        found = paired(errors_a, errors_b, images)
    else:
        low, high = difference_interval(both, only_a, only_b, a.size)
        found = Estimate(100 * (only_a - only_b) / a.size, 100 * low, 100 * high, "images", discordant)
    return PairedComparison(
        n=a.size,
        exact_a=both + only_a,
        exact_b=both + only_b,
        only_a=only_a,
        only_b=only_b,
        difference=100 * (only_a - only_b) / a.size,
        interval=(found.low, found.high),
        over=found.over,
        p=found.p,
        mcnemar_p=discordant,
        mean_errors_a=float(a.mean()),
        mean_errors_b=float(b.mean()),
        permutation_p=permutation(a - b),
    )


def paired(errors_a: Sequence[int], errors_b: Sequence[int], images: Images) -> Estimate:
    """The difference (A - B) in points of how many expressions have no error, in the same order in both."""
    right_a, right_b = (np.asarray(errors) == 0 for errors in (errors_a, errors_b))
    return difference(100.0 * (right_a.astype(int) - right_b)[None], images)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p value of the exact McNemar test from the two discordant counts."""
    from scipy import stats  # begins slowly, as below: only comparing two systems needs it

    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def permutation(differences: np.ndarray) -> float:
    """Two-sided p value of the paired permutation test on the mean of whole-number differences, exact: how often their
    sum is as far from 0 as here if a coin decides the sign of each."""
    from scipy import stats

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
