"""Tables of language models: reported and reproduced perplexities, their curves, and what a port's mistakes cost."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from hmerbench.benchmarks.report.documents import markdown, write_texts
from hmerbench.benchmarks.runs.run import LanguageRun

# Kim et al. (AAAI-16), tables 3 and 7: model and test perplexity on the Penn Treebank. Nothing here was run here.
REPORTED = {
    "lm-char-small": ("LSTM-Char-Small", 92.3),
    "lm-char-large": ("LSTM-Char-Large", 78.9),
    "lm-char-small-no-highway": ("LSTM-Char-Small, no highway", 100.3),
    "lm-word-small": ("LSTM-Word-Small", 97.6),
}
FAITHFUL, EPOCHS = "lm-char-small", 5
OTHER_TEXT = "port-no-line-ends"  # whose perplexity, of other words, is compared with none
MISTAKES = {
    "port-mean": "mean of the loss over the 35 steps instead of the sum",
    OTHER_TEXT: "ends of lines are no words (neither are they in this perplexity)",
    "port-input-dropout": "dropout on the LSTM's input as well",
    "port-initialization": "torch's default initialization",
    "port-reset-state": "the state starts from zero in every batch",
}
CURVE = ["recipe", "seed", "epoch", "rate", "train", "validation", "minutes"]
TITLES = {
    "language": "Language models: perplexity on the test set of the Penn Treebank, reported and reproduced",
    "language_ports": f"What a port's mistakes cost: validation perplexity after {EPOCHS} epochs of LSTM-Char-Small"
    " (one seed each)",
}
NOTE = (
    "Reported: Kim et al., AAAI-16, tables 3 and 7. Reproduced: the last epoch's weights on all 82,430 test words as "
    "one sequence, in float32; with several seeds the mean, and `sd` their standard deviation. Minutes are those of a "
    "run's training and validation, on the hardware named, which other work shared. The authors say of their "
    "program (github.com/yoonkim/lstm-char-cnn) that it should give about 96 and 93 on validation and test set for "
    "Small, 82 and 79 for Large, 101 and 98 for Word-Small."
)


def language_tables(results: Path) -> dict[str, pd.DataFrame]:
    """The tables by name, from the runs under results/reproduced/."""
    runs = [run for run in LanguageRun.under(results / "reproduced") if run.finished]
    by_recipe: dict[str, list[LanguageRun]] = {}
    for run in runs:
        by_recipe.setdefault(run.recipe, []).append(run)
    measured = ("epoch", "rate", "train_perplexity", "valid_perplexity")
    curves = [
        [run.recipe, run.seed, *(line[name] for name in measured), seconds / 60]
        for run in runs
        for line, seconds in zip(run.history, run.seconds, strict=True)
    ]
    return {
        "language": pd.DataFrame([_row(recipe, by_recipe.get(recipe, ())) for recipe in REPORTED]),
        "language_curves": pd.DataFrame(curves, columns=CURVE),
        "language_ports": _ports(by_recipe),
    }


def _row(recipe: str, runs: Sequence[LanguageRun]) -> dict[str, object]:
    model, reported = REPORTED[recipe]
    scores = pd.DataFrame([run.scores for run in runs], columns=["test_perplexity", "valid_perplexity", "parameters"])
    means = scores.mean()
    return {
        "model": model,
        "recipe": recipe,
        "reported": reported,
        "reproduced": means["test_perplexity"],
        "sd": scores["test_perplexity"].std(),
        "validation": means["valid_perplexity"],
        "seeds": len(runs),
        "parameters": means["parameters"],
        "minutes": sum(run.seconds[-1] for run in runs) / 60 / len(runs) if runs else None,
        "hardware": "; ".join(sorted({run.hardware for run in runs})),
    }


def _ports(by_recipe: Mapping[str, Sequence[LanguageRun]]) -> pd.DataFrame:
    """A row per mistake, first seeds only, beside the faithful run's first epochs."""
    rows = {FAITHFUL: "none: faithful"} | MISTAKES
    firsts = [next(iter(by_recipe.get(recipe, ())), None) for recipe in rows]
    reached = [run.history[EPOCHS - 1]["valid_perplexity"] if run else math.nan for run in firsts]
    table = pd.DataFrame({"mistake": list(rows.values()), "validation": reached})
    worse_by = table["validation"] - reached[0]
    return table.assign(worse_by=worse_by.where(table["mistake"] != MISTAKES[OTHER_TEXT]))


def write_language_tables(built: Mapping[str, pd.DataFrame], folder: Path) -> list[Path]:
    """Write every table as CSV and, but for the curves, Markdown; return the paths."""
    texts = {}
    for name, table in built.items():
        whole = table.astype(dict.fromkeys({"parameters"} & {*table}, "Int64"))
        texts[folder / f"{name}.csv"] = whole.to_csv(index=False, float_format="%.7g")
        if title := TITLES.get(name):
            note = f"\n{NOTE}\n" if name == "language" else ""
            texts[folder / f"{name}.md"] = f"**{title}**\n\n{markdown(table.map(_cell))}\n{note}"
    return write_texts(texts)


def _cell(value: object) -> str:
    if value is None or value != value or value == "":
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
