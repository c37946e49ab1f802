"""The scoreboard for programs: results/leaderboard.json, a row for each system with what its card says and its counts
under the paper's rules."""

import json
from typing import Any

from hmerbench.evaluation.scoreboard.board import COUNTED, TOGETHER, Board
from hmerbench.evaluation.scoreboard.card import YEARS, System

FACTS = (
    "name",
    "paper",
    "year",
    "status",
    "training",
    "trained_on",
    "parameters",
    "selection",
    "convention",
    "license",
)
SHOWN = (*COUNTED, "low", "high", "group")


def leaderboard(board: Board) -> str:
    """The text of the file. Rates are fractions of n; `low` and `high` are percentages, as in the CSV."""
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
    rows = {year: board.row(system.key, year) or {} for year in (*YEARS, TOGETHER)}
    counted = {year: {name: row[name] for name in SHOWN if name in row} for year, row in rows.items() if row}
    reported = [claim.model_dump() for claim in system.card.reported]
    return facts | {"counted": counted} | ({"reported": reported} if reported else {})
