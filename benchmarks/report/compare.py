"""Rows against each other, over seeds and images: does the paper's ordering hold, and is the difference significant?

Two questions have two answers. On the images: do these very networks differ, on expressions like these (McNemar for one
seed each, else a paired permutation test of each image's mean over the seeds)? Over the seeds: would the rows differ if
they were trained once more (Welch's test)? A step of the ordering is shown where both tests say so at 5 % after Holm's
correction for all steps; nothing is tested with fewer than MIN_SEEDS seeds. A year has about a thousand images, too few
to see two points; the years pooled (POOLED) have 3,332.
"""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.errors import UserError
from benchmarks.report import presets
from benchmarks.report.paper import model_name, reference
from benchmarks.runs.folder import RunFolder
from evaluation import InputError
from evaluation.scoring import stats
from evaluation.scoring.signature import Signature

ORDER: tuple[str, ...] = tuple(reference()["recipes"])  # the paper's Table 1, worst first
MIN_SEEDS = 3
LEVEL = 0.05
POOLED = "all"  # every test set a run was scored on, as one
WIDTH = 118  # of printed lines


@dataclass(frozen=True)
class ScoredRun:
    """A run's ExpRate in percent and the errors (D_B) of every expression, keyed set/id."""

    recipe: str
    seed: int
    conditions: str  # what must be the same for runs to be compared: set, preset, search, selection
    exprate: float
    errors: dict[str, int]


@dataclass(frozen=True)
class Row:
    """A recipe's mean ExpRate over its seeds, in percent; `low` and `high` are the 95 % interval of that mean."""

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
    """Two rows, the better one by the paper second. Differences in points, `upper` - `lower`; p values two-sided,
    those ending in _holm corrected for all steps. `images_needed` and `seeds_needed` (per row, at the spread of all
    rows) would show a difference of this size with a power of 80 %, at the level that the correction asks of the
    smallest p; None for more than there can be."""

    lower: str
    upper: str
    difference: float
    image_p: float
    image_p_holm: float
    images_needed: int | None = None
    seed_low: float | None = None
    seed_high: float | None = None
    seed_p: float | None = None
    seed_p_holm: float | None = None
    permutation_p: float | None = None  # over seeds as well, without taking them as normal
    seeds_needed: int | None = None
    verdict: str = "too few seeds"  # shown | opposite | open | too few seeds

    @property
    def name(self) -> str:
        """Both rows as the paper calls them."""
        return f"{model_name(self.lower)} → {model_name(self.upper)}"


@dataclass(frozen=True)
class Comparison:
    """All runs of one kind: their rows, the steps between them, and what follows for the paper's ordering."""

    conditions: str
    rows: list[Row]
    steps: list[Step]
    verdict: str  # holds | does not hold | cannot tell
    words: str


def compare(
    folders: Sequence[Path], results: Path, split: str | None = None, every_pair: bool = False
) -> list[Comparison]:
    """One comparison for each test set (`split`, POOLED, or None: every one and pooled) and for all runs of the same
    preset, settings and search that were scored on it; recipes of one's own meet the paper's rows. `folders` are run
    folders or hold them at any depth; without any, results/reproduced and results/runs. Raises UserError where no run
    is found, and for a damaged one."""
    places = folders or [results / "reproduced", results / "runs"]
    scored = {run: sets for run in RunFolder.under(*places) if (sets := run.sets("scores/*.json"))}
    if not scored:
        raise UserError(f"{', '.join(map(str, places))}: no run scored on {split or 'anything'}; score one first")
    named = presets.names(scored)
    wanted = [split] if split else sorted({*chain.from_iterable(scored.values())})
    comparisons = []
    for name in [*wanted, POOLED] if len(wanted) > 1 else wanted:
        groups: dict[str, dict[tuple[str, int], ScoredRun]] = {}
        for run, sets in scored.items():
            if name in (POOLED, *sets):
                read = _read(run, named[run], sets if name == POOLED else [name])
                groups.setdefault(read.conditions, {}).setdefault((read.recipe, read.seed), read)
        if not groups:
            fix = "score one, or name another set with --set"
            raise UserError(f"{', '.join(map(str, places))}: no run scored on {name}; {fix}")
        comparisons += [judge(like, list(runs.values()), every_pair) for like, runs in sorted(groups.items())]
    return comparisons


def _read(run: RunFolder, preset: str, sets: Sequence[str]) -> ScoredRun:
    """A run on these sets as one; `conditions` are in the signatures of its scores."""
    errors, known = dict[str, int](), list[dict[str, str]]()
    for name in sets:
        try:
            known.append(Signature.parse(run.scores[name].signature).fields)
        except InputError as error:
            raise UserError(f"{run.path / 'scores' / name}.json: {error}; score the run again") from None
        errors |= {f"{name}/{id_}": row.errors for id_, row in run.expressions(name).items()}
    named, n = " + ".join(one["set"] for one in known), sum(int(one["n"]) for one in known)
    search, select = known[0]["search"], known[0]["select"]
    conditions = f"{named} ({n:,} expressions), preset {preset}, search {search}, epoch by {select}"
    exprate = 100 * sum(count == 0 for count in errors.values()) / len(errors)
    return ScoredRun(run.recipe, run.seed, conditions, exprate, errors)


def judge(conditions: str, runs: Sequence[ScoredRun], every_pair: bool = False) -> Comparison:
    """The comparison of runs of one kind: each step of the paper's order, or every pair of rows."""
    order = [*ORDER, *sorted({run.recipe for run in runs} - set(ORDER))]
    rows: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=lambda run: (order.index(run.recipe), run.seed)):
        rows.setdefault(run.recipe, []).append(run)
    papers = [recipe for recipe in rows if recipe in ORDER]
    # all steps are corrected as one family
    pairs = list(combinations(rows, 2) if every_pair else pairwise(papers))
    level = LEVEL / max(1, len(pairs))
    steps = [_tested(rows[a], rows[b], level) for a, b in pairs]
    for step, p in zip(steps, stats.holm([step.image_p for step in steps]), strict=True):
        step.image_p_holm = p
    variances = [stdev(run.exprate for run in same) ** 2 for same in rows.values() if len(same) >= MIN_SEEDS]
    over_seeds = [(step, step.seed_p) for step in steps if step.seed_p is not None]
    for (step, _), p in zip(over_seeds, stats.holm([p for _, p in over_seeds]), strict=True):
        step.seed_p_holm = p
        step.seeds_needed = stats.seeds_needed(step.difference, mean(variances) ** 0.5, level=level)
        sign = "shown" if step.difference > 0 else "opposite"
        step.verdict = sign if step.image_p_holm < LEVEL and p < LEVEL else "open"
    shown = []
    for recipe, same in rows.items():
        rates, seeds = [run.exprate for run in same], " ".join(str(run.seed) for run in same)
        spread = (stdev(rates), *stats.mean_interval(rates)) if len(rates) > 1 else (None, None, None)
        shown.append(Row(recipe, model_name(recipe), len(rates), mean(rates), *spread, seeds))
    return Comparison(conditions, shown, steps, *_conclude(shown, steps, papers))


def _tested(a: Sequence[ScoredRun], b: Sequence[ScoredRun], level: float) -> Step:
    """The tests of two rows, uncorrected; images that would show the difference at `level`."""
    ids = sorted(a[0].errors)
    if any(run.errors.keys() != a[0].errors.keys() for run in (*a, *b)):
        raise UserError(f"{a[0].recipe} and {b[0].recipe}: scored on other expressions; score them again")
    right_a, right_b = (np.array([[run.errors[key] == 0 for key in ids] for run in row]) for row in (a, b))
    if len(a) == len(b) == 1:
        image_p = stats.mcnemar(int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum()))
    else:
        image_p = stats.permutation(right_a.mean(0), right_b.mean(0))
    rates_a, rates_b = ([run.exprate for run in row] for row in (a, b))
    needed = stats.pairs_needed(right_b.mean(0) - right_a.mean(0), level=level)
    step = Step(a[0].recipe, b[0].recipe, mean(rates_b) - mean(rates_a), image_p, image_p, needed)
    if min(len(a), len(b)) >= MIN_SEEDS:
        seeds = stats.compare_seeds(rates_a, rates_b)
        (step.seed_low, step.seed_high), step.seed_p = seeds.interval, seeds.welch_p
        step.permutation_p = seeds.permutation_p
    return step


VERDICT_WORDS = {  # verdict of a step -> how the sentence begins that tells of it
    "shown": "shown at 5 % over seeds and images",
    "opposite": "the other way round, at 5 % over seeds and images",
    "open": "not shown",
    "too few seeds": f"not tested over seeds, which takes {MIN_SEEDS} per row",
}


def _conclude(rows: Sequence[Row], steps: Sequence[Step], papers: Sequence[str]) -> tuple[str, str]:
    """The verdict on the paper's ordering of its rows, and in a sentence what it rests on."""
    if len(papers) < 2:
        return "cannot tell", "The paper's order takes runs of at least two rows."
    means = {row.recipe: row.mean for row in rows}
    missing = [model_name(recipe) for recipe in ORDER if recipe not in means]
    own = [step for step in steps if (step.lower, step.upper) in pairwise(papers)]
    if any(step.verdict == "opposite" and {step.lower, step.upper} <= {*ORDER} for step in steps):
        verdict, said = "does not hold", "The paper's order does not hold"
    elif all(step.verdict == "shown" for step in own) and not missing:
        verdict, said = "holds", "The paper's order holds"
    else:
        verdict, said = "cannot tell", "Whether the paper's order holds is open"
    held = all(means[a] < means[b] for a, b in pairwise(papers))
    parts = [f"{said}: the means are {'' if held else 'not '}in the order {' < '.join(map(model_name, papers))}"]
    for name, beginning in VERDICT_WORDS.items():
        if some := [step for step in steps if step.verdict == name and (step in own or name == "opposite")]:
            parts.append(f"{beginning}: {', '.join(map(_told, some))}")
    if missing:
        parts.append(f"there is no run of {', '.join(missing)}")
    return verdict, "; ".join(parts) + "."


def _told(step: Step) -> str:
    """A step with its p values, corrected, and what it would take to show it."""
    seeds = "" if step.seed_p_holm is None else f"p{_p(step.seed_p_holm)} over seeds, "
    needs = []
    if step.seed_p_holm is not None and step.seed_p_holm >= LEVEL:
        needs.append(f"{step.seeds_needed or 'over 1,000'} seeds per row")
    if step.image_p_holm >= LEVEL:
        needs.append(f"{step.images_needed:,} images" if step.images_needed else "more images than there are")
    takes = f"; 80 % power takes {' and '.join(needs)}" if needs else ""
    return f"{step.name} {step.difference:+.2f} points ({seeds}p{_p(step.image_p_holm)} over images{takes})"


def _p(p: float, equals: str = "=") -> str:
    return "<0.001" if p < 0.001 else f"{equals}{p:.3f}"


def as_text(comparison: Comparison) -> str:
    """For people: rows, steps, and what follows."""
    what = f"{comparison.conditions}: ExpRate in percent, mean ± standard deviation and 95 % interval over seeds"
    lines = [textwrap.fill(what, WIDTH), ""]
    for row in comparison.rows:
        spread = "" if row.sd is None else f" ± {row.sd:.2f}, {row.low:.2f} to {row.high:.2f}"
        lines.append(f"  {row.model:<16}{row.mean:6.2f}{spread}, seed{'s' * (row.n > 1)} {row.seeds}")
    lines += [""] * bool(comparison.steps)
    for step in comparison.steps:
        seeds = "not tested"
        if step.seed_p is not None:
            assert step.seed_p_holm is not None and step.permutation_p is not None
            seeds = f"p{_p(step.seed_p)} (Holm {_p(step.seed_p_holm, '')}, permutation {_p(step.permutation_p, '')})"
        images = f"p{_p(step.image_p)} (Holm {_p(step.image_p_holm, '')})"
        lines.append(f"  {step.name} {step.difference:+.2f}: images {images}, seeds {seeds}: {step.verdict}")
    return "\n".join([*lines, "", textwrap.fill(comparison.words, WIDTH), ""])


def as_json(comparisons: Sequence[Comparison]) -> str:
    """For programs: everything in `comparisons`."""
    return json.dumps([asdict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False)
