"""Commands that present results."""

from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, Crohme, Results, app
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import CHECKOUT

PANEL = "Results"


@app.command(rich_help_panel=PANEL)
def tables(results: Results = RESULTS) -> None:
    """Regenerate results/table*, results/language*, results/TABLES.md and the table in README.md."""
    from hmerbench.benchmarks.language_models import tables as languages
    from hmerbench.benchmarks.report import summary, tables

    built, checkout = tables.committed(results), results.resolve() == CHECKOUT / "results"
    tables.show(built)
    paths = tables.write_tables(built, results) + languages.write_language_tables(
        languages.language_tables(results), results
    )
    paths += summary.write_summary(results, CHECKOUT / "README.md" if checkout else None)
    for path in paths:
        print(path)


@app.command(rich_help_panel=PANEL)
def figures(results: Results = RESULTS) -> None:
    """Regenerate results/figures/*.{pdf,svg,png}."""
    from hmerbench.benchmarks.report.figures.write import figures

    for line in figures(results):
        print(line)


@app.command(rich_help_panel=PANEL)
def nested(
    mne: Annotated[Path, typer.Argument(help="MNE as an archive: `import-data --as-is` makes it")],
    crohme: Annotated[Path, typer.Option(help="CoMER's data.zip")],
    results: Results = RESULTS,
) -> None:
    """Score the committed predictions on nested formulas (MNE's N1, N2 and N3, by depth); write results/nested.*."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.printing import show
    from hmerbench.benchmarks.report import nested

    sets = open_archive(mne, trains=False)
    table = nested.nested_rows(open_archive(crohme), sets, results)
    show("nested formulas", table)
    for path in nested.write_nested(table, {name: len(sets.captions(name)) for name in sets.splits}, results):
        print(path)


@app.command(rich_help_panel=PANEL)
def report(
    crohme: Crohme = None,
    results: Results = RESULTS,
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
