"""hmerbench: a reproducibility benchmark suite for handwritten mathematical expression recognition."""

import errno
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.errors import UserError

if TYPE_CHECKING:  # torch and pandas are slow to import; `--help` needs neither
    from benchmarks.data.archive import Archive
    from benchmarks.runs.folder import Run

ROWS = "bttr bttr-baseline comer-self comer-cross comer-fusion"

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Crohme = Annotated[Path | None, typer.Option(help="CoMER's data.zip, or it unpacked; else the embedded set is made")]
Results = Annotated[Path, typer.Option(help="where runs and tables lie", envvar="HMERBENCH_RESULTS")]
Preset = Annotated[
    str,
    typer.Option(help="smoke | laptop | paper | fast | a YAML file; else smoke without a GPU, paper with"),
]
Years = Annotated[str, typer.Option(help="test sets, all where left out")]
Folder = Annotated[Path | None, typer.Argument(help="a run folder; or name the run by its recipe")]
Recipe = Annotated[str, typer.Option(help=f"{ROWS.replace(' ', ' | ')}, or a YAML file")]
Seed = Annotated[int, typer.Option(help="the run's seed", min=0)]
Force = Annotated[bool, typer.Option("--force", help="train again what is trained already")]
EngineName = Annotated[str, typer.Option("--engine", help="local: this machine | ray: a Ray cluster (RAY_ADDRESS)")]
Cpus = Annotated[float, typer.Option(help="CPUs a run gets (engine ray)", min=0)]
Gpus = Annotated[float | None, typer.Option(help="GPUs a run gets (engine ray); else one where there are any", min=0)]
RESULTS = Path("results")
OUT_OF_TIME = 3  # exit code


@app.command()
def data(
    crohme: Crohme = None,
    results: Results = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Verify an archive: which edition it is, what is in it, what the protocol skips."""
    from benchmarks.data.verify import describe
    from benchmarks.runs.workspace import open_data

    describe(open_data(crohme, results), as_json)


@app.command()
def crohme(target: Annotated[Path, typer.Argument(help="file to write")] = Path("data/crohme.zip")) -> None:
    """Download CROHME as CoMER's authors publish it (for research; CC BY-NC-SA 3.0)."""
    from benchmarks.data.archive import open_archive
    from benchmarks.data.download import download

    archive = open_archive(target if target.exists() else download(target))
    print(f"{archive.path}: {archive.edition}; use it with CROHME={archive.path}")


@app.command()
def train(
    folder: Folder = None,
    recipe: Recipe = "",
    preset: Preset = "",
    seed: Seed = 7,
    crohme: Crohme = None,
    results: Results = RESULTS,
    force: Force = False,
) -> None:
    """Train one run, or go on with it; under torchrun on several devices."""
    from benchmarks.tracking.live import live
    from benchmarks.tracking.track import track
    from benchmarks.training.trainer import train

    run, archive = _run(folder, recipe, preset, seed, crohme, results)
    if force:
        run.forget_training()
    if int(os.environ.get("RANK", "0")) > 0:  # one process of a team mirrors and talks
        return train(run.config, archive, run.folder)
    with live(run.folder):
        train(run.config, archive, run.folder)
    track(run.folder)
    print(f"trained: {run.folder}")


@app.command()
def predict(
    folder: Folder = None,
    recipe: Recipe = "",
    preset: Preset = "",
    seed: Seed = 7,
    crohme: Crohme = None,
    years: Years = "",
    results: Results = RESULTS,
) -> None:
    """Recognise test sets with a trained run."""
    from benchmarks.recognition.predict import predict
    from benchmarks.runs.workspace import test_splits

    run, archive = _run(folder, recipe, preset, seed, crohme, results)
    predict(run.config, archive, run.folder, test_splits(archive, _words(years)))
    print(f"recognised: {run.folder / 'predictions'}")


@app.command()
def score(
    folder: Folder = None,
    recipe: Recipe = "",
    preset: Preset = "",
    seed: Seed = 7,
    crohme: Crohme = None,
    years: Years = "",
    results: Results = RESULTS,
) -> None:
    """Score the predictions of a run (those of every test set that was recognised, or of `--years`)."""
    from benchmarks.runs.workspace import test_splits
    from benchmarks.score import score
    from benchmarks.tracking.track import track

    run, archive = _run(folder, recipe, preset, seed, crohme, results)
    there = [path.stem for path in sorted(run.folder.glob("predictions/*.zip"))]
    wanted = test_splits(archive, _words(years) or there)
    for result in score(run.config, archive, run.folder, wanted).values():
        print(result)
    track(run.folder)


@app.command()
def reproduce(
    recipes: Annotated[str, typer.Option(help="rows, divided by blanks or commas")] = ROWS,
    preset: Preset = "",
    seeds: Annotated[str, typer.Option(help="seeds, divided by blanks or commas")] = "7",
    crohme: Crohme = None,
    years: Years = "",
    force: Force = False,
    results: Results = RESULTS,
    engine: EngineName = "local",
    cpus: Cpus = 1,
    gpus: Gpus = None,
    minutes: Annotated[
        float | None, typer.Option(help="stop cleanly after so long, exit code 3; run again to go on")
    ] = None,
) -> None:
    """Train, recognise, score and log the rows of Tables 1 and 2, then write the tables."""
    from benchmarks.reproduce import reproduce

    _check_engine(engine)
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"--minutes {minutes:g}: no time to work in; give a number above 0, or leave it out (MINUTES=)")
    numbers, years_ = [_seed(word) for word in _words(seeds)], _words(years)
    preset = preset or _default_preset()
    if not reproduce(_words(recipes), preset, numbers, crohme, years_, force, results, engine, cpus, gpus, minutes):
        sys.exit(OUT_OF_TIME)


@app.command()
def search(
    recipe: Recipe = "comer-fusion",
    preset: Preset = "",
    trials: Annotated[int, typer.Option(help="finished trials in all", min=1)] = 16,
    workers: Annotated[int, typer.Option(help="trials at a time", min=1)] = 2,
    space: Annotated[str, typer.Option(help="what may change: a YAML file, else the one for the preset")] = "",
    storage: Annotated[str, typer.Option(help="a database URL; else a journal file, for this machine alone")] = "",
    seed: Seed = 7,
    crohme: Crohme = None,
    results: Results = RESULTS,
    engine: EngineName = "local",
    cpus: Cpus = 1,
    gpus: Gpus = None,
) -> None:
    """Search for better settings of a recipe, on held-out training data; goes on where it was stopped."""
    from benchmarks.tuning.study import search

    _check_engine(engine)
    preset = preset or _default_preset()
    search(recipe, preset, seed, crohme, results, trials, workers, space, storage, engine, cpus, gpus)


@app.command()
def track(
    folders: Annotated[list[Path], typer.Argument(help="run folders, from this machine or another")],
) -> None:
    """Mirror run folders to MLflow (MLFLOW_TRACKING_URI, else the results' own SQLite file)."""
    from benchmarks.tracking.store import store
    from benchmarks.tracking.track import track

    for folder in folders:
        if track(folder) is None:
            raise UserError(f"{folder}: not logged")
        print(f"{folder}: logged to {store(folder)}")


@app.command()
def recognize(
    images: Annotated[list[Path], typer.Argument(help="PNG, BMP or JPEG files, one expression each")],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="a run folder, the weights file in one, or a .ckpt of CoMER's authors; else the best of ours"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention to IMAGE.attention.png")] = False,
) -> None:
    """Read images of expressions: LaTeX, a line an image."""
    from benchmarks.recognition.recognizer import recognize

    if recognize(images, weights, as_json=as_json, nbest=nbest, show=show):
        sys.exit(1)  # what failed has been said


@app.command()
def attention(
    ids: Annotated[
        list[str] | None, typer.Argument(help="expressions of the archive; two chosen ones if left out")
    ] = None,
    crohme: Annotated[Path | None, typer.Option(help="CoMER's data.zip; else typeset expressions are drawn")] = None,
    weights: Annotated[Path | None, typer.Option(help="a run folder; else the best of the committed ones")] = None,
    results: Results = RESULTS,
) -> None:
    """Draw Fig. 4 and its animation: attention and refinement term, step by step."""
    from benchmarks.report.figures.attention import figure4

    if ids and crohme is None:
        raise UserError(f"'{ids[0]}' is an expression of an archive: give that with --crohme")
    for path in figure4(results, crohme, ids or (), weights):
        print(path)


@app.command()
def pack(
    folders: Annotated[list[Path], typer.Argument(help="scored run folders on CROHME")],
    weights: Annotated[bool, typer.Option(help="with weights (float16) and a model card")] = True,
) -> None:
    """Keep runs under results/reproduced/: small enough to commit, read by `tables` and `figures`."""
    from benchmarks.runs.packing import pack

    for folder in folders:
        print(pack(folder, weights=weights))


@app.command()
def evaluate(
    crohme: Crohme = None,
    years: Years = "",
    recipes: Annotated[str, typer.Option(help="of these rows only")] = "",
    results: Results = RESULTS,
) -> None:
    """Recognise CROHME with the committed weights and compare with the committed scores; no training."""
    from benchmarks.runs.packing import evaluate

    evaluate(crohme, _words(years), _words(recipes), results)


@app.command()
def mlflow_ui(
    results: Results = RESULTS, port: Annotated[int, typer.Option(help="of the loopback", min=1, max=65535)] = 5000
) -> None:
    """Look at what was logged, in MLflow's own user interface, on this machine only."""
    from benchmarks.tracking.store import browse

    browse(results, port)


@app.command()
def tables(results: Results = RESULTS) -> None:
    """Write the committed results/table*.{csv,md,tex} and the README's table anew: reported and reproduced rows."""
    from benchmarks.report import tables
    from benchmarks.runs.workspace import console

    built, readme = tables.committed(results), results.parent / "README.md"
    tables.show(built, console)
    paths = tables.write(built, results)
    if readme.exists():
        tables.write_summary(built, readme)
        paths.append(readme)
    for path in paths:
        print(path)


@app.command()
def figures(results: Results = RESULTS) -> None:
    """Write results/figures/*.{pdf,svg,png}: lengths, Table 1, training, errors, cost, what mattered in searches."""
    from benchmarks.report.figures.make import figures

    for line in figures(results):
        print(line)


@app.command()
def compare(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders, or folders of them")] = None,
    results: Results = RESULTS,
    split: Annotated[str | None, typer.Option("--set", help="a test set, or all of them pooled: all")] = None,
    every_pair: Annotated[bool, typer.Option("--every-pair", help="not only the steps of the paper's order")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for rows.csv and steps.csv")] = None,
) -> None:
    """Rows over seeds: spread, paired tests, and whether the paper's ordering holds and the data can tell."""
    from benchmarks.report import compare

    found = compare.compare(folders or [], results, split, every_pair)
    for path in compare.write(found, out) if out else []:
        print(path, file=sys.stderr)
    print(compare.as_json(found) if as_json else "\n".join(map(compare.as_text, found)))


@app.command()
def regress(
    crohme: Crohme = None,
    baseline: Annotated[Path, typer.Option(help="what to compare with")] = Path("results/baseline.json"),
    parts: Annotated[str, typer.Option(help="of the fixed job: scores numerics training; all where left out")] = "",
    accept: Annotated[bool, typer.Option("--update", help="take what is measured now as the baseline")] = False,
    reason: Annotated[str, typer.Option(help="why the baseline may change; it is kept")] = "",
    record: Annotated[int, typer.Option(min=0, help="with --update: train anew at so many seeds, 20 or more")] = 0,
) -> None:
    """Compare the scores and metrics of a fixed, quick job with the baseline; see CONTRIBUTING.md."""
    from benchmarks.regression.baseline import regress, update

    if accept or record:
        return update(crohme, baseline, reason, _words(parts), record)
    if not regress(crohme, baseline, _words(parts)):
        mend = "mend what caused it, or accept it with make regress-update REASON='...'"
        raise UserError(f"{baseline}: the metrics are not what they were (the table says which); {mend}")


@app.command()
def speed(
    only: Annotated[str, typer.Option(help="benchmarks, or parts of their names, divided by blanks or commas")] = "",
    repeats: Annotated[int, typer.Option(help="times each side is measured", min=1)] = 5,
    crohme: Annotated[Path | None, typer.Option(help="CoMER's data.zip, for the two rows on CROHME 2014")] = None,
    results: Results = RESULTS,
) -> None:
    """Measure the plain and the fast paths side by side, into results/speed/ (cpu.csv, growth.csv and its plot)."""
    from benchmarks.performance.bench import speed

    speed(results, _words(only), repeats, crohme=crohme)


@app.command()
def timings(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders; else the committed runs")] = None,
    results: Results = RESULTS,
) -> None:
    """Time to accuracy of runs: results/speed/training.csv of the committed ones; of named ones it is printed only."""
    from benchmarks.performance import time_to_accuracy as timings

    table = timings.timings(results, folders or [])
    timings.show(table)
    if not folders:
        timings.write(table, results / "speed/training.csv")
        print(results / "speed/training.csv")


@app.command()
def precision(
    limit: Annotated[int, typer.Option(help="expressions to train on", min=1)],
    epochs: Annotated[int, typer.Option(help="of each training", min=1)],
    seeds: Annotated[str, typer.Option(help="seeds, divided by blanks or commas")] = "7 8 9",
    heldout: Annotated[int, typer.Option(help="expressions held out", min=1)] = 300,
    max_tokens: Annotated[int, typer.Option(help="longer labels are left out, of both", min=1)] = 200,
    recipe: Recipe = "comer-fusion",
    preset: Preset = "laptop",
    crohme: Crohme = None,
    results: Results = RESULTS,
) -> None:
    """Train short, twice from each seed, float32 and bf16; is the difference smaller than that of seeds?"""
    from benchmarks.performance.precision import Sizes, precision
    from benchmarks.runs.workspace import open_data

    sizes = Sizes(limit, epochs, heldout, max_tokens)
    precision(open_data(crohme, results), results, recipe, preset, [_seed(word) for word in _words(seeds)], sizes)


@app.command("import-weights")
def import_weights(
    ckpt: Annotated[Path, typer.Argument(help="the authors' Lightning checkpoint (.ckpt)")],
    out: Annotated[Path, typer.Argument(help="weights file to write (.safetensors)")],
) -> None:
    """Turn a checkpoint of the authors into a weights file of this suite; nothing in it is executed."""
    from models import CoMER
    from models.lightning import import_lightning, recipe_of
    from models.weights import save_weights

    if out.suffix != ".safetensors" or out.exists():
        reason = "is there already; delete it or" if out.exists() else "is no name of a weights file;"
        raise UserError(f"{out}: {reason} give another name ending in .safetensors")
    config, state = import_lightning(ckpt)
    model = CoMER(config)
    model.load_state_dict(state)
    save_weights(out, model)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"recipe   {recipe_of(config)}")
    print(f"network  {millions:.2f} M parameters; {config}")
    print(f"tensors  {len(state)}, all that this network has: none missing, none unexpected")
    print(f"written  {out}")


@app.command()
def report(
    crohme: Crohme = None,
    results: Results = RESULTS,
    attention: Annotated[
        int, typer.Option(help="attention of n evenly spaced and n wrong expressions a set", min=0)
    ] = 12,
) -> None:
    """Write the static page results/report/index.html: tables, charts, cost, a browser of every expression."""
    from benchmarks.report.page.make import report

    path = report(crohme, results, attention)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser without a server")


@app.command()
def doctor(
    crohme: Crohme = None,
    results: Results = RESULTS,
    storage: Annotated[str, typer.Option(help="a search's database URL, to see whether it can be reached")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Versions, devices, data, scorer, tracking, disk, and known-bad combinations, each with its mend."""
    from benchmarks.doctor import examine, show

    checks = examine(crohme, results, storage)
    show(checks, as_json)
    if broken := [check.name for check in checks if check.status == "broken"]:
        raise UserError(f"{', '.join(broken)}: broken, and the main job needs it; the mend stands beside it")


@app.command("ls")
def list_(
    results: Results = RESULTS,
    keys: Annotated[bool, typer.Option("--keys", help="every key of a recipe or preset instead")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Recipes, presets, and the runs with how far they are; or every key that a recipe or preset may set."""
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


def _run(
    folder: Path | None, recipe: str, preset: str, seed: int, crohme: Path | None, results: Path
) -> "tuple[Run, Archive]":
    """The run that a folder or a recipe names, and the data it belongs to."""
    from benchmarks.config import load, resolve
    from benchmarks.runs.folder import Run
    from benchmarks.runs.workspace import open_data, workspace

    if (folder is None) == (not recipe):
        raise UserError("name one run: a run folder, or --recipe (with --preset and --seed)")
    if folder is None:
        archive = open_data(crohme, results)
        config = resolve(recipe, preset or _default_preset(), seed, archive)
        return Run(config, workspace(archive, results) / "runs" / config.run_name), archive
    config = load(folder / "config.yaml")
    if crohme is None and config.data.name != "embedded":
        raise UserError(f"{folder}: was trained on {config.data.name} data; give the archive with --crohme")
    archive = open_data(crohme, results)
    if archive.digest != config.data.digest:
        raise UserError(f"{archive.path}: not the data {folder} was trained on (other digest); give that archive")
    return Run(config, folder), archive


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _check_engine(name: str) -> None:
    from benchmarks.jobs.place import ENGINES

    if name not in ENGINES:
        raise UserError(f"no engine called '{name}': choose {' or '.join(ENGINES)}")


def _seed(word: str) -> int:
    if not word.isdecimal():
        raise UserError(f"'{word}' is not a seed: give whole numbers from 0, as in SEEDS='7 8 9'")
    return int(word)


def _default_preset() -> str:
    import torch

    return "paper" if torch.cuda.is_available() else "smoke"


def main() -> int:
    """Runs the command line. Every error is one line on stderr; HMERBENCH_DEBUG=1 shows tracebacks."""
    try:
        if app(standalone_mode=False) == 130:
            raise KeyboardInterrupt  # typer makes this exit code of it; older ones, an exception of their own
    except BaseException as error:
        if os.environ.get("HMERBENCH_DEBUG") or isinstance(error, SystemExit | GeneratorExit):
            raise
        return _tell(error)
    return 0


def _tell(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
        kept = "finished stages and the last checkpoint are kept; run the same command again to go on"
        print(f"\nstopped: {kept}", file=sys.stderr)
        return 130
    if show := getattr(error, "show", None):  # a usage error; typer hides click's classes
        show()
        return getattr(error, "exit_code", 2)
    print(f"error: {_words_for(error)}", file=sys.stderr)
    return 1


def _words_for(error: BaseException) -> str:
    from evaluation import InputError

    text = " ".join(str(error).split())
    models = sys.modules.get("models")  # its errors can only come up where it was imported
    if isinstance(error, UserError | InputError) or (models and isinstance(error, models.CheckpointError)):
        return text
    if isinstance(error, OSError):
        mends = {
            errno.ENOSPC: "make room and run the same command again",
            errno.EROFS: "choose a place that can be written (RESULTS=, --results)",
            errno.EACCES: "choose a place that can be written (RESULTS=, --results)",
        }
        mend = mends.get(error.errno or 0, "mend that and run the same command again")
        return f"{error.filename or 'a file'}: {error.strerror or text}; {mend}"
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; this verb needs the whole suite: pip install 'hmerbench[suite]', or make setup"
    return f"{type(error).__name__}: {text[:300]} (not foreseen: a fault of ours; HMERBENCH_DEBUG=1 shows where)"


if __name__ == "__main__":
    sys.exit(main())
