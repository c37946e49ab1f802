"""results/confidence.md: how far a confidence can be trusted, of the rows that `calibration` has read and fitted."""

from collections.abc import Mapping, Sequence

import numpy as np

from hmerbench.benchmarks.data.samples import HELD_OUT_SET
from hmerbench.benchmarks.performance.calibration import BEFORE, FOLDS, NONSENSE, PENS_FROM, USED, Row, cross_validated
from hmerbench.benchmarks.performance.strange_pictures import KINDS
from hmerbench.benchmarks.recognition.confidence import DOUBTFUL, FEATURES
from hmerbench.evaluation.scoring.metrics import interval_text

SEED = 7  # of the gap by chance
BEFORE_DOUBTFUL = 0.7  # the threshold of what was called confidence before
YEARS = "all test sets"


PAGE = """# How far a confidence can be trusted

Written by `hmerbench calibrate`; every picture is a row of [confidence.csv](confidence.csv), and
[reliability](figures/reliability.png) and [risk against coverage](figures/risk-coverage.png) show them.

The confidence of a reading is the share of readings with that number that are right. It is a logistic regression on
what the search leaves as evidence ({used}; [confidence.py](../benchmarks/recognition/confidence.py)), fitted to
{n} training expressions ({right} read right). A network of its own read them, the {network}:
it had not been trained on their writers and formulas. A reading is doubtful below {limit:.0%}: it is then more probably
wrong than right. Before, the confidence was the geometric mean of the probabilities of tokens, doubtful below
{before:.0%}.

## Checked

On fixed samples of the test images; on strokes of CROHME {pens} drawn in other pens and photographed (by program); on
pictures that show no expression. *right*: share read right, with a 95 % interval. *gap*: mean distance between
confidence and the share right, over ten bins of equally many readings, in points; *by chance*: what it would be, with
as many readings, if every confidence were exact. *Brier*: mean squared difference between confidence and what came
true. *refused*: with an error, as without ink.

{table}

What shows no expression, and was read as one without doubt:

{kinds}

## What the evidence is worth

On the held-out expressions, each fitted without its writer's sheet ({folds} folds). `logp` is the log-probability of
the whole reading, `steps` its length, `margin` the distance to the next reading, `apart` how far the directions differ,
`both` whether both found it, `spread` how far the sizes of the image differ.

{ablation}
"""


def page(rows: Sequence[Row]) -> str:
    """results/confidence.md."""
    held = [row for row in rows if row["set"] == HELD_OUT_SET and row["read"]]
    trusted = []
    for network in dict.fromkeys(row["network"] for row in rows if row["set"] == NONSENSE):
        own = [row for row in rows if (row["network"], row["set"]) == (network, NONSENSE)]
        line = {"network": network}
        for kind in KINDS:
            alike = [row for row in own if row["id"].rpartition(" ")[0] == kind]
            sure = sum(bool(row["read"]) and float(row["confidence"]) >= DOUBTFUL for row in alike)
            line[kind] = f"{sure} of {len(alike)}"
        trusted.append(line)
    return PAGE.format(
        n=len(held), right=sum(row["right"] for row in held), network=held[0]["network"], limit=DOUBTFUL,
        before=BEFORE_DOUBTFUL, pens=PENS_FROM, table=markdown(summary(rows)), kinds=markdown(trusted), folds=FOLDS,
        ablation=markdown(ablation(held)), used=", ".join(f"`{name}`" for name in USED),
    )  # fmt: skip


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """A table in Markdown."""
    names = [*table[0]] if table else []
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if table else "(none read yet)"


def log_loss(shares: np.ndarray, right: np.ndarray) -> float:
    """Mean of -log of the probability that was given to what is true."""
    given = np.where(right > 0, shares, 1 - shares).clip(1e-6)
    return float(-np.log(given).mean())


def brier(shares: np.ndarray, right: np.ndarray) -> float:
    """Mean of the squared difference."""
    return float(((shares - right) ** 2).mean())


def gap(shares: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: |mean confidence - share right| over bins of equally many readings."""
    parts = np.array_split(np.argsort(shares, kind="stable"), bins)
    return float(sum(abs(shares[p].mean() - right[p].mean()) * len(p) for p in parts if len(p)) / len(shares))


def gap_by_chance(shares: np.ndarray) -> float:
    """The mean gap of readings of which exactly the shares that are claimed are right: what few readings make of it."""
    draw = np.random.default_rng(SEED)
    return float(np.mean([gap(shares, (draw.random(len(shares)) < shares).astype(float)) for _ in range(200)]))


def summary(rows: Sequence[Row]) -> list[dict[str, str]]:
    """What came of the pictures of every network and set, before and after; the test sets are taken together, too."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for name in [*[YEARS] * row["set"].isdecimal(), row["set"]]:
            groups.setdefault((row["network"], name), []).append(row)
    return [{"network": network, "set": name} | _line(own, name != NONSENSE) for (network, name), own in groups.items()]


def _line(own: Sequence[Row], shows: bool) -> dict[str, str]:
    found = [row for row in own if row["read"]]
    right, count = np.array([row["right"] for row in found], float), sum(row["right"] for row in own)
    now = np.array([float(row["confidence"]) for row in found])
    line = {"n": str(len(own)), "refused": str(len(own) - len(found))}
    line["right"] = f"{100 * count / len(own):.0f} % ({interval_text(count, len(own))})" if shows else ""
    for when, key, limit in (("before", BEFORE, BEFORE_DOUBTFUL), ("now", "confidence", DOUBTFUL)):
        shares = np.array([float(row[key]) for row in found])
        sure = shares >= limit
        line |= {
            f"mean confidence, {when}": f"{100 * shares.mean():.0f} %",
            f"gap, {when}": f"{100 * gap(shares, right):.1f}",
            f"Brier, {when}": f"{brier(shares, right):.3f}",
            f"doubtful, {when}": f"{int((~sure).sum())} ({int(right[~sure].sum())} right)",
            f"not doubtful, {when}": f"{int(sure.sum())} ({int(right[sure].sum())} right)",
        }
    return line | {"gap by chance": f"{100 * gap_by_chance(now):.1f}"}


def ablation(rows: Sequence[Row]) -> list[dict[str, str]]:
    """How good more and less evidence is on the held-out expressions, cross-validated by writer's sheet."""
    more = [name for name in FEATURES if name not in USED]
    choices = {"`logp`, a temperature": ("logp",), "`logp`, `steps`": ("logp", "steps"), "**what is used**": USED}
    choices |= {f"and `{name}`": (*USED, name) for name in more} | {"and all of these": (*USED, *more)}
    right = np.array([row["right"] for row in rows], float)
    ways = {"probability per token, as it is": np.array([float(row[BEFORE]) for row in rows])}
    ways |= {name: cross_validated(rows, features) for name, features in choices.items()}
    return [
        {
            "evidence": name,
            "log loss": f"{log_loss(shares, right):.4f}",
            "Brier": f"{brier(shares, right):.4f}",
            "gap": f"{100 * gap(shares, right):.1f}",
        }
        for name, shares in ways.items()
    ]
