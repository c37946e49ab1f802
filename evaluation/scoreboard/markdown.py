"""The scoreboard as Markdown: a table per kind of training data, then claims beside counts, other rules, lengths."""

import html
from collections.abc import Iterable, Sequence
from importlib import resources

from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoreboard.board import LENGTHS, OFF, RULES, TOGETHER, Board, Row
from hmerbench.evaluation.scoreboard.card import System
from hmerbench.evaluation.scoring.metrics import BUCKETS

KINDS = {
    "crohme": "Trained on CROHME alone",
    "more": "Trained on more than CROHME",
    "test labels": "Trained on the labels of these test sets",
}


def markdown(board: Board) -> str:
    """The text of results/scoreboard.md."""
    signature = next(iter(board.signatures.values()))
    common = "|".join(part for part in signature.split("|") if not part.startswith(("set:", "n:", "tok:")))
    counted = [system for system in board.systems if system.card.files]
    rankings = []
    for kind, title in KINDS.items():
        if systems := [system for system in counted if system.card.training == kind]:
            rankings.append(f"## {title}\n\n{_ranking(board, systems)}")
    template = resources.files("hmerbench.evaluation.scoreboard").joinpath("template.md").read_text(encoding="utf-8")
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


def _rate(row: Row) -> str:
    return f"{100 * row['exact'] / row['n']:.2f} ({row['low']:.1f}–{row['high']:.1f})"


def _ranking(board: Board, systems: Sequence[System]) -> str:
    together = {system.key: board.row(system.key, TOGETHER) or {} for system in systems}
    order = sorted(systems, key=lambda system: -together[system.key].get("exact", 0))  # those without come last
    lines = []
    for rank, system in enumerate(order, 1):
        rows, whole = [board.row(system.key, year) for year in (*board.years, TOGETHER)], together[system.key]
        rates = [_rate(row) if row else "–" for row in rows]
        place, group = (rank, whole.get("group", "–")) if whole else ("–", "–")
        lines.append([_name(system), place, escaped(system.card.parameters), *rates, _against(whole), group])
    return table(["system", "rank", "parameters", *board.years, TOGETHER, "against CoMER", "group"], lines)


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
    cards = [(system, system.card) for system in board.systems]
    lines = (
        [_name(system), card.status, *map(escaped, (card.trained_on, card.selection, card.convention))]
        for system, card in cards
    )
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
    for system in board.systems:
        for year in board.years:
            if row := board.row(system.key, year):
                found = [board.row(system.key, year, rules) for rules in RULES]
                lines.append([_name(system), year, row["n"], *(row["exact"] for row in found if row)])
    return table(header, lines)


def _lengths(board: Board) -> str:
    lines = []
    for system in (system for system in board.systems if system.card.files):
        rows = [row for row in board.rows if row["system"] == system.key and "missing" in row]  # the paper's rules
        total = {name: sum(row[name] for row in rows) for name in (*LENGTHS, *OFF)}
        cells = (f"{total[name]} (−{total[f'{name}_short']} +{total[f'{name}_long']})" for name in LENGTHS)
        lines.append([_name(system), *cells])
    return table(["system", *BUCKETS], lines)


def _about(system: System) -> str:
    card = system.card
    source = f"<{card.url}> ({escaped(card.commit)})" if card.url else "committed here"
    kept = f"Predictions: {source}, license: {escaped(card.license)}" if card.files else f"Only reported: <{card.url}>"
    text = f"**{_name(system)}**: {escaped(card.paper)}. {kept}."
    text += " Predictions are raw LaTeX, split into tokens first (`tok:split`)." if card.tokenize else ""
    return text + (f" {escaped(' '.join(card.note.split()))}" if card.note else "")
