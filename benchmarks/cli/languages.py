"""Commands of language models."""

from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, Crohme, Ptb, Results, app, parse_list, parse_seed
from hmerbench.benchmarks.errors import UserError

PANEL = "Language models"


@app.command("reproduce-lm", rich_help_panel=PANEL)
def reproduce_lm(
    ptb: Ptb = None,
    crohme: Crohme = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="lm-char-small | lm-char-large | lm-char-small-no-highway | lm-word-small | captions | YAML files"
        ),
    ] = "lm-char-small",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    results: Results = RESULTS,
) -> None:
    """Train and test language models, on a GPU if there is one; a stopped job is resumed."""
    from functools import partial

    from hmerbench.benchmarks.language_models.corpus import read_corpus
    from hmerbench.benchmarks.language_models.reproduce import on_captions, reproduce
    from hmerbench.benchmarks.language_settings import resolve
    from hmerbench.benchmarks.runs.workspace import open_data

    names, numbers = parse_list(recipes), [parse_seed(seed) for seed in parse_list(seeds)]
    if not (names and numbers):
        raise UserError("no recipe or no seed is given: omit --recipes and --seeds for lm-char-small, seed 7")
    for name in names:
        resolve(name, numbers[0])  # a misspelt one is refused before data is made
    if ptb is not None:
        reproduce(partial(read_corpus, ptb), names, numbers, results)
    else:
        on_captions(open_data(crohme, results), names, numbers, results)
