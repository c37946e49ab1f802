"""Rows against each other, over seeds and images: does the paper's ordering hold, and is the difference significant?

Two questions have two answers. On the images: are these very networks different, on expressions like these (McNemar
for one seed each, else a paired permutation test of each image's mean over the seeds)? Over the seeds: would the rows
differ, trained once more (Welch's test)? A step of the ordering counts as shown where both say so at 5 % after Holm's
correction for all steps, and no test is made of fewer than MIN_SEEDS seeds. A year has about a thousand images, too few
to see two points; the years pooled (POOLED) have 3,332.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks import config as configs
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.report.paper import reference
from evaluation.scoring import stats

# the paper's Table 1, worst first
ORDER: tuple[str, ...] = ("bttr", "bttr-baseline", "comer-self", "comer-cross", "comer-fusion")
MIN_SEEDS = 3
LEVEL = 0.05
POOLED = "all"  # every test set a run was scored on, as one


@dataclass(frozen=True)
class ScoredRun:
    """A run's ExpRate in percent and the errors (D_B) of every expression, keyed set/id."""

    recipe: str
    seed: int
    conditions: str  # what must be the same for runs to be compared: data, preset, set, search, selection
    settings: str  # digest of all settings but those that make the row
    exprate: float
    errors: dict[str, int]


@dataclass(frozen=True)
class Row:
    recipe: str
    model: str
    n: int  # seeds
    mean: float
    sd: float | None  # over seeds
    low: float | None  # 95 % interval of the mean over seeds
    high: float | None
    seeds: str


@dataclass(frozen=True)
class Step:
    """Two rows, the better one by the paper second. Differences in points, `upper` - `lower`; p values two-sided,
    those ending in _holm corrected for all steps."""

    lower: str
    upper: str
    difference: float
    image_p: float
    image_p_holm: float
    images_needed: int | None = None  # to see this difference at this level with a power of 80 %, uncorrected
    seed_low: float | None = None
    seed_high: float | None = None
    seed_p: float | None = None
    seed_p_holm: float | None = None
    permutation_p: float | None = None  # over seeds as well, without taking them as normal
    verdict: str = "too few seeds"  # shown | opposite | open | too few seeds


@dataclass(frozen=True)
class Comparison:
    conditions: str
    rows: list[Row]
    steps: list[Step]
    verdict: str  # holds | does not hold | cannot tell
    words: str


def compare(
    folders: Sequence[Path], results: Path, split: str | None = None, every_pair: bool = False
) -> list[Comparison]:
    """One comparison for each test set (`split`, POOLED, or None: every one and pooled) and for all runs of the same
    data, preset, search and settings that were scored on it.

    Without `folders`, of the runs under results/reproduced and results/runs. Raises UserError where none is found.
    """
    places = folders or [results / "reproduced", results / "runs"]
    sets = [split] if split else scored_sets(places)
    if not split and len(sets) > 1:
        sets.append(POOLED)
    if not sets:
        raise UserError(f"{', '.join(map(str, places))}: no scored run; score one first")
    return [comparison for name in sets for comparison in _compare_on(places, name, every_pair)]


def _compare_on(places: Sequence[Path], split: str, every_pair: bool) -> list[Comparison]:
    groups: dict[tuple[str, str], list[ScoredRun]] = {}
    for run in read_runs(places, split):
        same = groups.setdefault((run.conditions, run.settings), [])
        if all((run.recipe, run.seed) != (other.recipe, other.seed) for other in same):  # the same run twice is one
            same.append(run)
    if not groups:
        where = ", ".join(map(str, places))
        raise UserError(f"{where}: no run scored on {split}; score one, or name another set with --set")
    twice = [conditions for conditions, _ in groups]
    return [
        judge(name if twice.count(name) == 1 else f"{name}, settings {settings}", runs, every_pair)
        for (name, settings), runs in sorted(groups.items())
    ]


# --------------------------------------------------------------------------------------------------- reading


def _run_folders(places: Iterable[Path]) -> list[Path]:
    return [path.parent for place in places for path in sorted(place.rglob("config.yaml"))]


def scored_sets(places: Iterable[Path]) -> list[str]:
    """The test sets that any of the runs under `places` was scored on."""
    return sorted({path.stem for folder in _run_folders(places) for path in folder.glob("scores/*.json")})


def read_runs(places: Iterable[Path], split: str) -> list[ScoredRun]:
    """The runs under `places` (run folders, or folders of them at any depth) that were scored on `split`."""
    runs = []
    for folder in _run_folders(places):
        sets = scored_sets([folder]) if split == POOLED else [split]
        if sets and all((folder / f"scores/{name}.json").exists() for name in sets):
            runs.append(_read(folder, sets))
    return runs


def _read(folder: Path, sets: Sequence[str]) -> ScoredRun:
    config, errors, signatures = configs.load(folder / "config.yaml"), {}, []
    for name in sets:
        path = folder / f"scores/{name}.json"
        try:
            signatures.append(json.loads(path.read_text())["signature"])
            path = path.with_suffix(".csv")
            rows = list(csv.DictReader(io.StringIO(path.read_text())))
            errors |= {f"{name}/{row['id']}": int(row["errors"]) for row in rows}
            if not rows:
                raise ValueError("no expression")
        except FileNotFoundError:
            raise UserError(f"{path}: missing, so no expression of this run is known; score the run again") from None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}: damaged or incomplete; score this run again") from None
    exprate = 100 * sum(count == 0 for count in errors.values()) / len(errors)
    known = [dict(field.split(":", 1) for field in signature.split("|")[1:]) for signature in signatures]
    names = " + ".join(one["set"] for one in known)
    conditions = [f"{names} ({sum(int(one['n']) for one in known):,} expressions)", f"preset {config.preset}"]
    conditions += [f"search {known[0]['search']}", f"epoch by {known[0]['select']}"]
    plain = config.model.__class__(**{**vars(config.model), "cross_coverage": False, "self_coverage": False})
    same = {"schema_version": 1, "recipe": "", "seed": 0, "augmentation": None, "model": plain}
    return ScoredRun(
        config.recipe, config.seed, ", ".join(conditions), config.model_copy(update=same).digest, exprate, errors
    )


# -------------------------------------------------------------------------------------------------- judging


def judge(conditions: str, runs: Sequence[ScoredRun], every_pair: bool = False) -> Comparison:
    by_recipe: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=lambda run: (_place(run.recipe), run.seed)):
        by_recipe.setdefault(run.recipe, []).append(run)
    rows = [_row(recipe, same) for recipe, same in by_recipe.items()]
    chain = [recipe for recipe in ORDER if recipe in by_recipe]
    pairs = list(pairwise(chain))
    if every_pair:
        names = list(by_recipe)
        pairs = [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
    steps = _steps(pairs, by_recipe)
    verdict, words = _conclude(rows, steps, chain)
    return Comparison(conditions, rows, steps, verdict, words)


def _row(recipe: str, runs: Sequence[ScoredRun]) -> Row:
    rates = [run.exprate for run in runs]
    sd = stdev(rates) if len(rates) > 1 else None
    low, high = stats.mean_interval(rates) if sd is not None else (None, None)
    return Row(recipe, _name(recipe), len(rates), mean(rates), sd, low, high, " ".join(str(run.seed) for run in runs))


def _steps(pairs: Sequence[tuple[str, str]], runs: dict[str, list[ScoredRun]]) -> list[Step]:
    """All steps tested, and corrected as one family."""
    images = [_image_p(runs[a], runs[b]) for a, b in pairs]
    seeds = [_seeds(runs[a], runs[b]) for a, b in pairs]
    holm_images = stats.holm(images)
    holm_seeds = iter(stats.holm([found.welch_p for found in seeds if found]))
    steps = []
    for (a, b), image_p, image_holm, found in zip(pairs, images, holm_images, seeds, strict=True):
        difference = mean(run.exprate for run in runs[b]) - mean(run.exprate for run in runs[a])
        step = Step(a, b, difference, image_p, image_holm, _images_needed(runs[a], runs[b]))
        if found:
            seed_holm = next(holm_seeds)
            both = image_holm < LEVEL and seed_holm < LEVEL
            step = replace(
                step,
                seed_low=found.interval[0],
                seed_high=found.interval[1],
                seed_p=found.welch_p,
                seed_p_holm=seed_holm,
                permutation_p=found.permutation_p,
                verdict="open" if not both else "shown" if difference > 0 else "opposite",
            )
        steps.append(step)
    return steps


def _right(runs: Sequence[ScoredRun], ids: Sequence[str]) -> np.ndarray:
    """bool [seeds, images]"""
    return np.array([[run.errors[key] == 0 for key in ids] for run in runs])


def _image_p(a: Sequence[ScoredRun], b: Sequence[ScoredRun]) -> float:
    """Two-sided p value over the images, for these very networks."""
    ids = sorted(a[0].errors)
    if any(run.errors.keys() != a[0].errors.keys() for run in (*a, *b)):
        raise UserError(f"{a[0].recipe} and {b[0].recipe}: scored on other expressions; score them again")
    right_a, right_b = _right(a, ids), _right(b, ids)
    if len(a) == len(b) == 1:
        return stats.mcnemar(int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum()))
    return stats.permutation(right_a.mean(0), right_b.mean(0))


def _images_needed(a: Sequence[ScoredRun], b: Sequence[ScoredRun]) -> int | None:
    ids = sorted(a[0].errors)
    return stats.pairs_needed(_right(b, ids).mean(0) - _right(a, ids).mean(0))


def _seeds(a: Sequence[ScoredRun], b: Sequence[ScoredRun]) -> stats.SeedComparison | None:
    if min(len(a), len(b)) < MIN_SEEDS:
        return None
    return stats.compare_seeds([run.exprate for run in a], [run.exprate for run in b])


# ----------------------------------------------------------------------------------------------------- words


def _conclude(rows: Sequence[Row], steps: Sequence[Step], chain: Sequence[str]) -> tuple[str, str]:
    """The verdict on the paper's ordering, and plain sentences that say why."""
    means = {row.recipe: row.mean for row in rows}
    missing = [_name(recipe) for recipe in ORDER if recipe not in means]
    lacks = f" There is no run of {', '.join(missing)}." if missing else ""
    if len(chain) < 2:
        return "cannot tell", f"The paper's ordering cannot be judged: it takes runs of two rows at least.{lacks}"
    held = all(means[a] < means[b] for a, b in pairwise(chain))
    ordering = " < ".join(_name(recipe) for recipe in chain)
    words = f"The means of our runs {'are' if held else 'are not'} in the paper's order {ordering}.{lacks}"
    own = [step for step in steps if step.lower in ORDER and step.upper in ORDER]
    if opposite := [step for step in own if step.verdict == "opposite"]:
        against = "; ".join(f"{_name(step.upper)} is below {_name(step.lower)}" for step in opposite)
        return "does not hold", f"{words} The data can tell that it does not hold: {against}."
    open_ = [step for step in own if step.verdict != "shown" and (step.lower, step.upper) in list(pairwise(chain))]
    if not open_ and not missing:
        return "holds", f"{words} The data can tell: every step is shown, over images and seeds (5 % in all)."
    if not open_:
        return "cannot tell", f"{words} Every step between these rows is shown, but the whole ordering is not tested."
    few = [step for step in open_ if step.verdict == "too few seeds"]
    why = "; ".join(f"{_name(s.lower)} to {_name(s.upper)} {s.difference:+.2f} points, {_why(s)}" for s in open_)
    words += f" The data cannot tell: {why}."
    if few:
        words += f" Of every row {MIN_SEEDS} seeds at least are needed to say anything of rows."
    return "cannot tell", words + _power(rows, open_)


def _why(step: Step) -> str:
    if step.seed_p_holm is None:
        return f"too few seeds (over images alone p = {step.image_p_holm:.3g})"
    return f"p = {step.seed_p_holm:.3g} over seeds, {step.image_p_holm:.3g} over images"


def _power(rows: Sequence[Row], steps: Sequence[Step]) -> str:
    """How many seeds and images the open steps would take, at the differences and the spread seen here."""
    deviations = [row.sd for row in rows if row.sd and row.n >= MIN_SEEDS]
    if not deviations or not steps:
        return ""
    spread = float(np.sqrt(np.mean(np.square(deviations))))
    needs = []
    for step in steps:
        seeds = stats.seeds_needed(step.difference, spread) or "over 1,000"
        images = f"{step.images_needed:,}" if step.images_needed else "any number of"
        needs.append(f"{_name(step.lower)} to {_name(step.upper)} {seeds} seeds a row and {images} images")
    return (
        f" To see a difference of the size found here in 80 % of all repetitions takes, uncorrected and at the spread "
        f"between seeds seen here (standard deviation {spread:.2f}): {'; '.join(needs)}."
    )


def _place(recipe: str) -> tuple[int, str]:
    """The paper's rows first, in its order."""
    return (ORDER.index(recipe) if recipe in ORDER else len(ORDER)), recipe


def _name(recipe: str) -> str:
    return reference()["recipes"].get(recipe, {}).get("table1", recipe)


# ----------------------------------------------------------------------------------------------------- files


def write(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """rows.csv and steps.csv of all comparisons."""
    paths = []
    for name, kind in (("rows", Row), ("steps", Step)):
        columns = ["conditions", *(field.name for field in fields(kind))]
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for comparison in comparisons:
            writer.writerows(
                {"conditions": comparison.conditions, **asdict(item)} for item in getattr(comparison, name)
            )
        paths.append(folder / f"{name}.csv")
        write_atomically(paths[-1], text.getvalue())
    return paths


def as_text(comparison: Comparison) -> str:
    """For people: rows, steps, and what follows."""
    lines = [f"{comparison.conditions}: ExpRate in percent", ""]
    for row in comparison.rows:
        spread = "" if row.sd is None else f", sd {row.sd:.2f}, 95 % {row.low:.2f} to {row.high:.2f}"
        lines.append(f"  {row.model:<16}{row.mean:6.2f}  n = {row.n} (seeds {row.seeds}){spread}")
    lines.append("")
    for step in comparison.steps:
        lines.append(
            f"  {_name(step.lower)} → {_name(step.upper)}: {step.difference:+.2f}, images p = {step.image_p:.3g} "
            f"(Holm {step.image_p_holm:.3g}), seeds {_seed_words(step)}: {step.verdict}"
        )
    return "\n".join([*lines, "" if comparison.steps else "  (no two rows)", comparison.words, ""])


def _seed_words(step: Step) -> str:
    if step.seed_p is None:
        return "not tested"
    return f"p = {step.seed_p:.3g} (Holm {step.seed_p_holm:.3g}, permutation {step.permutation_p:.3g})"


def as_json(comparisons: Sequence[Comparison]) -> str:
    plain: list[dict[str, Any]] = [asdict(comparison) for comparison in comparisons]
    return json.dumps(plain, indent=1, ensure_ascii=False)
