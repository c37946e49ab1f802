"""The length buckets of the paper's Fig. 3, by the number of tokens in the true caption, and its depth of nesting."""

from collections.abc import Iterable
from dataclasses import dataclass

from hmerbench.evaluation.scoring.interval import percent

BUCKETS = ("(0,10]", "(10,20]", "(20,30]", "(30,40]", "(40,50]", "50+")


@dataclass(frozen=True)
class Bucket:
    """The n expressions of some lengths, and how many are exact; `exprate` in percent, None if there are none."""

    bucket: str
    n: int
    exact: int
    exprate: float | None


def bucket(tokens: int) -> str:
    """The bucket of a caption with this many tokens."""
    return BUCKETS[min(max(tokens - 1, 0) // 10, 5)]


def nesting(tokens: Iterable[str]) -> int:
    """How deep the structures of a caption are nested: 0 for `a + b`, 1 for `x ^ { 2 }`, 2 for `x ^ { a _ { 1 } }`."""
    depth = deepest = 0
    for token in tokens:
        depth += {"{": 1, "}": -1}.get(token, 0)
        deepest = max(deepest, depth)
    return deepest


def by_bucket(lengths: dict[str, int], exact: dict[str, bool]) -> list[Bucket]:
    """All buckets, from the lengths and verdicts by id."""
    rows = []
    for name in BUCKETS:
        ids = [key for key, length in lengths.items() if bucket(length) == name]
        right = sum(exact[key] for key in ids)
        rate = percent(right, len(ids)) if ids else None
        rows.append(Bucket(name, len(ids), right, rate))
    return rows
