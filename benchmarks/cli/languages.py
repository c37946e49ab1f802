"""Commands of language models."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, Crohme, Results, app, parse_list, parse_seed
from benchmarks.errors import UserError

PANEL = "Language models"


@app.command("reproduce-lm", rich_help_panel=PANEL)
def reproduce_lm(
    ptb: Annotated[
        Path | None, typer.Option(help="folder of train.txt, valid.txt, test.txt; default: LaTeX of training captions")
    ] = None,
    crohme: Crohme = None,
    recipes: Annotated[
        str,
        typer.Option(help="lm-char-small | lm-char-large | lm-char-small-no-highway | lm-word-small | YAML files"),
    ] = "lm-char-small",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    results: Results = RESULTS,
) -> None:
    """Train and test language models; a stopped job is resumed."""
    from benchmarks.languages.reproduce import on_captions, on_text
    from benchmarks.runs.workspace import open_data

    names, numbers = parse_list(recipes), [parse_seed(seed) for seed in parse_list(seeds)]
    if not (names and numbers):
        raise UserError("no recipe or no seed is given: omit --recipes and --seeds for lm-char-small, seed 7")
    if ptb is not None:
        on_text(ptb, names, numbers, results)
    else:
        on_captions(open_data(crohme, results), names, numbers, results)
