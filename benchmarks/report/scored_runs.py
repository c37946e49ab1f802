"""Scored runs and their verdicts, in groups of equal conditions, of which alone rows are compared; and steps, the
differences between two rows, with intervals and tests over seeds and writers.

A difference is sampled twice: other writers would have written other images, and other seeds would have trained other
networks. Its interval and its test are over both (`evaluation.scoring.stats`): rows trained with the same seed are
blocks, and how much a run differs from its row and its block is estimated from all rows of a comparison. One seed in
common is an interval over writers alone, which leaves out how much trainings differ, and no verdict.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.paper import REPORTED, YEARS, model_name, position
from hmerbench.benchmarks.report.presets import preset_labels
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.score import fields_of
from hmerbench.evaluation.scoring.stats import Estimate, Images, difference, holm, rate, spread_between_runs

OF_ONE_SCORE = ("set", "n", "tok", "wrap")  # fields of a signature that may differ between the runs of a group
POOLED = "all"  # the union of all test sets a run was scored on


@dataclass
class Group:
    """Runs with equal conditions: test sets, preset, search, epoch selection, scorer. Only these are compared as rows.

    `right` is whether each expression, a line named "set/id", is read right by each run, a column named by recipe and
    seed, as in `runs`: recipes in the paper's order, seeds in ascending order.
    """

    preset: str
    conditions: str
    runs: Mapping[tuple[str, int], RunFolder]
    right: pd.DataFrame

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(recipe for recipe, _ in self.runs))

    def of_row(self, recipe: str) -> pd.DataFrame:
        """`right` of a recipe, a column for each seed."""
        return cast(pd.DataFrame, self.right[recipe])

    def rates(self) -> dict[str, dict[int, float]]:
        """ExpRate in percent by recipe and seed."""
        return {recipe: (100 * self.of_row(recipe).mean()).to_dict() for recipe in self.recipes}

    @property
    def borrowed(self) -> bool:
        """Whether they read with the weights of another preset's runs."""
        return all("trained_in" in run.environment for run in self.runs.values())


def years_are_read(results: Path) -> bool:
    """Whether a committed run was scored on a year that the paper reports."""
    return any(not run.scores.keys().isdisjoint(YEARS) for run in RunFolder.under(results / "reproduced"))


def grouped(
    folders: Sequence[Path], results: Path, split: str | None = None, among: Collection[str] | None = None
) -> list[list[Group]]:
    """For each test set, the runs in groups of equal conditions.

    `split` is a test set, POOLED, or None for each set and the pooled ones; `among` are the sets that count, by default
    all that a run was scored on. `folders` are run folders or contain them at any depth; default: results/reproduced
    and results/runs. Of two runs of one recipe and seed in a group, the later folder's counts: your own, not the
    committed one; within a folder, the one scored last. Raises UserError if there is no run, for a damaged one, and for
    runs scored on different expressions.
    """
    roots = folders or [results / "reproduced", results / "runs"]
    place = {run: number for number, root in enumerate(roots) for run in RunFolder.under(root)}
    counted = {run: [name for name in run.sets("scores/*.json") if among is None or name in among] for run in place}
    scored = {run: sets for run, sets in counted.items() if sets}
    if not scored:
        for folder in folders:
            if not folder.exists():
                raise UserError(f"{folder}: there is no such folder; `hmerbench ls` lists the runs")
        on = "any set" if split in (None, POOLED) else split
        raise UserError(f"{', '.join(map(str, roots))}: no run scored on {on}; score one first")
    labels, found = preset_labels(scored), list[list[Group]]()
    names = [split] if split else sorted({*chain.from_iterable(scored.values())})
    for name in [*names, POOLED] if len(names) > 1 else names:
        groups: dict[str, list[tuple[RunFolder, list[str]]]] = {}
        for run, sets in scored.items():
            if name in (POOLED, *sets):
                read = sets if name == POOLED else [name]
                groups.setdefault(_conditions(run, labels[run], read), []).append((run, read))
        if not groups:
            fix = "score one, or name another set with --set"
            raise UserError(f"{', '.join(map(str, roots))}: no run scored on {name}; {fix}")
        for runs in groups.values():
            runs.sort(key=lambda of: (place[of[0]], _scored_at(*of)))
        found.append([_group(labels[runs[0][0]], conditions, runs) for conditions, runs in sorted(groups.items())])
    return found


def _conditions(run: RunFolder, preset: str, sets: Sequence[str]) -> str:
    """What the runs of a group have in common, by the signatures of their scores on `sets`."""
    signatures = list[dict[str, str]]()
    for name in sets:
        try:
            signatures.append(fields_of(run.scores[name].signature))
        except InputError as error:
            raise UserError(f"{run.path / 'scores' / name}.json: {error}; score the run again") from None
    names, n = " + ".join(fields["set"] for fields in signatures), sum(int(fields["n"]) for fields in signatures)
    rest = [{key: text for key, text in fields.items() if key not in OF_ONE_SCORE} for fields in signatures]
    for fields in rest:
        fields["search"] = _beam(run, fields["search"])
    search, select = (" and ".join(dict.fromkeys(fields.pop(key) for fields in rest)) for key in ("search", "select"))
    scorer = " and ".join(dict.fromkeys(", ".join(f"{key} {text}" for key, text in fields.items()) for fields in rest))
    return f"{names} ({n:,} expressions), preset {preset}, search {search}, epoch by {select}, scored with {scorer}"


def _scored_at(run: RunFolder, sets: Sequence[str]) -> float:
    return max((run.path / f"scores/{name}.json").stat().st_mtime for name in sets)


def _beam(run: RunFolder, search: str) -> str:
    """The search without its direction, where a network is read in every direction that it has learned."""
    directions = run.settings.model.directions
    whole = "joint" if "both" in directions else directions[0]
    return f"beam {search.removeprefix(whole)}" if search.startswith(whole) else search


def _group(preset: str, conditions: str, scored: Sequence[tuple[RunFolder, Sequence[str]]]) -> Group:
    """The group of some runs, with their verdicts on the sets beside each."""
    latest = {(run.recipe, run.seed): (run, sets) for run, sets in scored}
    runs = {key: latest[key] for key in sorted(latest, key=lambda key: (position(key[0]), key[1]))}
    ids, right = list[str](), dict[tuple[str, int], np.ndarray]()
    for key, (run, sets) in runs.items():
        found = {f"{name}/{id_}": n == 0 for name in sets for id_, n in run.error_counts(name).items()}
        ids = ids or sorted(found)  # equal ids are kept once
        if found.keys() != {*ids}:
            paths = f"{next(iter(runs.values()))[0].path} and {run.path}"
            raise UserError(f"{paths}: scored on different expressions; score them again")
        right[key] = np.array([found[id_] for id_ in ids])
    return Group(preset, conditions, {key: run for key, (run, _) in runs.items()}, pd.DataFrame(right, index=ids))


def sampled_rate(
    runs: Sequence[RunFolder],
    split: str,
    right: Callable[[Expression], bool] = lambda row: row.errors == 0,
    counted: Callable[[Expression], bool] = lambda _: True,
) -> Estimate:
    """The rate of a row on a test set, with its interval over seeds and writers: the share of the `counted` expressions
    that are `right`, in percent, of its seeds. Raises UserError if they were scored on different expressions."""
    verdicts = [run.expressions(split) for run in runs]
    ids = [id_ for id_, row in verdicts[0].items() if counted(row)]
    for run, of_run in zip(runs, verdicts, strict=True):
        if of_run.keys() != verdicts[0].keys():
            paths = f"{runs[0].path} and {run.path}"
            raise UserError(f"{paths}: scored on different expressions of {split}; score them again")
    return rate(np.array([[right(of_run[id_]) for id_ in ids] for of_run in verdicts]), Images(ids))


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
    reported: float | None = None  # in Table 1, else in Table 2; of claims by length in Fig. 3
    verdict: str = "too few seeds"  # significant | opposite | not significant | too few seeds
    of_year: "Step | None" = None  # the same on `YEAR` alone, of which `reported` is, where it was measured

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


def measure(group: Group, pairs: Sequence[tuple[str, str]], *parts: Sequence[str]) -> list[Step]:
    """The differences between pairs of rows, uncorrected. `parts` are lists of "set/id": by default all images are
    compared, with one part those in it; with two, it is the difference on the first minus that on the second."""
    parts = parts or ([*group.right.index],)
    images, values = images_of([*chain(*parts)]), {row: _values(group.of_row(row), parts) for row in group.recipes}
    spread, steps = spread_between_runs({row: of.mean().to_dict() for row, of in values.items()}), list[Step]()
    for lower, upper in pairs:
        a, b = values[lower], values[upper]
        common = [seed for seed in a if seed in b]
        gains = b[common] - a[common] if common else (b.mean(axis=1) - a.mean(axis=1)).to_frame()
        found = difference(gains.to_numpy().T, images, spread)
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


def _values(right: pd.DataFrame, parts: Sequence[Sequence[str]]) -> pd.DataFrame:
    """[image, seed]: 100 where a run is right. With a second part, values whose mean is the rate on the first less that
    on the second, and which deviate from it as that difference does with each image."""
    values = [100.0 * right.loc[[*keys]] for keys in parts]
    if len(values) == 1:
        return values[0]
    first, second = values
    n, difference = len(first) + len(second), first.mean() - second.mean()
    deviations = [(of - of.mean()) * n / size for of, size in ((first, len(first)), (second, -len(second)))]
    return pd.concat(deviations) + difference


def printed_p(p: float, equals: str = "") -> str:
    """Format a p-value with three decimals, `equals` before it where it is not below 0.001."""
    return "<0.001" if p < 0.001 else f"{equals}{p:.3f}"
