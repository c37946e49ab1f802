"""Compare rows over seeds and writers: does coverage help, does the paper's ordering hold?

The steps of the paper's ordering, at every preset whose networks are its own, are one family with Holm's correction; a
preset that reads with another's weights is no second experiment and a family by itself. So are the pairs of rows that
reference.yaml also names. The paper's claim, that coverage helps (CLAIM), is tested by itself.
"""

import json
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from shlex import quote
from statistics import stdev

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report.paper import ORDER, model_name, reference
from hmerbench.benchmarks.report.scored_runs import POOLED, Group, Step, correct, grouped, images_of, measure, printed_p
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
    missing: list[str]  # rows of the paper's order without a run
    verdict: str = "cannot tell"  # on that order: holds | does not hold | cannot tell

    @property
    def every_step(self) -> list[Step]:
        """The claim, if tested, the steps, and the other pairs."""
        return [*([self.claim] if self.claim else []), *self.steps, *self.pairs]


def compare(
    folders: Sequence[Path],
    results: Path,
    split: str | None = None,
    every_pair: bool = False,
    among: Collection[str] | None = None,
) -> list[Comparison]:
    """Compare all runs that share preset, settings and search, separately for each test set.

    `split` is a test set, POOLED, or None for each set and the pooled ones; `among` are the sets that count, by default
    all. Custom recipes are compared with the paper's rows. `folders` are run folders or contain them at any depth;
    default: results/reproduced and results/runs.
    Raises UserError if there is no run, or for a damaged one.
    """
    comparisons = []
    for groups in grouped(folders, results, split, among):
        of_set = [_compare(group, every_pair) for group in groups]
        _conclude(of_set)
        comparisons += of_set
    return comparisons


def _compare(group: Group, every_pair: bool) -> Comparison:
    """Measure each step of the paper's ordering, or every pair of rows, on runs with equal conditions."""
    rows = group.recipes
    paper_rows = [recipe for recipe in rows if recipe in ORDER]
    every_pair = every_pair or len(paper_rows) < 2  # there is no order to test
    steps = measure(group, list(combinations(rows, 2) if every_pair else pairwise(paper_rows)))
    pairs = measure(group, [] if every_pair else [(a, b) for a, b in reference()["pairs"] if {a, b} <= {*rows}])
    claim = None if every_pair or not {*CLAIM} <= {*rows} else measure(group, [CLAIM])[0]
    summaries = [_summary(group, recipe, of) for recipe, of in group.rates().items()]
    missing = [model_name(recipe) for recipe in ORDER if recipe not in rows]
    return Comparison(group.preset, group.conditions, summaries, claim, steps, pairs, group.borrowed, missing)


def _summary(group: Group, recipe: str, rates: Mapping[int, float]) -> RowSummary:
    found = rate(group.of_row(recipe).to_numpy().T, images_of([*group.right.index]))
    sd, seeds = stdev(rates.values()) if len(rates) > 1 else None, " ".join(map(str, rates))
    interval = found.low, found.high, found.over
    return RowSummary(recipe, model_name(recipe), len(rates), found.value, sd, *interval, seeds)


def _conclude(comparisons: Sequence[Comparison]) -> None:
    """Correct the tests of all comparisons on a set, and judge the paper's ordering by each."""
    own = [each for each in comparisons if not each.borrowed]
    for family in (own, *([each] for each in comparisons if each.borrowed)):
        correct([step for each in family for step in each.steps])
        correct([step for each in family for step in each.pairs])
    for each in comparisons:
        correct([each.claim] if each.claim else [])
        each.verdict = _verdict(each)


def _verdict(comparison: Comparison) -> str:
    """The paper's order holds if it has a significant step from each row to the next, and does not if one is opposite.
    Of every pair of rows, all are steps of that order, whose rows come in it."""
    verdicts = {(step.lower, step.upper): step.verdict for step in comparison.steps}
    if any(verdict == "opposite" and {*pair} <= {*ORDER} for pair, verdict in verdicts.items()):
        return "does not hold"
    holds = all(verdicts.get(pair) == "significant" for pair in pairwise(ORDER))
    return "holds" if holds else "cannot tell"


WIDTH = 118  # characters in a printed line
FEW = f"the ids name fewer than {LEAST} writers or nearly one per image"
NOTES = {  # what an interval is over -> why it is over no more
    "writers": "over writers alone: there is one seed, or none in common; other trainings would differ, too",
    "images": f"over images: {FEW}, or nothing differs between writers and seeds",
    "seeds and images": f"over seeds and images: {FEW}",
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
        tests = f"{printed_p(step.p_alone):>7}  {printed_p(step.p):>9}  {step.verdict}"
        lines.append(f"  {step.name:<{width}} {step.difference:+6.2f}  {interval:<17}{step.over:<20}{tests}")
    used = {each.over for each in (*comparison.rows, *comparison.every_step)}
    notes = [f"  {note}" for over, note in NOTES.items() if over in used]
    order = f"The paper's order: {comparison.verdict}"
    order += f"; there is no run of {', '.join(comparison.missing)}" if comparison.missing else ""
    return "\n".join([*lines, "", *notes, *([""] if notes else []), order, ""])


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
