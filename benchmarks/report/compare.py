"""Compare rows over seeds and writers: does coverage help, does the paper's ordering hold?

A difference is sampled twice: other writers would have written other images, and other seeds would have trained other
networks. Its interval and its test are over both (`evaluation.scoring.sampling`): rows trained with the same seed are
blocks, and how much a run differs from its row and its block is estimated from all rows of a comparison. One seed in
common is an interval over writers alone, which leaves out how much trainings differ, and no verdict.

The steps of the paper's ordering, at every preset whose networks are its own, are one family with Holm's correction; a
preset that reads with another's weights is no second experiment and a family by itself. So are the pairs of rows that
reference.yaml also names. The paper's claim, that coverage helps (CLAIM), is tested by itself.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from statistics import stdev

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.paper import model_name, reference
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring import sampling
from hmerbench.evaluation.scoring.signature import fields_of
from hmerbench.evaluation.scoring.stats import holm

# the paper's Table 1, worst first
ORDER: tuple[str, ...] = tuple(recipe for recipe, names in reference()["recipes"].items() if "table1" in names)
CLAIM = "bttr-baseline", "comer-fusion"  # no coverage, and both kinds of it
MIN_SEEDS = 2  # that both rows of a step share
LEVEL = 0.05  # of significance
REPORTED = {  # recipe -> the paper's ExpRate on CROHME 2014, in percent
    recipe: row["exprate"] for recipe in ORDER for row in reference()["table1"] if row["model"] == model_name(recipe)
}
POOLED = "all"  # the union of all test sets a run was scored on
WIDTH = 118  # characters in a printed line


@dataclass(frozen=True)
class ScoredRun:
    """A run's ExpRate in percent, and which of the expressions, named "set/id", it reads right."""

    recipe: str
    seed: int
    preset: str
    conditions: str  # test sets, preset, search, epoch selection, scorer; only runs with equal conditions are compared
    exprate: float
    ids: tuple[str, ...]
    right_N: np.ndarray
    folder: RunFolder
    borrowed: bool = False  # read with the weights of another preset's run
    external: bool = False  # trained by another program, at least in part


Rows = Mapping[str, Sequence[ScoredRun]]  # by recipe


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
class Step:
    """The difference between two rows, `upper` (better according to the paper) minus `lower`, in percentage points.

    `low` and `high` bound its 95 % interval, over `over`. It is measured with the seeds that both rows have; without
    any, with the mean of each row, over writers. `p_alone` is two-sided, `p` corrected over the family. `reported` is
    the paper's difference.
    """

    lower: str
    upper: str
    difference: float
    low: float
    high: float
    over: str
    images: int
    seeds: int  # in common
    p_alone: float
    p: float = 1.0
    reported: float | None = None  # on CROHME 2014
    verdict: str = "too few seeds"  # significant | opposite | not significant | too few seeds

    @property
    def tested(self) -> bool:
        """Whether the test is over seeds."""
        return self.over.startswith("seeds")

    @property
    def name(self) -> str:
        """Both rows under the paper's names."""
        return f"{model_name(self.lower)} → {model_name(self.upper)}"


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


def grouped(folders: Sequence[Path], results: Path, split: str | None = None) -> list[list[list[ScoredRun]]]:
    """For each test set, the runs in groups of equal conditions; arguments and errors are those of `compare`."""
    roots = folders or [results / "reproduced", results / "runs"]
    scored = {run: sets for run in RunFolder.under(*roots) if (sets := run.sets("scores/*.json"))}
    if not scored:
        for folder in folders:
            if not folder.exists():
                raise UserError(f"{folder}: there is no such folder; `hmerbench ls` lists the runs")
        on = "any set" if split in (None, POOLED) else split
        raise UserError(f"{', '.join(map(str, roots))}: no run scored on {on}; score one first")
    labels = presets.preset_labels(scored)
    names = [split] if split else sorted({*chain.from_iterable(scored.values())})
    found, known = [], dict[tuple[str, ...], tuple[str, ...]]()
    for name in [*names, POOLED] if len(names) > 1 else names:
        groups: dict[str, dict[tuple[str, int], ScoredRun]] = {}
        for run, sets in scored.items():
            if name in (POOLED, *sets):
                read = _read(run, labels[run], sets if name == POOLED else [name], known)
                groups.setdefault(read.conditions, {}).setdefault((read.recipe, read.seed), read)
        if not groups:
            fix = "score one, or name another set with --set"
            raise UserError(f"{', '.join(map(str, roots))}: no run scored on {name}; {fix}")
        found.append([list(runs.values()) for _, runs in sorted(groups.items())])
    return found


def _read(run: RunFolder, preset: str, sets: Sequence[str], known: dict[tuple[str, ...], tuple[str, ...]]) -> ScoredRun:
    """Read a run's verdicts on the union of `sets`; the score signatures give its conditions. `known`: ids read so
    far."""
    right, signatures = dict[str, bool](), list[dict[str, str]]()
    for name in sets:
        try:
            signatures.append(fields_of(run.scores[name].signature))
        except InputError as error:
            raise UserError(f"{run.path / 'scores' / name}.json: {error}; score the run again") from None
        right |= {f"{name}/{id_}": count == 0 for id_, count in run.error_counts(name).items()}
    names, n = " + ".join(fields["set"] for fields in signatures), sum(int(fields["n"]) for fields in signatures)
    rest = [{key: text for key, text in fields.items() if key not in ("set", "n")} for fields in signatures]
    for fields in rest:
        fields["search"] = _beam(run, fields["search"])
    search, select = (" and ".join(dict.fromkeys(fields.pop(key) for fields in rest)) for key in ("search", "select"))
    scorer = " and ".join(dict.fromkeys(", ".join(f"{key} {text}" for key, text in fields.items()) for fields in rest))
    conditions = (
        f"{names} ({n:,} expressions), preset {preset}, search {search}, epoch by {select}, scored with {scorer}"
    )
    ids, exprate = tuple(sorted(right)), 100 * sum(right.values()) / len(right)
    ids, verdicts = known.setdefault(ids, ids), np.array([right[id_] for id_ in ids])  # equal ids are kept once
    borrowed = "trained_in" in run.environment
    return ScoredRun(run.recipe, run.seed, preset, conditions, exprate, ids, verdicts, run, borrowed, run.external)


def _beam(run: RunFolder, search: str) -> str:
    """The search without its direction, where a network is read in every direction that it has learned."""
    with suppress(UserError):  # settings of another version of the suite
        directions = run.settings.model.directions
        whole = "joint" if "both" in directions else directions[0]
        return f"beam {search.removeprefix(whole)}" if search.startswith(whole) else search
    return search


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


def images_of(keys: Sequence[str]) -> sampling.Images:
    """The images behind keys "set/id"."""
    sets, ids = zip(*(key.split("/", 1) for key in keys), strict=True)
    return sampling.Images(ids, sets)


def rows_of(runs: Sequence[ScoredRun]) -> dict[str, list[ScoredRun]]:
    """Runs of equal conditions by recipe, in the paper's order, their seeds in ascending order."""
    order = [*ORDER, *sorted({run.recipe for run in runs} - set(ORDER))]
    rows: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=lambda run: (order.index(run.recipe), run.seed)):
        rows.setdefault(run.recipe, []).append(run)
    return rows


def measure(rows: Rows, pairs: Sequence[tuple[str, str]], *parts: Sequence[str]) -> list[Step]:
    """The differences between pairs of rows, uncorrected, on the images of a part (keys; by default all), or how much
    larger they are on it than on a second part."""
    if not pairs:
        return []
    first = next(iter(rows.values()))[0]
    for recipe, runs in rows.items():
        if any(run.ids != first.ids for run in runs):
            both = f"{first.recipe} and {recipe}"
            raise UserError(f"{both}: they were scored on different expressions; score them again")
    keys = list(chain(*parts)) if parts else first.ids
    images, values = images_of(keys), {recipe: _values(runs, parts or (keys,)) for recipe, runs in rows.items()}
    rates = {
        recipe: {run.seed: float(value) for run, value in zip(runs, values[recipe].mean(1), strict=True)}
        for recipe, runs in rows.items()
    }
    spread, steps = sampling.spread_between_runs(rates), list[Step]()
    for lower, upper in pairs:
        common = [seed for seed in rates[lower] if seed in rates[upper]]
        a, b = (
            values[recipe][[list(rates[recipe]).index(seed) for seed in common or rates[recipe]]]
            for recipe in (lower, upper)
        )
        found = sampling.difference(b - a if common else (b.mean(0) - a.mean(0))[None], images, spread)
        step = Step(lower, upper, found.value, found.low, found.high, found.over, images.n, len(common), found.p)
        if lower in REPORTED and upper in REPORTED:
            step.reported = REPORTED[upper] - REPORTED[lower]
        steps.append(step)
    return steps


def _values(runs: Sequence[ScoredRun], parts: Sequence[Sequence[str]]) -> np.ndarray:
    """[seed, image]: 100 where a run is right. With a second part, values whose mean is the rate on the first less that
    on the second, and which deviate from it as that difference does with each image."""
    place = {key: index for index, key in enumerate(runs[0].ids)}
    right = [100.0 * np.array([run.right_N[[place[key] for key in keys]] for run in runs]) for keys in parts]
    if len(parts) == 1:
        return right[0]
    n, means = sum(map(len, parts)), [values.mean(1, keepdims=True) for values in right]
    signed = [
        sign * (values - mean) * n / values.shape[1] for sign, values, mean in zip((1, -1), right, means, strict=True)
    ]
    return np.concatenate(signed, axis=1) + means[0] - means[1]


def correct(steps: Sequence[Step]) -> None:
    """Correct the p-values of one family; those of steps with one seed, which have no verdict, among themselves."""
    for tested in (True, False):
        family = [step for step in steps if step.tested is tested]
        for step, p in zip(family, holm([step.p_alone for step in family]), strict=True):
            step.p = p
            if tested:
                step.verdict = "not significant" if p >= LEVEL else "significant" if step.difference > 0 else "opposite"


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


def printed_p(p: float | None, equals: str = "") -> str:
    """Format a p-value with three decimals, `equals` before it where it is not below 0.001; a dash for None."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{equals}{p:.3f}"


def as_text(comparison: Comparison) -> str:
    """Format a comparison for the terminal."""
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
    return "\n".join([*lines, "", textwrap.fill(comparison.words, WIDTH), ""])


def what_a_difference_means(runs: Sequence[RunFolder], root: Path) -> str:
    """What may be concluded from the rates of a job's runs, and the command that tests the rows under `root`."""
    comparisons = compare([run.path for run in runs], root, POOLED, every_pair=True)
    steps = [step for comparison in comparisons for step in comparison.steps]
    ask = f"hmerbench compare {root} tests the rows, over seeds if they share some: SEEDS='7 8 9'"
    if not steps:
        return f"An interval of one seed leaves out how much trainings differ. {ask}"
    widest = max(steps, key=lambda step: abs(step.difference))
    interval = f"95 %: {widest.low:+.1f} to {widest.high:+.1f} over {widest.over}"
    seeds = f"{counted(widest.seeds, 'seed')} in common"
    shows = f"corrected p{printed_p(widest.p, '=')}" if widest.tested else f"{seeds}: no order"
    return f"largest difference: {widest.name} {widest.difference:+.1f} points ({interval}; {shows}). {ask}"


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons as JSON, with every field."""
    return json.dumps([asdict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False)
