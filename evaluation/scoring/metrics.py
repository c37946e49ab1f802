"""The metrics of a score. Each is one entry of METRICS: which expressions count, and how the count is called and shown.

Score files, the terminal, the tracking store, tables, pages and model cards take their metrics from there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hmerbench.evaluation.scoring.lengths import bucket


@dataclass(frozen=True)
class Expression:
    """One row of the per-expression table."""

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
        return cls(
            id=id_,
            status=status,
            errors=int(values["D_B"]),
            label_errors=int(values["D_C"]),
            relation_errors=int(values["D_L"]),
            exact=values["D_B"] == 0,
            structure=values["hasCorrectStructure"] == 1,
            token_exact=None if caption is None else tokens == caption,
            length=None if caption is None else len(caption),
            bucket=None if caption is None else bucket(len(caption)),
        )


class Metric(NamedTuple):
    """The share of the expressions for which `holds` is true; None if it cannot be told (without captions, say)."""

    count: str  # key of the count in a score file
    rate: str  # key of the rate, in percent
    holds: Callable[[Expression], bool | None]
    name: str  # as `hmerbench score` prints it
    heading: str = ""  # of its column in tables; none: it is not in them
    always: bool = False  # every score file has it; others may be older than the metric

    @property
    def column(self) -> str:
        """The name of its column in the .csv of a table."""
        return self.rate if self.count == "exact" else self.count


def _within(most: int) -> Metric:
    errors = f"{most} error{'s' * (most > 1)}"
    return Metric(
        f"le{most}",
        f"exprate_le{most}",
        lambda row: row.errors <= most,
        f"<= {errors}",
        heading=f"≤ {most}",
        always=True,
    )


METRICS = (
    Metric("exact", "exprate", lambda row: row.exact, "exact", heading="ExpRate", always=True),
    *map(_within, (1, 2, 3)),
    Metric("structure", "structure_rate", lambda row: row.structure, "structure", always=True),
    Metric("token_exact", "token_exprate", lambda row: row.token_exact, "tokens exact"),
)
WITHIN = METRICS[:4]  # with no errors and at most 1, 2, 3: what LgEval counts and papers report
TABULATED = tuple(metric for metric in METRICS if metric.heading)


def counts_of(rows: Iterable[Expression]) -> dict[str, int]:
    """How many expressions there are, `n`, and how many each metric counts; without those that cannot be told."""
    rows = list(rows)
    held = {metric.count: [metric.holds(row) for row in rows] for metric in METRICS}
    known = {name: sum(map(bool, verdicts)) for name, verdicts in held.items() if verdicts.count(None) < len(rows)}
    return {"n": len(rows)} | known
