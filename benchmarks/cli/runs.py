"""Verbs that make runs: the main job, its stages one by one, tuning, the mirror."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli import options
from benchmarks.cli.options import RESULTS, AsJson, Crohme, Preset, Recipe, Results, Years, app, seed_of, words
from benchmarks.errors import UserError

if TYPE_CHECKING:
    from benchmarks.data.archive import Archive
    from benchmarks.runs.folder import RunFolder

PANEL = "Runs"
OUT_OF_TIME = 3  # exit code

Folder = Annotated[Path, typer.Argument(help="a run folder")]


@app.command(rich_help_panel=PANEL)
def reproduce(
    recipes: Annotated[str, typer.Option(help="rows, separated by spaces or commas")] = options.ROWS,
    preset: Preset = "",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    crohme: Crohme = None,
    years: Years = "",
    force: options.Force = False,
    results: Results = RESULTS,
    jobs: options.Jobs = 1,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="time limit: fits the epochs to it, stops cleanly (exit 3); the same command resumes"),
    ] = None,
) -> None:
    """The main job: train, recognize, score, log; then the tables."""
    from benchmarks.config import resolve
    from benchmarks.jobs.engine import Placing
    from benchmarks.reproduce import Options, reproduce
    from benchmarks.runs.workspace import open_data, test_splits

    placing = Placing(engine, jobs, cpus, gpus)
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"--minutes {minutes:g}: no time to work in; give a number above 0, or leave it out (MINUTES=)")
    options = Options(force, minutes, placing)  # from here on minutes count
    preset, numbers = preset or _default_preset(), [seed_of(word) for word in words(seeds)]
    archive = open_data(crohme, results)
    splits = test_splits(archive, words(years))
    configs = [resolve(row, preset, seed, archive) for row in words(recipes) for seed in numbers]
    if not reproduce(configs, archive, splits, results, options):
        sys.exit(OUT_OF_TIME)


@app.command(rich_help_panel=PANEL)
def train(
    folder: Annotated[Path | None, typer.Argument(help="a run folder, to resume it; or name a recipe")] = None,
    recipe: Recipe = "",
    preset: Preset = "",
    seed: options.Seed = 7,
    crohme: Crohme = None,
    results: Results = RESULTS,
    force: options.Force = False,
) -> None:
    """Train one run, or resume it; torchrun uses several devices."""
    from benchmarks.config import resolve
    from benchmarks.runs.folder import RunFolder
    from benchmarks.runs.workspace import open_data, workspace
    from benchmarks.tracking.live import live
    from benchmarks.tracking.track import track
    from benchmarks.training.trainer import train

    if (folder is None) == (not recipe):
        raise UserError("name one run: a run folder, or --recipe (with --preset and --seed)")
    if folder:
        run, archive = _run(folder, crohme, results)
    else:
        archive = open_data(crohme, results)
        config = resolve(recipe, preset or _default_preset(), seed, archive)
        run = RunFolder(workspace(archive, results) / "runs" / config.run_name, config)
    if int(os.environ.get("RANK", "0")) > 0:  # one process of a team mirrors and talks
        return train(run, archive)
    if force:
        run.forget_training()
    with live(run.path):
        train(run, archive)
    track(run.path)
    print(f"trained: {run.path}")


@app.command(rich_help_panel=PANEL)
def predict(folder: Folder, crohme: Crohme = None, years: Years = "", results: Results = RESULTS) -> None:
    """Recognize test sets with a trained run."""
    from benchmarks.recognition.predict import predict
    from benchmarks.runs.workspace import test_splits

    run, archive = _run(folder, crohme, results)
    predict(run, archive, test_splits(archive, words(years)))
    print(f"recognized: {run.path / 'predictions'}")


@app.command(rich_help_panel=PANEL)
def score(folder: Folder, crohme: Crohme = None, years: Years = "", results: Results = RESULTS) -> None:
    """Score a run's predictions: of all its test sets, or --years."""
    from benchmarks.runs.workspace import test_splits
    from benchmarks.score import score
    from benchmarks.tracking.track import track

    run, archive = _run(folder, crohme, results)
    wanted = test_splits(archive, words(years) or run.sets("predictions/*.zip"))
    for result in score(run, archive, wanted).values():
        print(result)
    track(run.path)


@app.command(rich_help_panel=PANEL)
def evaluate(
    crohme: Crohme = None,
    years: Years = "",
    recipes: Annotated[str, typer.Option(help="of these rows only")] = "",
    results: Results = RESULTS,
) -> None:
    """Recognize CROHME again with the committed weights."""
    from benchmarks.regression.evaluate import evaluate

    evaluate(crohme, words(years), words(recipes), results)


@app.command(rich_help_panel=PANEL)
def tune(
    recipe: Recipe = "comer-fusion",
    preset: Preset = "",
    trials: Annotated[int, typer.Option(help="finished trials in all", min=1)] = 16,
    workers: Annotated[int, typer.Option(help="trials at a time", min=1)] = 2,
    space: Annotated[str, typer.Option(help="what may change: a YAML file, else the one for the preset")] = "",
    storage: Annotated[str, typer.Option(help="a database URL; else a journal file, for this machine alone")] = "",
    seed: options.Seed = 7,
    crohme: Crohme = None,
    results: Results = RESULTS,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
) -> None:
    """Look for better settings, on held-out training data."""
    from benchmarks.jobs.engine import Placing
    from benchmarks.runs.workspace import open_data
    from benchmarks.tuning.space import pose
    from benchmarks.tuning.study import tune

    placing = Placing(engine, workers, cpus, gpus)
    archive = open_data(crohme, results)
    problem = pose(recipe, preset or _default_preset(), seed, archive, space)
    tune(problem, archive, results, trials, placing, storage)


@app.command(rich_help_panel=PANEL)
def pack(
    folders: Annotated[list[Path], typer.Argument(help="scored run folders on CROHME")],
    weights: Annotated[bool, typer.Option(help="with weights (float16) and a model card")] = True,
) -> None:
    """Keep scored runs under results/reproduced/, fit to commit."""
    from benchmarks.runs.packing import pack

    for folder in folders:
        print(pack(folder, weights=weights))


@app.command(rich_help_panel=PANEL)
def track(folders: Annotated[list[Path], typer.Argument(help="run folders, from this machine or another")]) -> None:
    """Mirror run folders to MLflow (MLFLOW_TRACKING_URI)."""
    from benchmarks.tracking.track import track
    from benchmarks.tracking.tracking_store import store

    for folder in folders:
        if track(folder) is None:
            raise UserError(f"{folder}: not logged")
        print(f"{folder}: logged to {store(folder)}")


@app.command(rich_help_panel=PANEL)
def mlflow_ui(
    results: Results = RESULTS, port: Annotated[int, typer.Option(help="of the loopback", min=1, max=65535)] = 5000
) -> None:
    """Open MLflow's own interface, on this machine only."""
    from benchmarks.tracking.tracking_store import browse

    browse(results, port)


@app.command("ls", rich_help_panel=PANEL)
def list_(
    results: Results = RESULTS,
    keys: Annotated[bool, typer.Option("--keys", help="every key of a recipe or preset instead")] = False,
    as_json: AsJson = False,
) -> None:
    """List recipes, presets, and how far each run is; or all keys."""
    import json
    from dataclasses import asdict

    from benchmarks.runs import listing

    if keys:
        from benchmarks import keys as every

        print(json.dumps([asdict(key) for key in every.settable()], indent=1) if as_json else "\n".join(every.lines()))
    elif as_json:
        shipped = {kind: listing.shipped(kind) for kind in ("recipes", "presets")}
        print(json.dumps(shipped | {"runs": [asdict(run) for run in listing.runs(results)]}, indent=1))
    else:
        print("\n".join(listing.lines(results)))


def _run(folder: Path, crohme: Path | None, results: Path) -> "tuple[RunFolder, Archive]":
    """The run in a folder, and the data it belongs to."""
    from benchmarks.runs.folder import RunFolder
    from benchmarks.runs.workspace import open_data

    run = RunFolder(folder)
    data = run.settings.data
    if crohme is None and data.name != "embedded":
        raise UserError(f"{folder}: was trained on {data.name} data; give the archive with --crohme")
    archive = open_data(crohme, results)
    if archive.digest != data.digest:
        raise UserError(f"{archive.path}: not the data {folder} was trained on (other digest); give that archive")
    return run, archive


def _default_preset() -> str:
    import torch

    return "fast" if torch.cuda.is_available() else "smoke"
