"""The job of the language models: train and test every recipe and seed that is not done yet."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models.corpus import Corpus, caption_corpus
from hmerbench.benchmarks.language_models.training import train
from hmerbench.benchmarks.language_settings import resolve, tied
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.runs.language import LanguageRun
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.benchmarks.tracking.track import track


def on_captions(archive: Archive, recipes: Sequence[str], seeds: Sequence[int], results: Path) -> None:
    """Do the runs of `recipes` and `seeds` on the LaTeX of an archive's training captions, in its workspace.

    Raises UserError for a recipe that reads no ends of lines: a caption is a line, and `of_lines` needs its end.
    """
    for recipe in recipes:
        if not resolve(recipe, seeds[0]).text.line_ends:
            raise UserError(f"{recipe}: text.line_ends: false is for a text; give PTB=folder, or leave this recipe out")
    console.print(
        " LATEX OF THE TRAINING CAPTIONS: these are NOT the paper's perplexities. PTB=folder gives those. ",
        style="bold black on yellow",
    )
    corpus = caption_corpus(archive)
    reproduce(lambda line_ends: corpus, recipes, seeds, workspace(archive, results))


def reproduce(corpus_with: Callable[[bool], Corpus], recipes: Sequence[str], seeds: Sequence[int], space: Path) -> None:
    """Do the runs of `recipes` and `seeds` that are not done yet, below the folder `space`; log and show all.

    `corpus_with` reads the text, given whether the ends of lines are words.
    """
    rows = []
    for asked in [resolve(recipe, seed) for recipe in recipes for seed in seeds]:
        corpus = corpus_with(asked.text.line_ends)
        config = tied(asked, corpus.name, corpus.digest)
        run = LanguageRun(space / "runs" / config.run_name, config)
        train(run, corpus)
        track(run.path)
        scores = run.scores
        rows.append(
            {
                "recipe": config.recipe,
                "seed": config.seed,
                "test perplexity": scores["test_perplexity"],
                "words": scores["test_words"],
                "validation": scores["valid_perplexity"],
                "minutes": run.seconds[-1] / 60,
                "run": run.path,
            }
        )
    show(f"language models on {corpus.name}", rows)
