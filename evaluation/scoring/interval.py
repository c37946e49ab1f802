"""The interval of a rate, in plain Python, so that scoring need not import scipy (half a second)."""

import math
from statistics import NormalDist


def proportion_interval(count: float, n: float) -> tuple[float, float]:
    """Wilson's score interval (JASA 22, 1927) of 95 % for count / n, as fractions; n may be effective, also below 1.

    Raises ValueError for count outside 0..n, or no n.
    """
    if not 0 <= count <= n or not n:
        raise ValueError(f"{count} of {n} is not a rate")
    z, rate = NormalDist().inv_cdf(0.975), count / n
    middle = (2 * count + z * z) / (2 * (n + z * z))
    width = z / (2 * (n + z * z)) * math.sqrt(4 * n * rate * (1 - rate) + z * z)
    return middle - width if count else 0.0, middle + width if count < n else 1.0


def interval_text(count: int, n: int) -> str:
    """The interval in percent, as printed: 50.3–56.5."""
    low, high = proportion_interval(count, n)
    return f"{100 * low:.1f}–{100 * high:.1f}"


def percent(count: int, n: int) -> float:
    """A rate in percent, rounded to two places for printing."""
    return round(100 * count / n, 2)


def printed_interval(percent: float, n: int) -> tuple[float, float]:
    """The interval, in percent, of a printed rate, from which the count is recovered by rounding."""
    low, high = proportion_interval(round(percent * n / 100), n)
    return 100 * low, 100 * high
