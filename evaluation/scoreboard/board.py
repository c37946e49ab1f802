"""The rows of the scoreboard: every system on every test set, under every reading and edition of the official scorer,
and, under the paper's rules, on all test sets together.

Under the paper's rules, rates have an interval over writers, each system is compared with CoMER on the same
expressions, and systems trained on the same kind of data are put into groups that the data cannot tell apart: the tests
of all pairs, corrected by Holm, show no difference at 5 %. Intervals and tests are over writers (`scoring.stats`),
as a system is one training: they leave out how much another would differ. Under other rules, rates have Wilson's.

The committed rows of a system whose predictions are not at hand are kept, and so is what tests with it have shown.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.scoreboard.card import YEARS, System
from hmerbench.evaluation.scoring.inputs import GroundTruth, read_ground_truth
from hmerbench.evaluation.scoring.metrics import BUCKETS, WITHIN, rounded_interval
from hmerbench.evaluation.scoring.outcome import in_process, own_scripts, scripts
from hmerbench.evaluation.scoring.score import Evaluation, evaluate
from hmerbench.evaluation.scoring.stats import Images, holm, paired, rate
from hmerbench.evaluation.stores import read_text
from hmerbench.evaluation.strict import rows_of
from hmerbench.evaluation.symlg import EDITIONS, PAPER, READINGS, Rules
from hmerbench.evaluation.symlg.formula import prediction_file, tokens_of

BASELINE = "comer"
TOGETHER = "together"  # stands for the year in the row of a system over all test sets
RULES = tuple(Rules(READINGS[r], EDITIONS[e]) for e in ("crohme2019", "current") for r in READINGS)  # the paper's first
COUNTS = ("n", *(metric.count for metric in WITHIN))
LENGTHS = ("len10", "len20", "len30", "len40", "len50", "longer")  # exact, by the length of the true caption
# those that are wrong and have fewer tokens than the caption, or more
OFF = tuple(f"{name}_{side}" for name in LENGTHS for side in ("short", "long"))
COUNTED = (*COUNTS, "neutral", "token_exact", "missing", "unconverted")
TESTS = ("difference", "difference_low", "difference_high", "p")  # against the baseline
COLUMNS = (
    *("system", "year", "reading", "edition", *COUNTED, "low", "high"),
    *("reported", "metric", *TESTS, "group", *LENGTHS, *OFF),
)
NUMBERS = (*COUNTED, *LENGTHS, *OFF)
TYPES = dict.fromkeys(NUMBERS, int) | dict.fromkeys(("low", "high", *TESTS), float)  # of cells that are more than text

Row = dict[str, Any]
Errors = dict[str, list[int]]  # D_B of every expression, by year, in the order of the truth


@dataclass
class Board:
    """All rows, and by system's key and year (or TOGETHER) the errors that they are made from."""

    systems: list[System]
    rows: list[Row] = field(default_factory=list)
    errors: dict[str, Errors] = field(default_factory=dict)
    images: dict[str, Images] = field(default_factory=dict)  # what `errors` are of
    signatures: dict[str, str] = field(default_factory=dict)  # by year, without what is of one system alone
    ceilings: dict[str, Row] = field(default_factory=dict)  # by year: what a perfect reader of the captions gets right
    notes: list[str] = field(default_factory=list)
    absent: list[System] = field(default_factory=list)  # those whose rows are kept

    @property
    def years(self) -> tuple[str, ...]:
        """The test sets of which a system has predictions; TOGETHER is all of these."""
        return tuple(year for year in YEARS if any(year in system.card.files for system in self.systems))

    def row(self, key: str, year: str, rules: Rules = PAPER) -> Row | None:
        """The row of a system and year (or TOGETHER); None if it has no predictions for that year (or for one)."""
        named = _named(key, year, rules).items()
        return next((row for row in self.rows if named <= row.items()), None)


def make_board(systems: Sequence[System], folder: Path | None, crohme: Path, committed: Path | None = None) -> Board:
    """Score all systems; of those that are not at hand, keep the rows of `committed`, a scoreboard.csv. Raises
    InputError for predictions or a ground truth that cannot be read."""
    if not own_scripts():
        raise InputError(f"LGEVAL_BIN={scripts()}: the board is counted by the suite's own scorer; unset LGEVAL_BIN")
    kept = _kept(committed) if committed and committed.is_file() else {}
    board = Board(list(systems))
    for system in systems:
        known = all((system.key, year) in kept for year in system.card.files)
        if system.card.files and known and not system.found(folder):
            board.absent.append(system)
            board.notes.append(f"{system.key}: its predictions are not here; its rows are kept as committed")
    files = {system.key: dict(system.files(folder)) for system in systems if system not in board.absent}  # all verified
    ids: dict[str, list[str]] = {}
    for year in board.years:
        truth = read_ground_truth(f"{crohme}:{year}")
        graphs, ids[year] = truth.graphs(), list(truth.symlg)
        board.images[year] = Images(ids[year])
        board.ceilings[year] = ceiling(truth, graphs)
        for system in (system for system in systems if system.card.files):
            if year not in system.card.files:
                board.notes.append(f"{system.key}: has no predictions for {year}")
            elif system in board.absent:
                board.rows += kept[system.key, year]
            else:
                _count(board, system, year, files[system.key][year], truth, graphs)
    board.images[TOGETHER] = Images(list(chain(*ids.values())), [year for year in ids for _ in ids[year]])
    for system in systems:
        if system in board.absent:
            board.rows += kept.get((system.key, TOGETHER), [])
        elif 0 < len(board.years) == len(system.card.files):
            errors = board.errors[system.key]
            errors[TOGETHER] = [count for year in board.years for count in errors[year]]
            rows = [row for year in board.years if (row := board.row(system.key, year))]
            whole = {name: sum(row[name] for row in rows) for name in (*COUNTS, "neutral", "token_exact")}
            board.rows.append(_named(system.key, TOGETHER, PAPER) | whole | _interval(board, system, TOGETHER))
    for year in (*board.years, TOGETHER):
        _test(board, year, kept)
    return board


def _count(
    board: Board, system: System, year: str, path: Path, truth: GroundTruth, graphs: Mapping[str, Graph]
) -> None:
    """Add the rows of one system and test set, and what tests of them need."""
    try:
        result = evaluate(path, truth, {"set": f"crohme{year}"}, raw=system.card.tokenize)
    except InputError as error:
        raise InputError(f"{system.key}, {year}: {error}") from None
    score = result.score
    fields = score.signature.split("|")
    board.signatures[year] = "|".join(field for field in fields if not field.startswith(("tok:", "wrap:")))
    board.notes += [f"{system.key}, {year}: {note}" for note in result.notes]
    if "wrap:removed" in fields and not system.card.wrapped:
        board.notes.append(f"{system.key}, {year}: wrap:removed is not on the card; add `wrapped: true`")
    board.errors.setdefault(system.key, {})[year] = [row.errors for row in result.expressions]
    for rules in RULES:
        counts = vars(score) if rules == PAPER else in_process(result.predictions, graphs, rules).counts
        row = _named(system.key, year, rules) | {name: counts[name] for name in COUNTS}
        row["token_exact"] = score.token_exact
        row["low"], row["high"] = rounded_interval(row["exact"], row["n"])
        if rules == PAPER:
            row |= {"neutral": score.neutral, "missing": score.missing, "unconverted": score.unconverted}
            row |= dict(zip(LENGTHS, (bucket.exact for bucket in score.by_length or []), strict=True))
            told = next((claim for claim in system.card.reported if year in claim.rates), None)
            row |= {"reported": told.rates[year], "metric": told.metric} if told else {}
            row |= _interval(board, system, year) | off_by_length(result)
        board.rows.append(row)


def ceiling(truth: GroundTruth, graphs: Mapping[str, Graph]) -> Row:
    """What a perfect reader of the captions gets right, under the paper's rules and with neutral limits."""
    texts = {key: prediction_file(key, tokens) for key, tokens in (truth.captions or {}).items()}
    exact, neutral = (in_process(texts, graphs, PAPER._replace(neutral=so)).counts["exact"] for so in (False, True))
    return {"n": len(graphs), "exact": exact, "neutral": neutral}


def _kept(committed: Path) -> dict[tuple[str, str], list[Row]]:
    """The rows of a scoreboard.csv by system and year. Raises InputError for another table."""
    kept: dict[tuple[str, str], list[Row]] = {}
    try:
        for _, cells in rows_of(io.StringIO(read_text(committed)), committed):
            if tuple(cells) != COLUMNS:
                raise ValueError
            filled = {name: text for name, text in cells.items() if text != ""}
            row = {name: TYPES.get(name, str)(text) for name, text in filled.items()}
            kept.setdefault((cells["system"], cells["year"]), []).append(row)
    except ValueError:
        raise InputError(f"{committed}: is damaged, or not a scoreboard; restore the committed one") from None
    return kept


def _test(board: Board, year: str, kept: Mapping[tuple[str, str], Sequence[Row]]) -> None:
    """Add groups and differences of one year, or of all together, to the rows. Where a test needs predictions that are
    not at hand, its committed outcome stands if the system's counts are the committed ones."""
    errors = {key: years[year] for key, years in board.errors.items() if year in years}
    groups = groups_of(board.systems, errors, board.images[year])
    no_baseline = [system for system in board.absent if system.key == BASELINE]
    for system in board.systems:
        if system.key not in errors or (row := board.row(system.key, year)) is None:
            continue
        same = (old for old in kept.get((system.key, year), []) if all(row.get(n) == old.get(n) for n in NUMBERS))
        old, peers = next(same, {}), [other for other in board.absent if other.card.training == system.card.training]
        needed = (*(["group"] if peers else []), *(TESTS if no_baseline else []))
        row |= {name: old[name] for name in needed if name in old}
        if not old.keys() >= {*needed}:
            names = ", ".join(sorted({other.key for other in (*peers, *no_baseline)}))
            note = f"{system.key}: is not compared with {names}; their predictions are not here"
            board.notes += [] if note in board.notes else [note]
        if not peers:
            row["group"] = groups[system.key]
        if system.key != BASELINE and BASELINE in errors:
            row |= difference(errors[system.key], errors[BASELINE], board.images[year])


def _named(key: str, year: str, rules: Rules) -> Row:
    return {"system": key, "year": year, "reading": rules.reading.name, "edition": rules.edition.name}


def _interval(board: Board, system: System, year: str) -> Row:
    found = rate(np.array([board.errors[system.key][year]]) == 0, board.images[year])
    return {"low": round(found.low, 2), "high": round(found.high, 2)}


def off_by_length(result: Evaluation) -> Row:
    """How many wrong predictions are shorter and longer than the true caption, in tokens, by its length."""
    row: Row = dict.fromkeys(OFF, 0)
    for expression in result.expressions:
        excess = len(tokens_of(result.predictions.get(expression.id, ""))) - (expression.length or 0)
        if expression.bucket and excess and not expression.exact:
            row[f"{LENGTHS[BUCKETS.index(expression.bucket)]}_{'short' if excess < 0 else 'long'}"] += 1
    return row


def difference(errors: Sequence[int], baseline: Sequence[int], images: Images) -> Row:
    """The difference to the baseline in points with its 95 % interval and p value, over writers."""
    found = paired(errors, baseline, images)
    points = (round(found.value, 2), round(found.low, 2), round(found.high, 2))
    return dict(zip(TESTS, (*points, float(f"{found.p:.3g}")), strict=True))


def groups_of(systems: Sequence[System], errors: Mapping[str, Sequence[int]], images: Images) -> dict[str, str]:
    """Letters by system: two systems of one kind of training share a letter if no difference between them, nor between
    any two ranked from one to the other, is shown at 5 %."""
    letters = dict.fromkeys(errors, "")
    for kind in dict.fromkeys(system.card.training for system in systems):
        ranked = [system.key for system in systems if system.card.training == kind and system.key in errors]
        ranked.sort(key=lambda key: -list(errors[key]).count(0))
        pairs = list(combinations(range(len(ranked)), 2))
        p_values = holm([paired(errors[ranked[a]], errors[ranked[b]], images).p for a, b in pairs])
        shown = {pair for pair, p in zip(pairs, p_values, strict=True) if p < 0.05}
        names, reached = iter(ascii_letters), -1
        for first in range(len(ranked)):
            last = first
            while last + 1 < len(ranked) and not any((k, last + 1) in shown for k in range(first, last + 1)):
                last += 1
            if last > reached:  # else all of them share an earlier letter
                reached, letter = last, next(names)
                for key in ranked[first : last + 1]:
                    letters[key] += letter
    return letters
