"""Scored runs and their verdicts, in groups of equal conditions: only those of one group are compared."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.paper import ORDER
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.sampling import Estimate, Images, rate
from hmerbench.evaluation.scoring.signature import fields_of

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
    at any depth; default: results/reproduced and results/runs. Raises UserError if there is no run, or for a damaged
    one.
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
                groups.setdefault(read.conditions, {}).setdefault((read.recipe, read.seed), read)
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
