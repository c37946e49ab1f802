"""Commands that make runs: the main job, its stages one by one, tuning, tracking."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmerbench.benchmarks.cli import options
from hmerbench.benchmarks.cli.options import RESULTS, WEIGHTS, app, compute_with, parse_list, refuse_unknown
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.resolve import PRESETS

if TYPE_CHECKING:
    from hmerbench.benchmarks.data.archive import Archive
    from hmerbench.benchmarks.runs.folder import RunFolder

PANEL = "Runs"

Folder = Annotated[Path, typer.Argument(help="a run folder")]


@app.command(rich_help_panel=PANEL)
def reproduce(
    recipes: Annotated[str, typer.Option(help="recipes, separated by spaces or commas")] = options.ROWS,
    preset: options.Preset = "",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    crohme: options.Crohme = None,
    years: options.Years = "",
    force: options.Force = False,
    results: options.Results = RESULTS,
    jobs: options.Jobs = None,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
    workers: options.Workers = None,
    graphs: options.Graphs = None,
    epochs: Annotated[int | None, typer.Option(help="epochs of each run; default: the preset's", min=1)] = None,
) -> None:
    """The main job: train, recognize, score and log; then write the tables."""
    from hmerbench.benchmarks.jobs.engine import Placing
    from hmerbench.benchmarks.reproduce import reproduce, with_epochs
    from hmerbench.benchmarks.resolve import resolve
    from hmerbench.benchmarks.runs.workspace import open_data, select_splits

    compute_with(workers, graphs)
    placing, preset = Placing(engine, jobs, cpus, gpus), preset or _default_preset(crohme)
    numbers, names = options.parse_seeds(seeds), parse_list(recipes)
    refuse_unknown(names, preset)
    archive = open_data(crohme, results)
    splits = select_splits(archive, parse_list(years))
    configs = [resolve(recipe, preset, seed, archive) for recipe in names for seed in numbers]
    if epochs is not None:
        configs = [with_epochs(config, epochs) for config in configs]
    reproduce(configs, archive, splits, results, placing, force)


@app.command(rich_help_panel=PANEL)
def train(
    folder: Annotated[Path | None, typer.Argument(help="run folder to resume; without one, give --recipe")] = None,
    recipe: options.Recipe = "",
    preset: Annotated[str, typer.Option(help=f"{options.PRESET}; with --from: the weights' own")] = "",
    seed: options.Seed = 7,
    crohme: options.Crohme = None,
    results: options.Results = RESULTS,
    force: options.Force = False,
    workers: options.Workers = None,
    graphs: options.Graphs = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help=f"weights to start from: {WEIGHTS}; trained as they were, but less, or as --preset's training and "
            "augmentation say",
        ),
    ] = None,
) -> None:
    """Train or resume one run; on several devices with torchrun. With --from, fine-tune weights on your data."""
    from hmerbench.benchmarks.resolve import resolve
    from hmerbench.benchmarks.runs.folder import RunFolder
    from hmerbench.benchmarks.runs.listing import forget_trainings
    from hmerbench.benchmarks.runs.workspace import announce, open_data, remember, workspace
    from hmerbench.benchmarks.tracking.track import live, track
    from hmerbench.benchmarks.training.checkpoint import adopt_training
    from hmerbench.benchmarks.training.fine_tuning import fine_tuned, tell_gain
    from hmerbench.benchmarks.training.trainer import train

    compute_with(workers, graphs)
    if sum(map(bool, (folder, recipe, start))) != 1:
        raise UserError("name one run: a run folder, or --recipe (with --preset and --seed), or --from with weights")
    if folder and (preset or seed != 7):
        raise UserError(f"{folder}: this run has its own preset and seed; leave out --preset and --seed")
    if folder:
        run, archive = open_run(folder, crohme, results, trains=True)
        can_train = force or (run.path / "checkpoint.safetensors").exists() or not run.history
        if not can_train and (run.weights_file.exists() or run.scores):
            raise UserError(f"{folder}: it is trained and has no checkpoint to resume from; --force trains it again")
    elif start:
        if preset:
            refuse_unknown([], preset)
        archive = open_data(crohme, results)
        run = fine_tuned(start, preset, seed, archive, workspace(archive, results) / "runs")
    else:
        preset = preset or _default_preset(crohme)
        refuse_unknown([recipe], preset)
        archive = open_data(crohme, results)
        config = resolve(recipe, preset, seed, archive)
        run = RunFolder(workspace(archive, results) / "runs" / config.run_name, config)
    if os.environ.get("RANK", "0") not in ("", "0"):  # only rank 0 reports and tracks
        return train(run, archive)
    announce(archive)
    remember(archive, results)
    if force:
        forget_trainings([run])
    done = "it was trained already; --force trains it again" if run.trained_here else "trained"
    run.refuse_training()
    adopt_training(run)
    with live(run.path):
        train(run, archive)
    tell_gain(run, archive)
    track(run.path)
    print(f"{done}: {run.path}")


@app.command(rich_help_panel=PANEL)
def predict(
    folder: Folder,
    crohme: options.Crohme = None,
    years: options.Years = "",
    results: options.Results = RESULTS,
    force: Annotated[bool, typer.Option("--force", help="replace predictions that a run was packed with")] = False,
) -> None:
    """Recognize test sets with a trained run."""
    from hmerbench.benchmarks.recognition.predict import predict
    from hmerbench.benchmarks.runs.workspace import select_splits

    run, archive = open_run(folder, crohme, results)
    splits = select_splits(archive, parse_list(years))
    if packed := [] if force else [split for split in splits if run.packed_with(split)]:
        fix = f"`hmerbench evaluate --weights {folder}` reads beside them, --force replaces them"
        raise UserError(f"{folder}: packed with its predictions of {', '.join(packed)}, by unrounded weights; {fix}")
    predict(run, archive, splits)
    print(f"recognized: {run.path / 'predictions'}")


@app.command(rich_help_panel=PANEL)
def evaluate(
    crohme: Annotated[
        Path | None,
        typer.Option(help="CoMER's data.zip, or data of your own; with --weights, default: the embedded set"),
    ] = None,
    years: options.Years = "",
    recipes: Annotated[str, typer.Option(help="recipes of the committed runs to use; default: all")] = "",
    weights: Annotated[Path | None, typer.Option(help=f"{WEIGHTS}: score these instead, on any archive")] = None,
    results: options.Results = RESULTS,
) -> None:
    """Recognize CROHME with the committed weights and compare scores; of other data, or with --weights, tell scores."""
    from hmerbench.benchmarks.evaluate import evaluate_committed, evaluate_weights

    if weights is None:
        return evaluate_committed(crohme, parse_list(years), parse_list(recipes), results)
    if recipes:
        raise UserError("--recipes chooses among the committed runs, --weights names one; leave one of them out")
    evaluate_weights(weights, crohme, parse_list(years), results)


@app.command(rich_help_panel=PANEL)
def tune(
    recipe: options.Recipe = "comer-fusion",
    preset: Annotated[
        str, typer.Option(help=f"a preset, or a YAML file; empty: {PRESETS[0]}, on a GPU gpu (small without strokes)")
    ] = "",
    trials: Annotated[int, typer.Option(help="total number of finished trials", min=1)] = 16,
    workers: Annotated[int, typer.Option(help="concurrent trials", min=1)] = 2,
    space: Annotated[str, typer.Option(help="search space: a YAML file; default: the preset's own")] = "",
    storage: Annotated[str, typer.Option(help="database URL; default: a journal file, for this machine only")] = "",
    seed: options.Seed = 7,
    crohme: options.Crohme = None,
    results: options.Results = RESULTS,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
) -> None:
    """Tune settings with Optuna on held-out training data."""
    from hmerbench.benchmarks.jobs.engine import Placing
    from hmerbench.benchmarks.runs.workspace import open_data
    from hmerbench.benchmarks.tuning.space import pose, read_space
    from hmerbench.benchmarks.tuning.study import refuse_storage, tune

    preset, placing = preset or _default_preset(crohme, "gpu"), Placing(engine, workers, cpus, gpus)
    refuse_unknown([recipe], preset)  # these refuse before data is made
    read_space(preset, space)
    refuse_storage(engine, storage)
    archive = open_data(crohme, results)
    problem = pose(recipe, preset, seed, archive, space)
    tune(problem, archive, results, trials, placing, storage)


@app.command(rich_help_panel=PANEL)
def pack(
    folders: Annotated[list[Path], typer.Argument(help="folders of scored CROHME runs, or of tested language models")],
    weights: Annotated[bool, typer.Option(help="include weights (float16), a model card and error tables")] = True,
) -> None:
    """Copy scored runs to results/reproduced/, ready to commit."""
    from hmerbench.benchmarks.runs.packing import pack

    for folder in folders:
        print(pack(folder, weights))


@app.command(rich_help_panel=PANEL)
def track(folders: Annotated[list[Path], typer.Argument(help="run folders, made on any machine")]) -> None:
    """Log run folders to MLflow (MLFLOW_TRACKING_URI)."""
    from hmerbench.benchmarks.tracking.track import track
    from hmerbench.benchmarks.tracking.tracking_store import store

    for folder in folders:
        if track(folder) is None:
            raise UserError(f"{folder}: it was not logged; the warning above says why")
        print(f"{folder}: logged to {store(folder)}")


@app.command(rich_help_panel=PANEL)
def remove(folder: Folder, yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False) -> None:
    """Delete a run made by mistake, with its MLflow entry."""
    from hmerbench.benchmarks.printing import counted
    from hmerbench.benchmarks.runs.listing import run_in
    from hmerbench.benchmarks.tracking.track import remove

    run = run_in(folder)
    what = f"{folder}, {counted(len(run.history), 'epoch')} of {run.recipe}"
    if not (yes or (sys.stdin.isatty() and typer.confirm(f"delete {what}, and its MLflow entry?"))):
        raise UserError(f"{what}: nothing was deleted; --yes deletes without asking")
    logged = remove(folder)
    print(f"{folder}: removed{', with its MLflow entry' if logged else ''}")


@app.command(rich_help_panel=PANEL)
def mlflow_ui(
    results: options.Results = RESULTS,
    port: Annotated[int, typer.Option(help="port on 127.0.0.1", min=1, max=65535)] = 5000,
) -> None:
    """Serve the MLflow UI on this machine only."""
    from hmerbench.benchmarks.tracking.tracking_store import browse

    browse(results, port)


@app.command("ls", rich_help_panel=PANEL)
def list_(
    results: options.Results = RESULTS,
    keys: Annotated[bool, typer.Option("--keys", help="list every key of recipes and presets instead")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List presets with what they cost and read, recipes, and the progress of each run; or all keys."""
    import json

    from hmerbench.benchmarks.printing import show
    from hmerbench.benchmarks.report.presets import ladder
    from hmerbench.benchmarks.runs import listing
    from hmerbench.benchmarks.runs.run import LanguageRun

    if keys:
        from hmerbench.benchmarks import language_settings, resolve

        listed = resolve.settable() + language_settings.settable()
        print(json.dumps(listed, indent=1) if as_json else "\n".join(resolve.key_lines(listed)))
    elif as_json:
        shipped = {"recipes": listing.shipped("recipes")}
        shipped |= {"presets": {rung["preset"]: rung for rung in ladder(results / "reproduced")}}
        others = listing.runs(results, LanguageRun)
        languages = {run["folder"]: ", ".join(filter(None, (run["status"], run["words"]))) for run in others}
        print(json.dumps(shipped | {"runs": listing.runs(results), "language_models": languages}, indent=1))
    else:
        show("presets", ladder(results / "reproduced"))
        print("\n".join(listing.lines(results)))


@app.command("reproduce-lm", rich_help_panel="Language models")
def reproduce_lm(
    ptb: options.Ptb = None,
    crohme: options.Crohme = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="lm-char-small | lm-char-large | lm-char-small-no-highway | lm-word-small | captions | YAML files"
        ),
    ] = "lm-char-small",
    seeds: Annotated[str, typer.Option(help="seeds, separated by spaces or commas")] = "7",
    force: options.Force = False,
    results: options.Results = RESULTS,
    jobs: options.Jobs = None,
    engine: options.EngineName = "local",
    cpus: options.Cpus = 1,
    gpus: options.Gpus = None,
) -> None:
    """Train and test language models, on a GPU if there is one; a stopped job is resumed."""
    from hmerbench.benchmarks.jobs.engine import Placing
    from hmerbench.benchmarks.language_settings import resolve
    from hmerbench.benchmarks.reproduce import reproduce_language_models
    from hmerbench.benchmarks.runs.workspace import open_data

    if ptb and crohme:
        raise UserError(f"{ptb} and {crohme}: two texts to train on; give --ptb or --crohme")
    placing, numbers = Placing(engine, jobs, cpus, gpus), options.parse_seeds(seeds)
    asked = [resolve(recipe, seed) for recipe in parse_list(recipes) for seed in numbers]  # before data is made
    reproduce_language_models(asked, ptb or open_data(crohme, results), results, placing, force)


def open_run(folder: Path, crohme: Path | None, results: Path, trains: bool = False) -> "tuple[RunFolder, Archive]":
    """The run in `folder` and its data. If it was trained on other data, it is a copy whose results
    are kept apart; with `trains`, UserError is raised instead."""
    from hmerbench.benchmarks.runs.folder import RunFolder
    from hmerbench.benchmarks.runs.workspace import open_data

    run = RunFolder(folder)
    data = run.settings.data
    if crohme is None and data.name != "embedded":
        raise UserError(f"{folder}: it was trained on {data.name} data; give the archive with --crohme")
    archive = open_data(crohme, results, trains)
    if archive.holds(data.digest):
        return run, archive
    if trains:
        raise UserError(f"{archive.path}: {folder} was trained on other data (their digests differ); give that archive")
    from hmerbench.benchmarks.evaluate import evaluated_run
    from hmerbench.benchmarks.printing import err_console
    from hmerbench.benchmarks.recognition.recognizer import Recognizer

    run = evaluated_run(Recognizer.load(folder), archive, results)
    err_console.print(f"{archive.path}: not what {folder} was trained on, so results are kept apart: {run.path}")
    return run, archive


def _default_preset(crohme: Path | None, on_gpu: str = "large") -> str:
    """The preset where none is given; `on_gpu` needs pen strokes."""
    import torch

    from hmerbench.benchmarks.data.archive import inkml_beside
    from hmerbench.benchmarks.printing import err_console

    if not torch.cuda.is_available():
        return PRESETS[0]
    if crohme is None or not crohme.exists() or inkml_beside(crohme).is_file():
        return on_gpu  # of a missing archive, the error is told once it is opened
    err_console.print(f"{inkml_beside(crohme)}: no such file, and `{on_gpu}` needs pen strokes; the preset is `small`")
    return "small"
