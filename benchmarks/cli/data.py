"""Commands for data: CROHME and other archives."""

from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, AsJson, Crohme, Results, app

PANEL = "Data"


@app.command(rich_help_panel=PANEL)
def data(crohme: Crohme = None, results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Verify an archive and describe its contents."""
    from hmerbench.benchmarks.data.verify import describe
    from hmerbench.benchmarks.runs.workspace import open_data

    describe(open_data(crohme, results, trains=False), as_json)


@app.command(rich_help_panel=PANEL)
def crohme(target: Annotated[Path, typer.Argument(help="file to write")] = Path("data/crohme.zip")) -> None:
    """Download CROHME (research use only, CC BY-NC-SA 3.0)."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.data.download import download

    archive = open_archive(target if target.exists() else download(target))
    print(f"{archive.path}: {archive.edition}; use it with CROHME={archive.path}")
