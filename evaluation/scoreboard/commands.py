"""`hmerbench scoreboard`: score published systems, check their cards, add one; and the scoreboard as Markdown, a table
per kind of training data, then claims beside counts, other rules, lengths."""

import hashlib
import html
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from hmerbench.evaluation import InputError, csv_text, printable
from hmerbench.evaluation.datasets import crohme, validated
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.scoreboard.board import (
    COLUMNS,
    COUNTED,
    LENGTHS,
    OFF,
    RULES,
    TOGETHER,
    Board,
    Row,
    make_board,
)
from hmerbench.evaluation.scoreboard.card import CARDS, ROOT, SYSTEM, SYSTEM_RULE, YEARS, Card, System, read_cards
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.metrics import BUCKETS
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
    rules; `low`, `high` and reported rates are percentages."""
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
    facts |= {name: True for name in ("tokenize", "wrapped") if getattr(system.card, name)}
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
    if cards == CARDS and not (ROOT / "pyproject.toml").is_file():
        raise InputError(f"{CARDS}: is in no checkout; add the card to one with --cards evaluation/scoreboard")
    if not cards.is_dir():
        raise InputError(f"{cards}: there is no such folder; make it, or give another (--cards)")
    if target.exists():
        raise InputError(f"{target}: this card exists; choose another name, or delete it first")
    files, formulas, wrapped = {}, [], False
    for given in predictions:
        year, equals, name = given.partition("=")
        if not equals or year not in YEARS or year in files:
            raise InputError(f"{given}: must be YEAR=FILE with a year of {', '.join(YEARS)}, each given once")
        texts = read_predictions(Path(name))  # refuses what cannot be scored
        formulas += map(formula_of, texts.values())
        wrapped = wrapped or bool(texts.unofficial)
        files[year] = Path(name)
    if folders := [path for path in files.values() if path.is_dir()]:
        raise InputError(f"{folders[0]}: this is a folder, but a card names files; zip it")
    entries = {}
    for year, path in files.items():
        place = Path(key) / f"{year}{path.suffix}"
        entries[year] = {"path": place.as_posix(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    raw = sum(map(untokenized, formulas))
    card = {**said, "tokenize": raw > len(formulas) / 2, "wrapped": wrapped, "files": entries}
    validated(Card, card, target)
    for year, path in files.items():  # before the card, which without them would stand in the way of another try
        place = systems / entries[year]["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.resolve() != place.resolve():
            shutil.copyfile(path, place)
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=118)
    results_folder.replace(str(target), text)
    print(f"{raw} of {len(formulas)} predictions are raw LaTeX: tokenize: {str(card['tokenize']).lower()}")
    print(f"{printable(target)}: written; add what its authors report, then make scoreboard")


# --- results/scoreboard.md ----------------------------------------------------------------------------------------


KINDS = {
    "crohme": "Trained on CROHME alone",
    "more": "Trained on more than CROHME",
    "test labels": "Trained on the labels of these test sets",
}


def markdown(board: Board) -> str:
    """The text of results/scoreboard.md."""
    signature = next(iter(board.signatures.values()))
    common = "|".join(part for part in signature.split("|") if not part.startswith(("set:", "n:")))
    counted = [system for system in board.systems if system.card.files]
    rankings = []
    for kind, title in KINDS.items():
        if systems := [system for system in counted if system.card.training == kind]:
            rankings.append(f"## {title}\n\n{_ranking(board, systems)}")
    template = resources.files("hmerbench.evaluation.scoreboard").joinpath("templates/scoreboard.md").read_text("utf-8")
    return template.format(
        signature=common,
        year=crohme().primary,
        rankings="\n\n".join(rankings),
        made=_made(board),
        sub_and_sup=crohme().whose_limits("Sub and Sup"),
        below_and_above=crohme().whose_limits("Below and Above"),
        limits=_limits(board),
        claims=_claims(board),
        rules=_rules(board),
        lengths=_lengths(board),
        sources="\n\n".join(map(_about, board.systems)),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]], align: str = "---:") -> str:
    """A Markdown table; a cell's own text must have been escaped."""
    lines = [header, ["---", *[align] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def escaped(text: str) -> str:
    """Text of a card, so that neither HTML nor Markdown in it has an effect."""
    return "".join(f"&#{ord(c)};" if c in r"\`*_[]|~" else c for c in html.escape(text, quote=False))


def _name(system: System) -> str:
    return f"{escaped(system.card.name)} ({system.card.year})"


def _rate(row: Row | None) -> str:
    return "–" if row is None else f"{100 * row['exact'] / row['n']:.2f} ({row['low']:.1f}–{row['high']:.1f})"


def _ranking(board: Board, systems: Sequence[System]) -> str:
    together = {system.key: board.row(system.key, TOGETHER) or {} for system in systems}
    order = sorted(systems, key=lambda system: -together[system.key].get("exact", 0))  # those without come last
    lines = []
    for rank, system in enumerate(order, 1):
        rates, whole = [_rate(board.row(system.key, year)) for year in (*board.years, TOGETHER)], together[system.key]
        facts = [_name(system), rank if whole else "–", escaped(system.card.parameters)]
        lines.append([*facts, *rates, _against(whole), whole.get("group", "–")])
    ranks = table(["system", "rank", "parameters", *board.years, TOGETHER, "against CoMER", "group"], lines)
    return ranks if all(together.values()) else f"{ranks}\n\n–: without predictions of every set, a system has no rank."


def _against(row: Row) -> str:
    if "p" not in row:
        return "–"
    p = "p < 0.001" if row["p"] < 0.001 else f"p = {row['p']:.3f}"
    return f"{row['difference']:+.2f} ({row['difference_low']:+.1f} to {row['difference_high']:+.1f}), {p}"


def _claims(board: Board) -> str:
    lines = []
    for system in board.systems:
        for claim in system.card.reported:
            for year, rate in sorted(claim.rates.items()):
                row = board.row(system.key, year)
                counted = [f"{100 * row[name] / row['n']:.2f}" if row else "–" for name in ("exact", "token_exact")]
                cells = [year, f"{rate:.2f}", escaped(claim.metric), *counted]
                lines.append([_name(system), *cells, escaped(claim.source)])
    return table(["system", "set", "reported", "metric", "ExpRate", "token match", "reported in"], lines)


def _made(board: Board) -> str:
    lines = []
    for system in board.systems:
        card = system.card
        lines.append([_name(system), card.status, *map(escaped, (card.trained_on, card.selection, card.convention))])
    return table(["system", "numbers", "trained on", "epoch selected by", "writes"], lines, "---")


def _limits(board: Board) -> str:
    lines = []
    for system in (system for system in board.systems if system.card.files):
        rows = [board.row(system.key, year) for year in board.years]
        lines.append([_name(system), *(row[name] if row else "–" for row in rows for name in ("exact", "neutral"))])
    cells = [f"{row[name]} of {row['n']}" for row in board.ceilings.values() for name in ("exact", "neutral")]
    header = ["system", *(f"{year}, {kind}" for year in board.years for kind in ("official", "neutral"))]
    return table(header, [*lines, ["a perfect reader of the captions", *cells]])


def _rules(board: Board) -> str:
    header = ["system", "set", "n", *(f"{rules.reading.name}, {rules.edition.name}" for rules in RULES)]
    lines = []
    for system, year in product(board.systems, board.years):
        if found := [row for rules in RULES if (row := board.row(system.key, year, rules))]:
            lines.append([_name(system), year, found[0]["n"], *(row["exact"] for row in found)])
    return table(header, lines)


def _lengths(board: Board) -> str:
    lines = []
    for system in (system for system in board.systems if system.card.files):
        rows = [row for row in board.rows if row["system"] == system.key and "missing" in row]  # the paper's rules
        total = {name: sum(row[name] for row in rows) for name in (*LENGTHS, *OFF)}
        cells = [f"{total[name]} (−{total[f'{name}_short']} +{total[f'{name}_long']})" for name in LENGTHS]
        lines.append([_name(system), *(cells if board.row(system.key, TOGETHER) else ["–"] * len(cells))])
    return table(["system", *BUCKETS], lines)


def _about(system: System) -> str:
    card = system.card
    source = f"<{card.url}> ({escaped(card.commit)})" if card.url else "committed here"
    kept = f"Predictions: {source}, license: {escaped(card.license)}" if card.files else f"Only reported: <{card.url}>"
    text = f"**{_name(system)}**: {escaped(card.paper)}. {kept}."
    text += " Predictions are raw LaTeX, split into tokens first (`tok:split`)." if card.tokenize else ""
    text += " Of some, more is removed around the formula than officially (`wrap:removed`)." if card.wrapped else ""
    return text + (f" {escaped(' '.join(card.note.split()))}" if card.note else "")
