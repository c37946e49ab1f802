"""Commands that score and compare: files of predictions, for which no torch is loaded, or runs."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hmerbench.benchmarks.cli.options import RESULTS, AsJson, Crohme, Results, Years, app, parse_list, refuse_others
from hmerbench.benchmarks.cli.runs import open_run
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation import commands, run_program
from hmerbench.evaluation.scoreboard.card import CARDS
from hmerbench.evaluation.symlg import EDITIONS, PAPER, READINGS, rules

PANEL = "Predictions"
scoreboard = typer.Typer(help="Published systems under one signature: score them, check their cards, add one.")
app.add_typer(scoreboard, name="scoreboard", rich_help_panel=PANEL)

TRUTH = "ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg"
A_FILE = "folder of ID.txt, zip of them, .jsonl, .json, .csv or .tsv"
Predictions = Annotated[Path, typer.Option(help=A_FILE)]
GroundTruth = Annotated[str, typer.Option(help=TRUTH)]
Tokenize = Annotated[
    bool,
    typer.Option(
        "--tokenize", help=r"split raw LaTeX into commands (\frac), escaped characters (\{) and single characters"
    ),
]
Captions = Annotated[Path | None, typer.Option(help="ID<TAB>tokens lines, for a folder of .lg")]
Cards = Annotated[Path, typer.Option(help="folder of cards; default: those of the suite", show_default=False)]


def run(command: Callable[[], None]) -> NoReturn:
    """Run a command of the scorer; its exit code is the program's."""
    gc.disable()  # graphs hold no reference cycles, and searching for them takes a tenth of the time
    raise typer.Exit(run_program(command))


@app.command(rich_help_panel=PANEL)
def score(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(help="a run folder; without one, give --predictions")] = None,
    predictions: Annotated[list[Path] | None, typer.Option(help=f"{A_FILE}; once per set")] = None,
    ground_truth: Annotated[list[str] | None, typer.Option(help=f"{TRUTH}; once per set")] = None,
    tokenize: Tokenize = False,
    captions: Captions = None,
    as_json: Annotated[bool, typer.Option("--json", help="print each score as one line of JSON")] = False,
    per_expression: Annotated[Path | None, typer.Option(help="write one CSV row per expression")] = None,
    workdir: Annotated[Path | None, typer.Option(help="keep the scorer's files here")] = None,
    named: Annotated[str, typer.Option("--set", help="the set in the signature; default: SPLIT or the folder")] = "",
    search: Annotated[str, typer.Option(help="search method to name in the signature")] = "unknown",
    select: Annotated[str, typer.Option(help="checkpoint selection to name in the signature")] = "unknown",
    reading: Annotated[str, typer.Option(help=f"how LaTeX is parsed: {', '.join(READINGS)}")] = PAPER.reading.name,
    edition: Annotated[str, typer.Option(help=f"versions of the tools: {', '.join(EDITIONS)}")] = PAPER.edition.name,
    neutral: Annotated[
        bool, typer.Option("--neutral-limits", help=r"whether \limits is written makes no difference; not official")
    ] = False,
    unseen: Annotated[
        bool, typer.Option("--unseen", help="add a line without the expressions whose captions were trained on")
    ] = False,
    training: Annotated[
        str, typer.Option(help="captions trained on: ARCHIVE.zip:SPLIT or a caption.txt; default: train of the archive")
    ] = "",
    crohme: Crohme = None,
    years: Years = "",
    results: Results = RESULTS,
) -> None:
    """Score predictions in files as the CROHME scorer does, or those of a run for --years, by default all."""
    if folder is not None and folder.is_file():
        raise UserError(f"{folder}: is no run folder; give a file of predictions as --predictions, with --ground-truth")
    if folder is not None:
        refuse_others(context, {"folder", "crohme", "years", "results", "unseen", "training"}, "a run folder")
        return _score_run(folder, crohme, years, results, training if unseen or training else None)
    if not (predictions and ground_truth):
        raise typer.BadParameter("give --predictions FILE with --ground-truth, or a run folder")
    refuse_others(context, context.params.keys() - {"folder", "crohme", "years", "results"}, "--predictions")
    options = {"captions": captions, "per_expression": per_expression, "workdir": workdir, "named": named}
    options |= {"search": search, "select": select, "rules": rules(reading, edition, neutral=neutral)}
    options |= {"training": training if unseen or training else None}
    run(lambda: commands.score(predictions, ground_truth, tokenize=tokenize, as_json=as_json, **options))


def _score_run(folder: Path, crohme: Path | None, years: str, results: Path, training: str | None) -> None:
    from hmerbench.benchmarks.runs.workspace import select_splits
    from hmerbench.benchmarks.score import score, unseen_of
    from hmerbench.benchmarks.tracking.track import track

    run, archive = open_run(folder, crohme, results)
    splits = select_splits(archive, parse_list(years) or run.sets("predictions/*.tsv"))
    for split, result in score(run, archive, splits).items():
        print(result)
        if training is not None:
            print(unseen_of(run, archive, split, training))
    if not run.evaluated:  # what it read of other data is no part of the experiment
        track(run.path)


@app.command(rich_help_panel=PANEL)
def compare(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="run folders, or folders of them; default: committed and own; or two files of predictions"),
    ] = None,
    ground_truth: Annotated[str, typer.Option(help=f"for files: {TRUTH}")] = "",
    tokenize: Tokenize = False,
    changed: Annotated[Path | None, typer.Option(help="write what only one system gets right as CSV")] = None,
    results: Results = RESULTS,
    split: Annotated[str, typer.Option("--set", help="a test set; all: pooled; each: every set, then all")] = "all",
    every_pair: Annotated[bool, typer.Option("--every-pair", help="compare all pairs of rows")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two systems on the same expressions (--ground-truth), or the rows of runs over seeds and writers."""
    of_runs = {"results", "split", "every_pair"}
    if ground_truth:
        refuse_others(context, context.params.keys() - of_runs, "--ground-truth")
        if len(paths or []) != 2:
            raise typer.BadParameter("name two files of predictions to compare on one ground truth")
        first, second = paths or []
        options = {"tokenize": tokenize, "as_json": as_json, "changed_to": changed}
        run(lambda: commands.print_comparison(first, second, ground_truth, **options))
    refuse_others(context, of_runs | {"paths", "as_json"}, "runs; give --ground-truth to compare files")
    if file := next((path for path in paths or [] if path.is_file()), None):
        raise UserError(f"{file}: a file of predictions is compared on a ground truth: give --ground-truth {TRUTH}")
    from hmerbench.benchmarks.report.compare import as_json_text, as_text, compare

    comparisons = compare(paths or [], results, None if split == "each" else split, every_pair)
    print(as_json_text(comparisons) if as_json else "\n".join(map(as_text, comparisons)))


@app.command(rich_help_panel=PANEL)
def errors(
    predictions: Predictions,
    ground_truth: GroundTruth,
    out: Annotated[Path, typer.Option(help="folder for the tables (CSV)")],
    captions: Captions = None,
    tokenize: Tokenize = False,
) -> None:
    """Tabulate confused symbols and relations, and rates by structure and length."""
    run(lambda: commands.errors(predictions, ground_truth, out, tokenize=tokenize, captions=captions))


@app.command(rich_help_panel=PANEL)
def editions(
    predictions: Predictions, ground_truth: GroundTruth, tokenize: Tokenize = False, as_json: AsJson = False
) -> None:
    """Score predictions under every edition and reading of the official scorer; tell which the truth follows."""
    run(lambda: commands.editions(predictions, ground_truth, tokenize=tokenize, as_json=as_json))


@app.command(
    rich_help_panel=PANEL,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]},
    add_help_option=False,
)
def lgeval(
    context: typer.Context, script: Annotated[str, typer.Argument(help="its name; none: list them")] = ""
) -> None:
    """Run a script of LgEval or convert2symLG by its own name: hmerbench lgeval evaluate …"""
    from hmerbench.evaluation.lgeval.scripts import SCRIPTS
    from hmerbench.evaluation.scoring.outcome import OWN_SCRIPTS

    if script in ("", "--help"):
        print(f"{' '.join(SCRIPTS)}\nas programs of these names: put {OWN_SCRIPTS} on the PATH")
        return
    if script not in SCRIPTS:
        raise UserError(f"no script called {script!r}: choose one of {', '.join(SCRIPTS)}")
    raise typer.Exit(SCRIPTS[script](context.args))


@scoreboard.command("score")
def score_systems(
    crohme: Annotated[Path, typer.Option(help="CROHME's data.zip")],
    systems: Annotated[Path | None, typer.Option(help="folder of the systems' predictions")] = None,
    cards: Cards = CARDS,
    results: Results = RESULTS,
) -> None:
    """Score every system at hand; write scoreboard.csv, scoreboard.md and leaderboard.json, where others' rows stay."""
    from hmerbench.evaluation.scoreboard import commands as board

    run(lambda: board.score(crohme, systems, cards, results))


@scoreboard.command()
def check(
    systems: Annotated[Path | None, typer.Option(help="folder of the systems' predictions")] = None,
    cards: Cards = CARDS,
) -> None:
    """Check every card and, of the systems at hand, the checksums of their predictions."""
    from hmerbench.evaluation.scoreboard import commands as board

    run(lambda: board.check(systems, cards))


@scoreboard.command()
def add(
    system: Annotated[str, typer.Argument(help="name of the card: lower-case letters, digits, dots and hyphens")],
    systems: Annotated[Path, typer.Option(help="folder of the systems' predictions")],
    predictions: Annotated[list[str], typer.Option(help="YEAR=FILE, once per test set")],
    name: Annotated[str, typer.Option(help="the name to show")],
    paper: Annotated[str, typer.Option(help="title and address of the paper")],
    year: Annotated[int, typer.Option(help="year of the paper")],
    url: Annotated[str, typer.Option(help="where the predictions come from")],
    license: Annotated[str, typer.Option(help='of the predictions, or "none stated"')],
    training: Annotated[str, typer.Option(help='"crohme", "more" or "test labels"')],
    trained_on: Annotated[str, typer.Option(help="the training data, in words")],
    commit: Annotated[str, typer.Option(help="of the repository there")] = "no repository",
    parameters: Annotated[str, typer.Option(help="how many, in words")] = "not stated",
    cards: Cards = CARDS,
) -> None:
    """Turn predictions into a card; the files are copied into the folder of systems."""
    from hmerbench.evaluation.scoreboard import commands as board

    said = {"name": name, "paper": paper, "year": year, "url": url, "commit": commit, "license": license}
    said |= {"training": training, "trained_on": trained_on, "parameters": parameters}
    run(lambda: board.add(system, predictions, said, systems, cards))
