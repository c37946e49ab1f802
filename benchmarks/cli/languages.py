"""Commands of language models."""

from typing import Annotated

import typer

from hmerbench.benchmarks.cli import options
from hmerbench.benchmarks.cli.options import RESULTS, Crohme, Ptb, Results, app, parse_list, parse_seed

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
    force: options.Force = False,
    results: Results = RESULTS,
    jobs: options.Jobs = None,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
) -> None:
    """Train and test language models, on a GPU if there is one; a stopped job is resumed."""
    from hmerbench.benchmarks.jobs.engine import Placing
    from hmerbench.benchmarks.language_settings import resolve
    from hmerbench.benchmarks.reproduce import Options, reproduce_language_models
    from hmerbench.benchmarks.runs.workspace import open_data

    job, numbers = Options(force, Placing(engine, jobs, cpus, gpus)), [parse_seed(seed) for seed in parse_list(seeds)]
    asked = [resolve(recipe, seed) for recipe in parse_list(recipes) for seed in numbers]  # before data is made
    reproduce_language_models(asked, ptb or open_data(crohme, results), results, job)
