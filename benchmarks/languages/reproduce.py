"""The job of the language models: train and test every recipe and seed that is not done yet."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.languages.corpus import read_corpus
from benchmarks.languages.run import LanguageRun
from benchmarks.languages.settings import resolve, tied
from benchmarks.languages.training import train
from benchmarks.printing import console


def reproduce(folder: Path, recipes: Sequence[str], seeds: Sequence[int], results: Path) -> list[LanguageRun]:
    """Train and test the runs of `recipes` and `seeds` on the corpus in `folder`, one after another."""
    runs = []
    for settings in [resolve(recipe, seed) for recipe in recipes for seed in seeds]:
        corpus = read_corpus(folder, settings.text.line_ends)
        settings = tied(settings, corpus.name, corpus.digest)
        runs.append(LanguageRun(results / "runs" / settings.run_name, settings))
        train(runs[-1], corpus)
        scores = runs[-1].scores
        console.print(
            f"{settings.recipe}, seed {settings.seed}: test perplexity {scores['test_perplexity']:.2f} over "
            f"{scores['test_words']} words ({runs[-1].path})",
            markup=False,
        )
    return runs
