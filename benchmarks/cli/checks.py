"""Verbs that check and measure the suite itself."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, AsJson, Crohme, Preset, Recipe, Results, app, seed_of, words
from benchmarks.errors import UserError

PANEL = "Checks"


@app.command(rich_help_panel=PANEL)
def doctor(crohme: Crohme = None, results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Check versions, devices, data, scorer, tracking and disk."""
    from benchmarks.doctor import examine, show

    checks = examine(crohme, results)
    show(checks, as_json)
    if broken := [check.name for check in checks if check.status == "broken"]:
        raise UserError(f"{', '.join(broken)}: broken, and the main job needs it; the fix is shown beside it")


@app.command(rich_help_panel=PANEL)
def regress(
    crohme: Crohme = None,
    baseline: Annotated[Path, typer.Option(help="what to compare with")] = RESULTS / "baseline.json",
    parts: Annotated[str, typer.Option(help="of the fixed job: scores numerics training; all where left out")] = "",
    accept: Annotated[bool, typer.Option("--update", help="take what is measured now as the baseline")] = False,
    reason: Annotated[str, typer.Option(help="why the baseline may change; it is kept")] = "",
    record: Annotated[int, typer.Option(min=0, help="with --update: train again with so many seeds (2 at least)")] = 0,
) -> None:
    """Compare a fixed, quick job with results/baseline.json."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the baseline is of processors, which every machine has
    from benchmarks.regression.baseline import regress, update

    if record == 1:
        raise UserError("--record 1: one run has no spread; give 2 or more (RECORD=20 is what is committed)")
    if accept or record:
        return update(crohme, baseline, reason, words(parts), record)
    if not regress(crohme, baseline, words(parts)):
        fix = "fix what caused it, or accept it with make regress-update REASON='...'"
        raise UserError(f"{baseline}: the metrics are not what they were (the table says which); {fix}")


@app.command(rich_help_panel=PANEL)
def speed(
    only: Annotated[str, typer.Option(help="benchmarks, or parts of their names, separated by spaces or commas")] = "",
    repeats: Annotated[int, typer.Option(help="times each side is measured", min=1)] = 5,
    crohme: Annotated[Path | None, typer.Option(help="CoMER's data.zip, for the two rows on CROHME 2014")] = None,
    results: Results = RESULTS,
) -> None:
    """Time the plain and the fast paths: results/speed/."""
    from benchmarks.performance.bench import speed

    speed(results, words(only), repeats, crohme=crohme)


@app.command("gpu-check", rich_help_panel=PANEL)
def gpu_check(crohme: Crohme = None, results: Results = RESULTS) -> None:
    """Check a GPU in five minutes: correctness, speed, recommended settings."""
    from benchmarks.performance.gpu_check import gpu_check

    gpu_check(crohme, results)


@app.command(rich_help_panel=PANEL)
def precision(
    limit: Annotated[int, typer.Option(help="expressions to train on", min=1)],
    epochs: Annotated[int, typer.Option(help="of each training", min=1)],
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7 8 9",
    heldout: Annotated[int, typer.Option(help="expressions held out", min=1)] = 300,
    max_tokens: Annotated[int, typer.Option(help="longer labels are left out, of both", min=1)] = 200,
    recipe: Recipe = "comer-fusion",
    preset: Preset = "laptop",
    crohme: Crohme = None,
    results: Results = RESULTS,
) -> None:
    """Short trainings in float32 and bf16: does bf16 hurt?"""
    from benchmarks.performance.precision import Sizes, precision
    from benchmarks.runs.workspace import open_data

    sizes = Sizes(limit, epochs, heldout, max_tokens)
    precision(open_data(crohme, results), results, recipe, preset, [seed_of(word) for word in words(seeds)], sizes)


@app.command(rich_help_panel=PANEL)
def timings(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders; else the committed runs")] = None,
    results: Results = RESULTS,
) -> None:
    """Time to accuracy of runs: results/speed/training.csv."""
    from benchmarks.performance.time_to_accuracy import timings

    timings(results, folders or [])
