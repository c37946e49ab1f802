"""Intervals and paired tests for expression rates (scipy.stats)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


def proportion_interval(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of count / n, as fractions. Raises ValueError for n < 1."""
    interval = stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)
