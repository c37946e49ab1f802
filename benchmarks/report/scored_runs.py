"""Scored runs and their verdicts, in groups of equal conditions, of which alone rows are compared; and steps, the
differences between two rows, with intervals and tests over seeds and writers.

A difference is sampled twice: other writers would have written other images, and other seeds would have trained other
networks. Its interval and its test are over both (`evaluation.scoring.stats`): rows trained with the same seed are
blocks, and how much a run differs from its row and its block is estimated from all rows of a comparison. One seed in
common is an interval over writers alone, which leaves out how much trainings differ, and no verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.paper import ORDER, REPORTED, model_name
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.score import fields_of
from hmerbench.evaluation.scoring.stats import Estimate, Images, difference, holm, rate, spread_between_runs

POOLED = "all"  # the union of all test sets a run was scored on


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


def grouped(folders: Sequence[Path], results: Path, split: str | None = None) -> list[list[list[ScoredRun]]]:
    """For each test set, the runs in groups of equal conditions.

    `split` is a test set, POOLED, or None for each set and the pooled ones. `folders` are run folders or contain them
    at any depth; default: results/reproduced and results/runs. Of two runs of one recipe and seed in a group, the later
    folder's counts: your own, not the committed one. Raises UserError if there is no run, or for a damaged one.
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
    found, known = [], dict[tuple[str, ...], tuple[str, ...]]()
    for name in [*names, POOLED] if len(names) > 1 else names:
        groups: dict[str, dict[tuple[str, int], ScoredRun]] = {}
        for run, sets in scored.items():
            if name in (POOLED, *sets):
                read = _read(run, labels[run], sets if name == POOLED else [name], known)
                groups.setdefault(read.conditions, {})[read.recipe, read.seed] = read
        if not groups:
            fix = "score one, or name another set with --set"
            raise UserError(f"{', '.join(map(str, roots))}: no run scored on {name}; {fix}")
        found.append([list(runs.values()) for _, runs in sorted(groups.items())])
    return found


def rows_of(runs: Sequence[ScoredRun]) -> dict[str, list[ScoredRun]]:
    """Runs of equal conditions by recipe, in the paper's order, their seeds in ascending order."""
    order = [*ORDER, *sorted({run.recipe for run in runs} - set(ORDER))]
    rows: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=lambda run: (order.index(run.recipe), run.seed)):
        rows.setdefault(run.recipe, []).append(run)
    return rows


def sampled_rate(
    runs: Sequence[RunFolder],
    split: str,
    right: Callable[[Expression], bool] = lambda row: row.errors == 0,
    counted: Callable[[Expression], bool] = lambda _: True,
) -> Estimate:
    """The rate of a row on a test set, with its interval over seeds and writers: the share of the `counted` expressions
    that are `right`, in percent, of its seeds. Raises UserError if
    they were scored on different expressions."""
    verdicts = [run.expressions(split) for run in runs]
    ids = [id_ for id_, row in verdicts[0].items() if counted(row)]
    for run, of_run in zip(runs, verdicts, strict=True):
        if of_run.keys() != verdicts[0].keys():
            raise UserError(
                f"{runs[0].path} and {run.path}: scored on different expressions of {split}; score them again"
            )
    return rate(np.array([[right(of_run[id_]) for id_ in ids] for of_run in verdicts]), Images(ids))


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


LEVEL = 0.05  # of significance
MIN_SEEDS = 2  # that both rows of a step share


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
    reported: float | None = None  # in Table 1
    verdict: str = "too few seeds"  # significant | opposite | not significant | too few seeds

    @property
    def tested(self) -> bool:
        """Whether the rows share seeds enough for a test over them."""
        return self.seeds >= MIN_SEEDS

    @property
    def name(self) -> str:
        return f"{model_name(self.lower)} → {model_name(self.upper)}"

    def told(self, over: str = "") -> str:
        """The difference with its interval in Markdown: bold where significant, with p; without a test, `over` tells
        what the interval is over."""
        interval = f"{self.low:+.1f} to {self.high:+.1f}"
        if not self.tested:
            return f"{self.difference:+.2f} ({over}{': ' * bool(over)}{interval})"
        text = f"{self.difference:+.2f} ({interval})"
        return f"{f'**{text}**' if self.p < LEVEL else text}, p{printed_p(self.p, '=')}"


def measure(rows: Rows, pairs: Sequence[tuple[str, str]], *parts: Sequence[str]) -> list[Step]:
    """The differences between pairs of rows, uncorrected. `parts` are lists of "set/id": by default all images are
    compared, with one part those in it; with two, it is the difference on the first minus that on the second."""
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
    spread, steps = spread_between_runs(rates), list[Step]()
    for lower, upper in pairs:
        common = [seed for seed in rates[lower] if seed in rates[upper]]
        a, b = (
            values[recipe][[list(rates[recipe]).index(seed) for seed in common or rates[recipe]]]
            for recipe in (lower, upper)
        )
        found = difference(b - a if common else (b.mean(0) - a.mean(0))[None], images, spread)
        step = Step(lower, upper, found.value, found.low, found.high, found.over, images.n, len(common), found.p)
        if lower in REPORTED and upper in REPORTED:
            step.reported = REPORTED[upper] - REPORTED[lower]
        steps.append(step)
    return steps


def correct(steps: Sequence[Step]) -> None:
    """Correct the p-values of one family; those of steps with one seed, which have no verdict, among themselves."""
    for tested in (True, False):
        family = [step for step in steps if step.tested is tested]
        for step, p in zip(family, holm([step.p_alone for step in family]), strict=True):
            step.p = p
            if tested:
                step.verdict = "not significant" if p >= LEVEL else "significant" if step.difference > 0 else "opposite"


def images_of(keys: Sequence[str]) -> Images:
    sets, ids = zip(*(key.split("/", 1) for key in keys), strict=True)
    return Images(ids, sets)


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


def printed_p(p: float | None, equals: str = "") -> str:
    """Format a p-value with three decimals, `equals` before it where it is not below 0.001; a dash for None."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{equals}{p:.3f}"
