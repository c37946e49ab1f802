"""The metrics of a score. Each is one entry of METRICS: which expressions count, and how the count is called and shown.

Score files, the terminal, the tracking store, tables, pages and model cards take their metrics from there. Intervals of
rates are here too, without scipy, which takes half a second to import.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

BUCKETS = ("(0,10]", "(10,20]", "(20,30]", "(30,40]", "(40,50]", "50+")  # tokens of a caption, as in the paper's Fig. 3


@dataclass(frozen=True)
class Expression:
    """One row of the per-expression table. Metrics also see the `tokens` and the `caption`, which are not in it."""

    tokens: ClassVar[list[str] | None] = None  # what was predicted; None if nothing was, or no tokens are compared
    caption: ClassVar[list[str] | None] = None  # None without captions
    id: str
    status: str  # converted, unconverted, missing
    errors: int  # D_B
    label_errors: int  # D_C
    relation_errors: int  # D_L
    exact: bool
    structure: bool
    token_exact: bool | None
    length: int | None
    bucket: str | None

    def __post_init__(self) -> None:
        if min(self.errors, self.label_errors, self.relation_errors) < 0:
            raise ValueError("negative error count")

    @classmethod
    def compared(
        cls,
        id_: str,
        values: Mapping[str, float],
        status: str = "converted",
        tokens: list[str] | None = None,
        caption: list[str] | None = None,
    ) -> "Expression":
        """The row of LgEval's comparison, of which `values` are the fields. `tokens` (None: no prediction) are compared
        with the `caption`, where there is one."""
        wrong, labels, relations = (int(values[name]) for name in ("D_B", "D_C", "D_L"))
        structure = values["hasCorrectStructure"] == 1
        told = (None, None, None) if caption is None else (tokens == caption, len(caption), bucket(len(caption)))
        row = cls(id_, status, wrong, labels, relations, wrong == 0, structure, *told)
        vars(row).update(tokens=tokens, caption=caption)  # of a frozen row
        return row


class Metric(NamedTuple):
    """The share of the expressions for which `holds` is true; None if it cannot be told (without captions, say).

    With `of`, both count something in an expression: tokens that are wrong, say, of those of its caption.
    """

    count: str  # key of the count in a score file
    rate: str  # key of the rate, in percent, and name of its column in the .csv of a table
    holds: Callable[[Expression], int | None]
    name: str  # as `hmerbench score` prints it
    heading: str = ""  # of its column in tables; none: it is not in them
    always: bool = False  # every score file has it; others may be older than the metric
    of: Callable[[Expression], int | None] | None = None


def _within(most: int) -> Metric:
    name, holds = f"<= {most} error{'s' * (most > 1)}", lambda row: row.errors <= most
    return Metric(f"le{most}", f"exprate_le{most}", holds, name, heading=f"≤ {most}", always=True)


WITHIN = (  # with no errors and at most 1, 2, 3: what LgEval counts and papers report
    Metric("exact", "exprate", lambda row: row.exact, "exact", heading="ExpRate", always=True),
    *map(_within, (1, 2, 3)),
)
METRICS = (
    *WITHIN,
    Metric("structure", "structure_rate", lambda row: row.structure, "structure", always=True),
    Metric("token_exact", "token_exprate", lambda row: row.token_exact, "tokens exact"),
)
TABULATED = tuple(metric for metric in METRICS if metric.heading)


def counts_of(rows: Iterable[Expression]) -> dict[str, int]:
    """How many expressions there are, `n`, and how many each metric counts; without those that cannot be told."""
    rows = list(rows)
    held = {metric: [metric.holds(row) for row in rows] for metric in METRICS}
    known = {
        metric.count: sum(filter(None, told) if metric.of else map(bool, told))
        for metric, told in held.items()
        if told.count(None) < len(rows)
    }
    return {"n": len(rows)} | known


# --- by length ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """The n expressions of some lengths, and how many are exact; `exprate` in percent, None if there are none."""

    bucket: str
    n: int
    exact: int
    exprate: float | None


def bucket(tokens: int) -> str:
    return BUCKETS[min(max(tokens - 1, 0) // 10, 5)]


def by_bucket(rows: Sequence[Expression]) -> list[Bucket]:
    """All buckets, from expressions whose lengths are known."""
    total, right = Counter(row.bucket for row in rows), Counter(row.bucket for row in rows if row.exact)
    rates = {name: percent(right[name], total[name]) for name in BUCKETS if total[name]}
    return [Bucket(name, total[name], right[name], rates.get(name)) for name in BUCKETS]


def nesting(tokens: Iterable[str]) -> int:
    """How deep the structures of a caption are nested: 0 for `a + b`, 1 for `x ^ { 2 }`, 2 for `x ^ { a _ { 1 } }`."""
    return max(accumulate(({"{": 1, "}": -1}.get(token, 0) for token in tokens), initial=0))


# --- the score ----------------------------------------------------------------------------------------------------


if TYPE_CHECKING:

    class _Metrics:
        """As a type checker sees the class below, whose fields are made."""

        def __getattr__(self, name: str) -> Any: ...

else:
    # The counts and rates of all metrics, in the order of score files.
    _Metrics = make_dataclass(
        "_Metrics",
        [
            ("n", int),
            *((metric.count, int) for metric in METRICS if metric.always),
            *((metric.rate, float) for metric in METRICS if metric.always),
            ("by_length", list[Bucket] | None),
            *((metric.count, int | None, None) for metric in METRICS if not metric.always),
            *((metric.rate, float | None, None) for metric in METRICS if not metric.always),
        ],
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class Score(_Metrics):
    """Counts over the n expressions of a ground truth, and rates in percent, of METRICS; None without captions if they
    need them."""

    n: int
    exact: int
    exprate: float
    by_length: list[Bucket] | None  # None without captions
    ci95: tuple[float, float]  # Wilson's interval of the expression rate
    signature: str
    missing: int  # expressions without a prediction
    unconverted: int  # predictions that do not convert; both count as empty graphs
    neutral: int | None = None  # exact with neutral limits (`conventions`); None if `exact` is that, or unknown

    def __post_init__(self) -> None:
        counts = [getattr(self, metric.count) for metric in WITHIN]
        if min(counts) < 0 or counts != sorted(counts) or not counts[-1] <= self.n > 0:
            raise ValueError(f"{', '.join(metric.count for metric in WITHIN)} and n contradict each other")
        if not self.exact <= (self.exact if self.neutral is None else self.neutral) <= self.n:
            raise ValueError("exact, neutral and n contradict each other")
        if self.by_length is not None and [row.bucket for row in self.by_length] != list(BUCKETS):
            raise ValueError("by_length has other buckets")

    def printed(self, metric: Metric) -> str:
        """The rate of a metric with two decimals; a dash if it is not known."""
        rate = getattr(self, metric.rate)
        return "–" if rate is None else f"{rate:.2f}"

    def __str__(self) -> str:
        return f"{self.signature} = {self.exprate:.2f} ({interval_text(self.exact, self.n)})"


def score_of(rows: Sequence[Expression], signature: str, neutral: int | None = None) -> Score:
    """The score of some expressions."""
    counts = counts_of(rows)
    counted = [metric for metric in METRICS if metric.count in counts]
    whole = {metric: sum(filter(None, map(metric.of, rows))) if metric.of else len(rows) for metric in counted}
    known = [metric for metric in counted if whole[metric]]
    rates: dict[str, Any] = {metric.rate: percent(counts[metric.count], whole[metric]) for metric in known}
    status = [row.status for row in rows]
    return Score(
        n=len(rows),
        **{metric.count: counts[metric.count] for metric in known},
        **rates,
        by_length=by_bucket(rows) if any(row.bucket for row in rows) else None,
        ci95=rounded_interval(counts["exact"], len(rows)),
        signature=signature,
        missing=status.count("missing"),
        unconverted=status.count("unconverted"),
        neutral=neutral,
    )


# --- intervals ----------------------------------------------------------------------------------------------------


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


def rounded_interval(count: int, n: int) -> tuple[float, float]:
    low, high = proportion_interval(count, n)
    return round(100 * low, 2), round(100 * high, 2)


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
