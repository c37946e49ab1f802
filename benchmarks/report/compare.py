"""Compare rows over seeds and images: does coverage help, does the paper's ordering hold?

Two sources of variation are tested. Over images: do these particular networks differ on expressions like these (a
paired permutation test of each image's mean over the seeds; with one seed per row, McNemar's test)? Over seeds: would
the rows still differ if they were trained again (Welch's test, with at least MIN_SEEDS per row)? A difference is shown
if both tests are significant at 5 %, that is, if the larger p-value is. The paper's claim, that coverage helps (CLAIM),
is tested by itself; the steps of its ordering are one family, with Holm's correction, and so are the pairs of rows that
reference.yaml also names. With one seed per row, one year has too few images to resolve two points; all years pooled
(POOLED) have 3,332.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.paper import model_name, reference
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring import stats
from hmerbench.evaluation.scoring.signature import fields_of

# the paper's Table 1, worst first
ORDER: tuple[str, ...] = tuple(recipe for recipe, names in reference()["recipes"].items() if "table1" in names)
CLAIM = "bttr-baseline", "comer-fusion"  # no coverage, and both kinds of it
MIN_SEEDS = 3
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


@dataclass(frozen=True)
class Row:
    """A recipe's ExpRate over its seeds, in percent; `low` and `high` bound the 95 % interval of the mean."""

    recipe: str
    model: str
    n: int  # seeds
    mean: float
    sd: float | None  # over seeds
    low: float | None
    high: float | None
    seeds: str


@dataclass
class Step:
    """The difference between two rows, `upper` (better according to the paper) minus `lower`, in percentage points.

    `low` and `high` bound its 95 % interval: over seeds with MIN_SEEDS per row, otherwise over images. All p-values are
    two-sided; `p` is the larger of those there are, corrected over the family. `reported` is the paper's difference.
    """

    lower: str
    upper: str
    difference: float
    low: float
    high: float
    images: int
    seeds: int  # of the row with fewer
    image_p: float
    seed_p: float | None = None
    p: float = 1.0
    reported: float | None = None  # on CROHME 2014
    verdict: str = "too few seeds"  # shown | opposite | open | too few seeds

    @property
    def name(self) -> str:
        """Both rows under the paper's names."""
        return f"{model_name(self.lower)} → {model_name(self.upper)}"


@dataclass(frozen=True)
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
    verdict: str  # holds | does not hold | cannot tell
    words: str

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
    comparisons, known = [], dict[tuple[str, ...], tuple[str, ...]]()
    for name in [*names, POOLED] if len(names) > 1 else names:
        groups: dict[str, dict[tuple[str, int], ScoredRun]] = {}
        for run, sets in scored.items():
            if name in (POOLED, *sets):
                read = _read(run, labels[run], sets if name == POOLED else [name], known)
                groups.setdefault(read.conditions, {}).setdefault((read.recipe, read.seed), read)
        if not groups:
            fix = "score one, or name another set with --set"
            raise UserError(f"{', '.join(map(str, roots))}: no run scored on {name}; {fix}")
        comparisons += [_compare(list(runs.values()), every_pair) for _, runs in sorted(groups.items())]
    return comparisons


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
    # equal ids are kept once: of a thousand runs, they would take a gigabyte
    verdicts = np.array([right[id_] for id_ in ids])
    return ScoredRun(run.recipe, run.seed, preset, conditions, exprate, known.setdefault(ids, ids), verdicts)


def _beam(run: RunFolder, search: str) -> str:
    """The search without its direction, where a network is read in every direction that it has learned."""
    with suppress(UserError):  # settings of another version of the suite
        directions = run.settings.model.directions
        whole = "joint" if "both" in directions else directions[0]
        return f"beam {search.removeprefix(whole)}" if search.startswith(whole) else search
    return search


def _compare(runs: Sequence[ScoredRun], every_pair: bool) -> Comparison:
    """Test each step of the paper's ordering, or every pair of rows, on runs with equal conditions."""
    order = [*ORDER, *sorted({run.recipe for run in runs} - set(ORDER))]
    rows: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=lambda run: (order.index(run.recipe), run.seed)):
        rows.setdefault(run.recipe, []).append(run)
    paper_rows = [recipe for recipe in rows if recipe in ORDER]
    every_pair = every_pair or len(paper_rows) < 2  # there is no order to test
    steps = _test_family(rows, list(combinations(rows, 2) if every_pair else pairwise(paper_rows)))
    pairs = [] if every_pair else [(a, b) for a, b in reference()["pairs"] if {a, b} <= rows.keys()]
    claims = [] if every_pair or not rows.keys() >= {*CLAIM} else _test_family(rows, [CLAIM])
    summaries = []
    for recipe, seeds in rows.items():
        rates = [run.exprate for run in seeds]
        spread = (stdev(rates), *stats.mean_interval(rates)) if len(rates) > 1 else (None, None, None)
        numbers = " ".join(str(run.seed) for run in seeds)
        summaries.append(Row(recipe, model_name(recipe), len(rates), mean(rates), *spread, numbers))
    verdict, words = _conclude(summaries, claims, steps, paper_rows)
    claim = claims[0] if claims else None
    return Comparison(
        runs[0].preset, runs[0].conditions, summaries, claim, steps, _test_family(rows, pairs), verdict, words
    )


def _test_family(rows: Mapping[str, Sequence[ScoredRun]], pairs: Sequence[tuple[str, str]]) -> list[Step]:
    """Test the differences between pairs of rows, corrected as one family."""
    steps = [_test_step(rows[lower], rows[upper]) for lower, upper in pairs]
    over_images = stats.holm([step.image_p for step in steps])
    # a step without a test over seeds counts as undecided, so that having one later does not undo another's verdict
    over_both = stats.holm([1.0 if step.seed_p is None else max(step.image_p, step.seed_p) for step in steps])
    for step, image_p, p in zip(steps, over_images, over_both, strict=True):
        step.p = image_p if step.seed_p is None else p
        if step.seed_p is not None:
            step.verdict = "open" if p >= LEVEL else "shown" if step.difference > 0 else "opposite"
    return steps


def _test_step(a: Sequence[ScoredRun], b: Sequence[ScoredRun]) -> Step:
    """Test the difference between two rows, uncorrected."""
    ids = a[0].ids
    if any(run.ids != ids for run in (*a, *b)):
        raise UserError(f"{a[0].recipe} and {b[0].recipe}: they were scored on different expressions; score them again")
    right_a, right_b = (np.array([run.right_N for run in row]) for row in (a, b))
    image_p = stats.permutation(right_b.sum(0) * len(a) - right_a.sum(0) * len(b))  # whole numbers: exact
    gains = 100 * (right_b.mean(0) - right_a.mean(0))  # of each image, in points
    lower, upper = a[0].recipe, b[0].recipe
    interval = stats.mean_interval(gains.tolist()) if len(ids) > 1 else (-100.0, 100.0)
    step = Step(lower, upper, float(gains.mean()), *interval, len(ids), min(len(a), len(b)), image_p)
    if lower in REPORTED and upper in REPORTED:
        step.reported = REPORTED[upper] - REPORTED[lower]
    if step.seeds >= MIN_SEEDS:
        rates_a, rates_b = ([run.exprate for run in row] for row in (a, b))
        (step.low, step.high), step.seed_p = stats.welch(rates_a, rates_b)
    return step


CLAIM_WORDS = {  # verdict of CLAIM -> opening of the sentence
    "shown": "Coverage helps",
    "opposite": "Coverage hurts",
    "open": "Whether coverage helps is open",
    "too few seeds": f"Whether coverage helps is not tested over seeds, which takes {MIN_SEEDS} per row",
}
VERDICT_WORDS = {  # verdict of a step -> opening of the sentence that lists such steps
    "shown": "shown at 5 %, over seeds and images",
    "opposite": "the other way round, at 5 % over seeds and images",
    "open": "not shown",
    "too few seeds": f"not tested over seeds, which takes {MIN_SEEDS} per row",
}


def _conclude(
    rows: Sequence[Row], claims: Sequence[Step], steps: Sequence[Step], paper_rows: Sequence[str]
) -> tuple[str, str]:
    """The verdict on the paper's ordering, and sentences that give the evidence for it and for the claim."""
    if len(paper_rows) < 2:
        return "cannot tell", "The paper's order takes runs of at least two of its rows."
    means = {row.recipe: row.mean for row in rows}
    missing = [model_name(recipe) for recipe in ORDER if recipe not in means]
    adjacent = [step for step in steps if (step.lower, step.upper) in pairwise(paper_rows)]
    if any(step.verdict == "opposite" and {step.lower, step.upper} <= {*ORDER} for step in steps):
        verdict, claim = "does not hold", "The paper's order does not hold"
    elif all(step.verdict == "shown" for step in adjacent) and not missing:
        verdict, claim = "holds", "The paper's order holds"
    else:
        verdict, claim = "cannot tell", "Whether the paper's order holds is open"
    in_order = all(means[a] < means[b] for a, b in pairwise(paper_rows))
    parts = [f"{claim}: the means are {'' if in_order else 'not '}in that order"]
    for name, opening in VERDICT_WORDS.items():
        if listed := [step for step in steps if step.verdict == name and (step in adjacent or name == "opposite")]:
            parts.append(f"{opening}: {', '.join(map(_describe_step, listed))}")
    if missing:
        parts.append(f"there is no run of {', '.join(missing)}")
    sentences = [f"{CLAIM_WORDS[claim.verdict]}: {_describe_step(claim)}" for claim in claims] + ["; ".join(parts)]
    return verdict, ". ".join(sentences) + "."


def _describe_step(step: Step) -> str:
    """A step with its corrected p-value."""
    over = " over images" if step.seed_p is None else ""
    return f"{step.name} {step.difference:+.2f} points (p{printed_p(step.p, '=')}{over})"


def printed_p(p: float | None, equals: str = "") -> str:
    """Format a p-value with three decimals, `equals` before it where it is not below 0.001; a dash for None."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{equals}{p:.3f}"


def as_text(comparison: Comparison) -> str:
    """Format a comparison for the terminal."""
    heading = f"{comparison.conditions}: ExpRate in percent, mean ± standard deviation and 95 % interval over seeds"
    lines = [textwrap.fill(heading, WIDTH), ""]
    names = max(14, *(len(row.model) for row in comparison.rows))
    for row in comparison.rows:
        spread = "" if row.sd is None else f" ± {row.sd:.2f}  {row.low:.2f} to {row.high:.2f}"
        lines.append(f"  {row.model:<{names}}  {row.mean:6.2f}{spread}  seed{'s' * (row.n > 1)} {row.seeds}")
    if steps := comparison.every_step:
        width = max(len(step.name) for step in steps)
        over = "/".join(sorted({"images" if step.seed_p is None else "seeds" for step in steps}))
        columns = f"{f'95 %, {over}':<20}p, seeds  p, images  corrected"
        lines += ["", f"  {'difference in points':<{width + 7}}  {columns}"]
    for step in steps:
        interval = f"{step.low:+.2f} to {step.high:+.2f}"
        tests = f"{printed_p(step.seed_p):>9}  {printed_p(step.image_p):>9}  {printed_p(step.p):>9}"
        lines.append(f"  {step.name:<{width}} {step.difference:+6.2f}  {interval:<19}{tests}  {step.verdict}")
    return "\n".join([*lines, "", textwrap.fill(comparison.words, WIDTH), ""])


def what_a_difference_means(runs: Sequence[RunFolder], root: Path) -> str:
    """What may be concluded from the rates of a job's runs, and the command that tests the rows under `root`."""
    comparisons = compare([run.path for run in runs], root, POOLED, every_pair=True)
    steps = [step for comparison in comparisons for step in comparison.steps]
    ask = f"hmerbench compare {root} tests the rows, over seeds if each has three: SEEDS='7 8 9'"
    if not steps:
        return f"These intervals are those of so many expressions; other seeds differ, too. {ask}"
    widest = max(steps, key=lambda step: abs(step.difference))
    over = "seeds" if widest.seed_p is not None else f"{widest.images:,} expressions"
    interval = f"95 %: {widest.low:+.1f} to {widest.high:+.1f} over {over}"
    seeds = min(step.seeds for step in steps)
    shows = f"corrected p{printed_p(widest.p, '=')}" if seeds >= MIN_SEEDS else f"{counted(seeds, 'seed')}: no order"
    return f"largest difference: {widest.name} {widest.difference:+.1f} points ({interval}; {shows}). {ask}"


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons as JSON, with every field."""
    return json.dumps([asdict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False)
