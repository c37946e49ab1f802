"""Which split an expression belongs to: as its source or a list says, or a share held out by writer or formula."""

from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hmerbench.benchmarks.data.importing.source import LeftOut, Row
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.scoring.inputs import MAX_CAPTIONS, read_text
from hmerbench.evaluation.strict import first_twice


@dataclass(frozen=True)
class Choice:
    """How splits are told. `listed` are lines of ID and split; `test_share` is held out of what is not a test set;
    `everything` goes to one split."""

    everything: str = ""
    listed: tuple[tuple[str, str], ...] = ()
    test_share: float = 0.0
    seed: int = 7


def chosen(rows: list[Row], choice: Choice, left_out: LeftOut) -> list[Row]:
    """The rows with their splits; those that a list does not name are left out. What nothing tells is a test set."""
    lists = dict(choice.listed)
    kept = []
    for row in rows:
        split = choice.everything or row.split
        if lists:
            split = lists.get(row.id, "")
            if not split:
                left_out.add(row.id, "not in the list of splits")
                continue
        row.split = split
        kept.append(row)
    if choice.test_share:
        return _held_out(kept, choice, left_out)
    for row in kept:
        row.split = row.split or "test"
    return kept


def _held_out(rows: list[Row], choice: Choice, left_out: LeftOut) -> list[Row]:
    """`test_share` of what is in train or in no split becomes the test set: whole writers where they are known, whose
    formulas that occur in train are left out; else whole formulas."""
    if not 0 < choice.test_share < 1:
        raise UserError(f"--test-share {choice.test_share:g}: must lie between 0 and 1, such as 0.1")
    pool = [row for row in rows if row.split in ("", "train")]
    by_writer = bool(pool) and all(row.writer for row in pool) and len({row.writer for row in pool}) > 1
    groups: dict[Hashable, list[Row]] = {}
    for row in pool:
        groups.setdefault(row.writer if by_writer else row.tokens, []).append(row)
    held, wanted = set[int](), choice.test_share * len(pool)
    for key in sorted(groups, key=lambda key: sha256(f"{choice.seed} {key}".encode()).digest()):
        if len(held) >= wanted:
            break
        held |= {id(row) for row in groups[key]}
    for row in pool:
        row.split = "test" if id(row) in held else "train"
    seen = {row.tokens for row in pool if row.split == "train"}
    kept = []
    for row in rows:
        if id(row) in held and row.tokens in seen:
            left_out.add(row.id, "of a held-out writer, but its formula occurs in train")
        else:
            kept.append(row)
    return kept


def listed(path: Path) -> tuple[tuple[str, str], ...]:
    """The ids and splits in a file: lines of an id, a blank or a tab, and a split. Raises UserError."""
    try:
        words = [line.split() for line in lines(read_text(path, MAX_CAPTIONS)) if line.strip()]
    except InputError as error:
        raise UserError(str(error)) from None
    if any(len(pair) != 2 for pair in words):
        raise UserError(f"{path}: a list of splits has an id and a split on every line, such as `a1 train`")
    if twice := first_twice(id_ for id_, _ in words):
        raise UserError(f"{path}: the id {twice} occurs twice; keep one")
    return tuple((id_, split) for id_, split in words)
