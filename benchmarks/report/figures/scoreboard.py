"""The scoreboard's figure: every system on every test set, with its interval, and what its authors report."""

from pathlib import Path

from matplotlib.figure import Figure

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.figures.results import GRAY, handle, label_rows
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.scoreboard.card import YEARS, read_cards
from hmerbench.evaluation.symlg import PAPER

# By kind of training data: color, marker, words.
KINDS = {
    "crohme": ("#0072B2", "o", "trained on CROHME"),
    "more": ("#E69F00", "s", "on more than CROHME"),
    "test labels": ("#D55E00", "X", "on these sets' labels"),
}


def scoreboard(table: Path) -> Figure:
    """ExpRate under the paper's rules by system, a panel for each test set; systems of one kind of training data stand
    together, the best first. `table` is results/scoreboard.csv. Raises UserError for a system without a card."""
    chosen = {"reading": PAPER.reading.name, "edition": PAPER.edition.name}
    rows = [row for row in read_table(table) if row["year"] in YEARS and chosen.items() <= row.items()]
    cards = {system.key: system.card for system in read_cards()}
    if unknown := next((row["system"] for row in rows if row["system"] not in cards), None):
        raise UserError(f"{table}: there is no card {unknown}; run make scoreboard")
    rates: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row["system"], []).append(100 * int(row["exact"]) / int(row["n"]))
    order = list(KINDS)
    ranked = sorted(rates, key=lambda key: (order.index(cards[key].training), -sum(rates[key]) / len(rates[key])))
    sets = sorted({row["year"] for row in rows})
    figure = Figure(figsize=(7.0, 0.55 + 0.24 * len(ranked)), layout="constrained")
    axes = figure.subplots(1, len(sets), sharex=True, sharey=True, squeeze=False)[0]
    for row in rows:
        axis, place = axes[sets.index(row["year"])], ranked.index(row["system"])
        color, marker, _ = KINDS[cards[row["system"]].training]
        axis.plot([float(row["low"]), float(row["high"])], [place, place], color=color, linewidth=1.2)
        rate = 100 * int(row["exact"]) / int(row["n"])
        axis.plot([rate], [place], color=color, marker=marker, linestyle="none")
        if row["reported"]:
            axis.plot(
                [float(row["reported"])], [place], color=GRAY, marker="d", markerfacecolor="none", linestyle="none"
            )
    label_rows(axes[0], [cards[key].name for key in ranked])
    for axis, name in zip(axes, sets, strict=True):
        axis.set_xlabel(f"ExpRate, CROHME {name} (%)")
        axis.grid(visible=False, axis="y")
        axis.tick_params(axis="y", length=0)
    shown = dict.fromkeys(cards[key].training for key in ranked)
    handles = [handle(words, color, marker) for color, marker, words in (KINDS[kind] for kind in shown)]
    handles.append(handle("as reported, by whatever metric", GRAY, "d", filled=False))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure
