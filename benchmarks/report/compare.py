"""Compare rows over seeds and writers: does coverage help, does the paper's ordering hold?

The steps of the paper's ordering, at every preset whose networks are its own, are one family with Holm's correction; a
preset that reads with another's weights is no second experiment and a family by itself. So are the pairs of rows that
reference.yaml also names. The paper's claim, that coverage helps (CLAIM), is tested by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import stdev

import numpy as np

from hmerbench.benchmarks.report.paper import ORDER, model_name, reference
from hmerbench.benchmarks.report.scored_runs import Rows, ScoredRun, grouped, rows_of
from hmerbench.benchmarks.report.steps import MIN_SEEDS, Step, correct, images_of, measure, printed_p
from hmerbench.evaluation.scoring import sampling

CLAIM = "bttr-baseline", "comer-fusion"  # no coverage, and both kinds of it


@dataclass(frozen=True)
class Row:
    """A recipe's ExpRate over its seeds, in percent; `low` and `high` bound its 95 % interval over `over`."""

    recipe: str
    model: str
    n: int  # seeds
    mean: float
    sd: float | None  # over seeds
    low: float
    high: float
    over: str
    seeds: str


@dataclass
class Comparison:
    """Runs with equal conditions: their rows, the steps between them, and the verdict on the paper's ordering. Unless
    every pair is tested, `claim` is the difference that both kinds of coverage make, if both rows are there, and
    `pairs` are those of other networks."""

    preset: str
    conditions: str
    rows: list[Row]
    claim: Step | None
    steps: list[Step]
    pairs: list[Step]
    borrowed: bool  # whether the weights are another preset's
    verdict: str = "cannot tell"  # holds | does not hold | cannot tell
    words: str = ""

    @property
    def every_step(self) -> list[Step]:
        """The claim, if tested, the steps, and the other pairs."""
        return [*([self.claim] if self.claim else []), *self.steps, *self.pairs]


def compare(
    folders: Sequence[Path], results: Path, split: str | None = None, every_pair: bool = False
) -> list[Comparison]:
    """Compare all runs that share preset, settings and search, separately for each test set.

    `split` is a test set, POOLED, or None for each set and the pooled ones. Custom recipes are compared with the
    paper's rows. `folders` are run folders or contain them at any depth; default: results/reproduced and results/runs.
    Raises UserError if there is no run, or for a damaged one.
    """
    comparisons = []
    for groups in grouped(folders, results, split):
        of_set = [_compare(runs, every_pair) for runs in groups]
        _conclude(of_set)
        comparisons += of_set
    return comparisons


def _compare(runs: Sequence[ScoredRun], every_pair: bool) -> Comparison:
    """Measure each step of the paper's ordering, or every pair of rows, on runs with equal conditions."""
    rows = rows_of(runs)
    paper_rows = [recipe for recipe in rows if recipe in ORDER]
    every_pair = every_pair or len(paper_rows) < 2  # there is no order to test
    steps = measure(rows, list(combinations(rows, 2) if every_pair else pairwise(paper_rows)))
    pairs = measure(rows, [] if every_pair else [(a, b) for a, b in reference()["pairs"] if {a, b} <= rows.keys()])
    claim = None if every_pair or not rows.keys() >= {*CLAIM} else measure(rows, [CLAIM])[0]
    borrowed = all(run.borrowed for run in runs)
    return Comparison(runs[0].preset, runs[0].conditions, _summaries(rows), claim, steps, pairs, borrowed)


def _summaries(rows: Rows) -> list[Row]:
    """The rows with their means and intervals."""
    summaries = []
    for recipe, runs in rows.items():
        found = sampling.rate(np.array([run.right_N for run in runs]), images_of(runs[0].ids))
        sd = stdev(run.exprate for run in runs) if len(runs) > 1 else None
        interval, seeds = (found.low, found.high, found.over), " ".join(str(run.seed) for run in runs)
        summaries.append(Row(recipe, model_name(recipe), len(runs), found.value, sd, *interval, seeds))
    return summaries


CLAIM_WORDS = {  # verdict of CLAIM -> opening of the sentence
    "significant": "Coverage helps",
    "opposite": "Coverage hurts",
    "not significant": "Whether coverage helps is open",
    "too few seeds": f"Whether coverage helps is not tested over seeds, which takes {MIN_SEEDS} in common",
}
VERDICT_WORDS = {  # verdict of a step -> opening of the sentence that lists such steps
    "significant": "significant at 5 %",
    "opposite": "the other way round, significant at 5 %",
    "not significant": "not significant",
    "too few seeds": f"not tested over seeds, which takes {MIN_SEEDS} in common",
}


def _conclude(comparisons: Sequence[Comparison]) -> None:
    """Correct the tests of all comparisons on a set, and put into words what each shows."""
    correct([step for each in comparisons if not each.borrowed for step in each.steps])
    correct([step for each in comparisons if not each.borrowed for step in each.pairs])
    for each in comparisons:
        correct(each.steps if each.borrowed else [])
        correct(each.pairs if each.borrowed else [])
        correct([each.claim] if each.claim else [])
        each.verdict, each.words = _verdict(each)


def _verdict(comparison: Comparison) -> tuple[str, str]:
    """The verdict on the paper's ordering, and sentences that give the evidence for it and for the claim."""
    means = {row.recipe: row.mean for row in comparison.rows}
    paper_rows = [recipe for recipe in means if recipe in ORDER]
    if len(paper_rows) < 2:
        return "cannot tell", "The paper's order takes runs of at least two of its rows."
    missing = [model_name(recipe) for recipe in ORDER if recipe not in means]
    adjacent = [step for step in comparison.steps if (step.lower, step.upper) in pairwise(paper_rows)]
    if any(step.verdict == "opposite" and {step.lower, step.upper} <= {*ORDER} for step in comparison.steps):
        verdict, claim = "does not hold", "The paper's order does not hold"
    elif all(step.verdict == "significant" for step in adjacent) and not missing:
        verdict, claim = "holds", "The paper's order holds"
    else:
        verdict, claim = "cannot tell", "Whether the paper's order holds is open"
    in_order = all(means[a] < means[b] for a, b in pairwise(paper_rows))
    parts = [f"{claim}: the means are {'' if in_order else 'not '}in that order"]
    for name, opening in VERDICT_WORDS.items():
        steps = [step for step in comparison.steps if step.verdict == name and (step in adjacent or name == "opposite")]
        parts += [f"{opening}: {', '.join(map(_describe_step, steps))}"] if steps else []
    if missing:
        parts.append(f"there is no run of {', '.join(missing)}")
    helps = comparison.claim
    opening = [f"{CLAIM_WORDS[helps.verdict]}: {_describe_step(helps)}"] if helps else []
    return verdict, ". ".join([*opening, "; ".join(parts)]) + "."


def _describe_step(step: Step) -> str:
    """A step with its corrected p-value."""
    over = "" if step.tested else f" over {step.over}"
    return f"{step.name} {step.difference:+.2f} points (p{printed_p(step.p, '=')}{over})"
