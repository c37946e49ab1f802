"""`hmerbench scoreboard`: score published systems, check their cards, add one."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hmerbench.evaluation import InputError, csv_text, printable
from hmerbench.evaluation.datasets import validated
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.scoreboard.board import COLUMNS, COUNTED, TOGETHER, Board, make_board
from hmerbench.evaluation.scoreboard.card import SYSTEM, SYSTEM_RULE, YEARS, Card, System, read_cards
from hmerbench.evaluation.scoreboard.markdown import markdown
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.symlg.formula import formula_of, untokenized

# of leaderboard.json: what it tells of a card, and of a system's rows
FACTS = (
    *("name", "paper", "year", "status", "training", "trained_on"),
    *("parameters", "selection", "convention", "license"),
)
SHOWN = (*COUNTED, "low", "high", "group")


def score(crohme: Path, systems: Path | None, cards: Path, results: Path) -> None:
    """Score every system at hand; write scoreboard.csv, scoreboard.md and leaderboard.json, where others' rows stay."""
    board = make_board(read_cards(cards), systems, crohme, results / "scoreboard.csv")
    if not board.rows:
        raise InputError(f"{cards}: the folder holds no cards (ID.yaml)")
    if not board.signatures:
        raise InputError(f"{systems}: holds predictions of no card; give the folder of systems")
    for note in board.notes:
        print(f"note: {note}", file=sys.stderr)
    results.mkdir(parents=True, exist_ok=True)
    texts = {
        "scoreboard.csv": csv_text(COLUMNS, board.rows),
        "scoreboard.md": markdown(board),
        "leaderboard.json": leaderboard(board),
    }
    for name, text in texts.items():
        results_folder.replace(str(results / name), text)
        print(printable(results / name))


def leaderboard(board: Board) -> str:
    """The scoreboard for programs: a row for each system with what its card says and its counts under the paper's
    rules. Rates are fractions of n; `low` and `high` are percentages, as in the CSV."""
    signatures = {year: board.signatures[year] for year in sorted(board.signatures)}
    content = {
        "signatures": signatures,
        "neutral": {year: text.replace("|search:", "|limits:neutral|search:") for year, text in signatures.items()},
        "ceilings": board.ceilings,
        "systems": [_system(board, system) for system in board.systems],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _system(board: Board, system: System) -> dict[str, Any]:
    facts = {"key": system.key} | {name: getattr(system.card, name) for name in FACTS}
    facts |= {"url": str(system.card.url)} if system.card.url else {}
    rows = {year: board.row(system.key, year) or {} for year in (*board.years, TOGETHER)}
    counted = {year: {name: row[name] for name in SHOWN if name in row} for year, row in rows.items() if row}
    reported = [claim.model_dump() for claim in system.card.reported]
    return facts | {"counted": counted} | ({"reported": reported} if reported else {})


def check(systems: Path | None, cards: Path) -> None:
    """Check every card and, of the systems at hand, the checksums of their predictions."""
    for system in read_cards(cards):
        if not system.card.files:
            print(f"{system.key}: its numbers are reported; it has no predictions")
            continue
        here = system.complete(systems)
        verified = len(list(system.files(systems))) if here else 0
        print(f"{system.key}: {f'{verified} files as on the card' if here else 'its predictions are not here'}")


def add(key: str, predictions: Sequence[str], said: Mapping[str, object], systems: Path, cards: Path) -> None:
    """Turn predictions (YEAR=FILE) and what is `said` of them into a card; the files are copied into `systems`."""
    target = cards / f"{key}.yaml"
    if not SYSTEM.fullmatch(key):
        raise InputError(f"{key}: choose another name; {SYSTEM_RULE}")
    if not cards.is_dir():
        raise InputError(f"{cards}: there is no such folder; make it, or give another (--cards)")
    if target.exists():
        raise InputError(f"{target}: this card exists; choose another name, or delete it first")
    files, raw = {}, False
    for given in predictions:
        year, equals, name = given.partition("=")
        if not equals or year not in YEARS or year in files:
            raise InputError(f"{given}: must be YEAR=FILE with a year of {', '.join(YEARS)}, each given once")
        texts = read_predictions(Path(name))  # refuses what cannot be scored
        raw = raw or any(untokenized(formula_of(text)) for text in texts.values())
        files[year] = Path(name)
    if folders := [path for path in files.values() if path.is_dir()]:
        raise InputError(f"{folders[0]}: this is a folder, but a card names files; zip it")
    entries = {}
    for year, path in files.items():
        place = Path(key) / f"{year}{path.suffix}"
        entries[year] = {"path": place.as_posix(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    card = {**said, "tokenize": raw, "files": entries}
    validated(Card, card, target)
    for year, path in files.items():  # before the card, which without them would stand in the way of another try
        place = systems / entries[year]["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.resolve() != place.resolve():
            shutil.copyfile(path, place)
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=118)
    results_folder.replace(str(target), text)
    print(f"{printable(target)}: written; add what its authors report, then make scoreboard")
