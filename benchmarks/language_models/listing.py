"""Listing of the language models' recipes and runs. Imports no torch, so that it is fast."""

from collections.abc import Iterator
from pathlib import Path

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models.run import LanguageRun
from hmerbench.benchmarks.language_models.settings import RECIPES
from hmerbench.benchmarks.runs.listing import roots, shipped


def runs(results: Path) -> dict[str, str]:
    """The status of every run by its folder: reproduced ones, those made here, those on captions of other archives."""
    listed = {}
    for run in LanguageRun.under(*roots(results)):
        try:
            listed[str(run.path)] = run.status
        except UserError as error:
            listed[str(run.path)] = f"damaged, {error}"
    return listed


def lines(results: Path) -> Iterator[str]:
    """The listing as lines of text."""
    yield "recipes of language models (make reproduce-lm)"
    for name, comment in shipped(RECIPES).items():
        yield f"  {name:<25}{comment}"
    for folder, status in runs(results).items():
        yield f"  {folder}: {status}"
