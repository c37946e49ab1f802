"""Commands of language models."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, Results, app, parse_list, parse_seed

PANEL = "Language models"


@app.command("reproduce-lm", rich_help_panel=PANEL)
def reproduce_lm(
    ptb: Annotated[Path, typer.Option(help="folder of the Penn Treebank's train.txt, valid.txt and test.txt")],
    recipes: Annotated[str, typer.Option(help="recipes, separated by spaces or commas")] = "lm-char-small",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    results: Results = RESULTS,
) -> None:
    """Train and test language models."""
    from benchmarks.languages.reproduce import reproduce

    reproduce(ptb, parse_list(recipes), [parse_seed(seed) for seed in parse_list(seeds)], results)
