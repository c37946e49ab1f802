"""The length buckets of the paper's Fig. 3: by the number of tokens in the true caption."""

from typing import Any

from evaluation.scoring.interval import percent

BUCKETS = ("(0,10]", "(10,20]", "(20,30]", "(30,40]", "(40,50]", "50+")


def bucket(tokens: int) -> str:
    """The bucket of a caption of so many tokens."""
    return BUCKETS[min(max(tokens - 1, 0) // 10, 5)]


def by_bucket(lengths: dict[str, int], exact: dict[str, bool]) -> list[dict[str, Any]]:
    """Count and rate (percent, None if empty) of exact expressions in every bucket; keys are ids."""
    rows = []
    for name in BUCKETS:
        ids = [key for key, length in lengths.items() if bucket(length) == name]
        right = sum(exact[key] for key in ids)
        rate = percent(right, len(ids)) if ids else None
        rows.append({"bucket": name, "n": len(ids), "exact": right, "exprate": rate})
    return rows
