"""Commands that present results, and that measure and check the suite itself."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli import options
from hmerbench.benchmarks.cli.options import RESULTS, app, parse_list, refuse_others, refuse_unknown
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import CHECKOUT

PANEL, CHECKS = "Results", "Checks"


@app.command(rich_help_panel=PANEL)
def tables(results: options.Results = RESULTS) -> None:
    """Write results/table*, language*, TABLES.md, PROVENANCE.md, CLAIMS.md, and the tables in README.md, anew."""
    from hmerbench.benchmarks.language_models import tables as languages
    from hmerbench.benchmarks.report import summary, tables

    rows, checkout = tables.committed_rows(results), results.resolve() == CHECKOUT / "results"
    built = tables.paper_tables(rows, results)
    tables.show(built)
    paths = tables.write_tables(built, results) + languages.write_language_tables(
        languages.language_tables(results), results
    )
    paths += summary.write_summary(results, CHECKOUT / "README.md" if checkout else None, rows)
    for path in paths:
        print(path)


@app.command(rich_help_panel=PANEL)
def figures(results: options.Results = RESULTS) -> None:
    """Regenerate results/figures/*.{pdf,svg,png}."""
    from hmerbench.benchmarks.report.figures.write import figures

    for line in figures(results):
        print(line)


@app.command(rich_help_panel=PANEL)
def nested(
    mne: Annotated[Path, typer.Argument(help="MNE as an archive: `import-data --as-is` makes it")],
    crohme: Annotated[Path, typer.Option(help="CoMER's data.zip")],
    results: options.Results = RESULTS,
) -> None:
    """Score the committed predictions on nested formulas (MNE's N1, N2 and N3, by depth); write results/nested.*."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.printing import show
    from hmerbench.benchmarks.report import nested

    sets, whole = open_archive(mne, trains=False), open_archive(crohme)
    table = nested.nested_rows(whole, sets, results)
    show("nested formulas", table)
    for path in nested.write_nested(table, sets, whole, results):
        print(path)


@app.command(rich_help_panel=PANEL)
def report(
    crohme: options.Crohme = None,
    results: options.Results = RESULTS,
    attention: Annotated[
        int, typer.Option(help="attention maps for n evenly spaced and n misrecognized expressions per set", min=0)
    ] = 12,
    systems: Annotated[
        Path | None, typer.Option(help="folder of published systems' predictions, to browse them beside the runs")
    ] = None,
) -> None:
    """Write the HTML report, results/report/index.html."""
    from hmerbench.benchmarks.report.page.make import report

    if systems is not None and not systems.is_dir():
        raise UserError(f"{systems}: there is no such folder; give one that holds a folder for each system")
    path = report(crohme, results, attention, systems)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser without a server")


@app.command(rich_help_panel=CHECKS)
def doctor(
    crohme: options.Crohme = None,
    ptb: options.Ptb = None,
    results: options.Results = RESULTS,
    as_json: options.AsJson = False,
    scorer_only: Annotated[bool, typer.Option("--scorer", help="check the scorer alone, which needs no torch")] = False,
) -> None:
    """Check versions, devices, data, scorer, tracking and disk space."""
    from hmerbench.benchmarks.doctor import examine, scorer, show

    checks = list(scorer()) if scorer_only else examine(crohme, results, ptb)
    show(checks, as_json)
    if broken := [check.name for check in checks if check.status == "broken"]:
        raise UserError(f"{', '.join(broken)}: broken, but required by the main job; apply the fixes shown above")


@app.command(rich_help_panel=CHECKS)
def regress(
    context: typer.Context,
    crohme: options.Crohme = None,
    baseline: Annotated[
        Path, typer.Option(help="file to compare with; it measures the runs in reproduced/ beside it")
    ] = RESULTS / "baseline.json",
    parts: Annotated[str, typer.Option(help="parts of the fixed job: scores numerics training; default: all")] = "",
    accept: Annotated[bool, typer.Option("--update", help="make the current measurements the baseline")] = False,
    reason: Annotated[str, typer.Option(help="why the baseline changes; recorded in it")] = "",
    record: Annotated[int, typer.Option(min=0, help="update, and retrain with this many seeds (at least 2)")] = 0,
) -> None:
    """Compare a short, fixed job with results/baseline.json."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the baseline was recorded on CPUs, which every machine has
    from hmerbench.benchmarks.regression_gate.baseline import regress, update

    if record == 1:
        raise UserError("--record 1: one run has no spread; give 2 or more (the committed baseline has 20)")
    if not (accept or record):
        refuse_others(context, context.params.keys() - {"reason"}, "a comparison; give --update, too")
    if record and parts and "training" not in parse_list(parts):
        raise UserError(f"--record {record}: retrains, but --parts leaves out training; add it there")
    if accept or record:
        return update(crohme, baseline, reason, parse_list(parts), record)
    if not regress(crohme, baseline, parse_list(parts)):
        fix = "fix the cause, or accept the change with make regress-update REASON='...'"
        raise UserError(f"{baseline}: metrics differ from the baseline (see the table); {fix}")


@app.command(rich_help_panel=CHECKS)
def bench(
    only: Annotated[str, typer.Option(help="benchmark names or parts of them, separated by spaces or commas")] = "",
    repeats: Annotated[int, typer.Option(help="measurements per side", min=1)] = 5,
    results: options.Results = RESULTS,
) -> None:
    """Time the plain and fast code paths; write results/speed/."""
    from hmerbench.benchmarks.performance.bench import bench

    bench(results, parse_list(only), repeats)


@app.command(rich_help_panel=CHECKS)
def equivalence(
    recipe: options.Recipe = "comer-fusion",
    preset: options.NamedPreset = "large",
    expressions: Annotated[int, typer.Option(help="training expressions of two epochs", min=32)] = 1400,
    crohme: options.Crohme = None,
    results: options.Results = RESULTS,
) -> None:
    """Compare the ways to compute a training with what rounding does to it; write results/speed/equivalence.csv."""
    from hmerbench.benchmarks.performance.equivalence import equivalence
    from hmerbench.benchmarks.runs.workspace import open_data

    refuse_unknown([recipe], preset)
    equivalence(open_data(crohme, results), results, recipe, preset, expressions)


@app.command(rich_help_panel=CHECKS)
def trial(
    epochs: Annotated[int, typer.Option(help="epochs of the trial", min=1)],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="a changed setting, KEY=VALUE; may be repeated")
    ] = None,
    readings: Annotated[
        list[str] | None, typer.Option("--read", help="one way to read, 'KEY=VALUE …'; may be repeated")
    ] = None,
    recipe: options.Recipe = "comer-fusion",
    preset: options.NamedPreset = "medium",
    seed: Annotated[int, typer.Option(help="seed of the training", min=0)] = 7,
    crohme: options.Crohme = None,
    results: options.Results = RESULTS,
) -> None:
    """Try a change of a preset on held-out training expressions, in pairs of seeds; see results/speed/recipe.csv."""
    from hmerbench.benchmarks.performance.trial import trial
    from hmerbench.benchmarks.runs.workspace import open_data

    refuse_unknown([recipe], preset)
    trial(open_data(crohme, results), results, recipe, preset, seed, epochs, changes or [], readings or [])


@app.command(rich_help_panel=CHECKS)
def calibrate(
    crohme: Annotated[
        Path | None, typer.Option(help="CoMER's data.zip, to read pictures of; with inkml/ beside it")
    ] = None,
    heldout: Annotated[Path | None, typer.Option(help="run of `trial`, whose held-out expressions are read")] = None,
    check: Annotated[list[Path] | None, typer.Option(help="run that reads test images and others")] = None,
    sample: Annotated[int, typer.Option(help="images of every test set", min=1)] = 100,
    results: options.Results = RESULTS,
) -> None:
    """Fit the confidence of readings to held-out expressions, and check it; write results/confidence.*."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.files import write_atomically
    from hmerbench.benchmarks.performance.calibration import calibrate, page

    if crohme is None and (heldout or check):
        raise UserError("--heldout and --check read images of CROHME: give the archive with --crohme")
    rows = calibrate(results, open_archive(crohme) if crohme else None, heldout, check or [], sample)
    write_atomically(results / "confidence.md", page(rows))
    print(results / "confidence.md")


@app.command("from-ink", rich_help_panel=CHECKS)
def from_ink(
    crohme: Annotated[Path, typer.Option(help="CoMER's data.zip, with InkML in inkml/SPLIT.zip beside it")],
    weights: Annotated[Path, typer.Option(help="run that reads the images")] = (
        RESULTS / "reproduced/comer-fusion/medium-seed7"
    ),
    sample: Annotated[int, typer.Option(help="images of every test set to read", min=0)] = 100,
    results: options.Results = RESULTS,
) -> None:
    """Import CROHME from its pen strokes, compare it with the published set; write results/ink.*."""
    from hmerbench.benchmarks.performance.ink_import import from_ink

    for path in from_ink(crohme, weights, sample, results):
        print(path)
