"""Compare rows over seeds and writers: does coverage help, does the paper's ordering hold?

The steps of the paper's ordering, at every preset whose networks are its own, are one family with Holm's correction; a
preset that reads with another's weights is no second experiment and a family by itself. So are the pairs of rows that
reference.yaml also names. The paper's claim, that coverage helps (CLAIM), is tested by itself.
"""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from shlex import quote
from statistics import stdev

import numpy as np

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report.paper import ORDER, model_name, reference
from hmerbench.benchmarks.report.scored_runs import (
    MIN_SEEDS,
    POOLED,
    Rows,
    ScoredRun,
    Step,
    correct,
    grouped,
    images_of,
    measure,
    printed_p,
    rows_of,
)
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.stats import LEAST, rate

CLAIM = "bttr-baseline", "comer-fusion"  # no coverage, and both kinds of it


@dataclass(frozen=True)
class RowSummary:
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
    rows: list[RowSummary]
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


def _summaries(rows: Rows) -> list[RowSummary]:
    summaries = []
    for recipe, runs in rows.items():
        found = rate(np.array([run.right_N for run in runs]), images_of(runs[0].ids))
        sd = stdev(run.exprate for run in runs) if len(runs) > 1 else None
        interval, seeds = (found.low, found.high, found.over), " ".join(str(run.seed) for run in runs)
        summaries.append(RowSummary(recipe, model_name(recipe), len(runs), found.value, sd, *interval, seeds))
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
    over = "" if step.tested else f" over {step.over}"
    return f"{step.name} {step.difference:+.2f} points (p{printed_p(step.p, '=')}{over})"


WIDTH = 118  # characters in a printed line
NOTES = {  # what an interval is over -> why it is over no more
    "writers": "over writers alone: there is one seed, or none in common; other trainings would differ, too",
    "images": f"over images: the ids name fewer than {LEAST} writers, or nothing differs between writers and seeds",
    "seeds and images": f"over seeds and images: the ids name fewer than {LEAST} writers",
}


def as_text(comparison: Comparison) -> str:
    heading = f"{comparison.conditions}: ExpRate in percent, mean ± standard deviation over seeds, 95 % interval"
    lines = [textwrap.fill(heading, WIDTH), ""]
    names = max(14, *(len(row.model) for row in comparison.rows))
    for row in comparison.rows:
        spread = f"{row.mean:6.2f}{'' if row.sd is None else f' ± {row.sd:.2f}'}"
        interval = f"{row.low:.2f} to {row.high:.2f}, over {row.over}"
        lines.append(f"  {row.model:<{names}}  {spread:<14} {interval}  seed{'s' * (row.n > 1)} {row.seeds}")
    if steps := comparison.every_step:
        width = max(len(step.name) for step in steps)
        lines += ["", f"  {'difference in points':<{width + 7}}  {'95 %':<17}{'over':<20}      p  corrected"]
    for step in steps:
        interval = f"{step.low:+.2f} to {step.high:+.2f}"
        tests = f"{printed_p(step.p_alone):>7}  {printed_p(step.p):>9}"
        lines.append(
            f"  {step.name:<{width}} {step.difference:+6.2f}  {interval:<17}{step.over:<20}{tests}  {step.verdict}"
        )
    used = {each.over for each in (*comparison.rows, *comparison.every_step)}
    notes = [f"  {note}" for over, note in NOTES.items() if over in used]
    return "\n".join([*lines, "", *notes, *([""] if notes else []), textwrap.fill(comparison.words, WIDTH), ""])


def what_a_difference_means(runs: Sequence[RunFolder], root: Path) -> str:
    """What may be concluded from the rates of a job's runs, and the command that tests the rows under `root`."""
    comparisons = compare([run.path for run in runs], root, POOLED, every_pair=True)
    steps = [step for comparison in comparisons for step in comparison.steps]
    ask = f"hmerbench compare {quote(str(root))} tests the rows, over seeds if they share some: SEEDS='7 8 9'"
    if not steps:
        return f"An interval of one seed leaves out how much trainings differ. {ask}"
    widest = max(steps, key=lambda step: abs(step.difference))
    interval = f"95 %: {widest.low:+.1f} to {widest.high:+.1f} over {widest.over}"
    seeds = f"{counted(widest.seeds, 'seed')} in common"
    shows = f"corrected p{printed_p(widest.p, '=')}" if widest.tested else f"{seeds}: no order"
    return f"largest difference: {widest.name} {widest.difference:+.1f} points ({interval}; {shows}). {ask}"


def as_json_text(comparisons: Sequence[Comparison]) -> str:
    return json.dumps([asdict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False)
