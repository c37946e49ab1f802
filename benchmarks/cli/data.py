"""Commands for data: CROHME and other archives."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from hmerbench.benchmarks.cli.options import RESULTS, AsJson, Crohme, Results, app
from hmerbench.benchmarks.errors import UserError

PANEL = "Data"


@app.command(rich_help_panel=PANEL)
def data(
    crohme: Crohme = None,
    results: Results = RESULTS,
    as_json: AsJson = False,
    croissant: Annotated[Path | None, typer.Option(help="write it as Croissant metadata, too (FILE.json)")] = None,
) -> None:
    """Verify an archive and show its passport: contents, conventions, and what its splits share."""
    import json

    from hmerbench.benchmarks.data.croissant import check, write
    from hmerbench.benchmarks.data.passport import describe, passport
    from hmerbench.benchmarks.printing import err_console
    from hmerbench.benchmarks.runs.workspace import open_data

    archive = open_data(crohme, results, trains=False)
    if croissant:
        check(archive.path, croissant)
    report = passport(archive)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        describe(report)
    if croissant:
        err_console.print(write(report, archive.path, croissant))


@app.command(rich_help_panel=PANEL)
def crohme(target: Annotated[Path, typer.Argument(help="file to write")] = Path("data/crohme.zip")) -> None:
    """Download CROHME (research use only, CC BY-NC-SA 3.0)."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.files import download
    from hmerbench.evaluation.datasets import crohme

    known = crohme()
    archive = open_archive(target if target.exists() else download(target, str(known.url), known.git_blob))
    print(f"{archive.path}: {archive.edition}; use it with CROHME={quote(str(archive.path))}")


@app.command(rich_help_panel=PANEL)
def import_data(
    source: Annotated[Path, typer.Argument(help="a folder, a zip, or a file of captions beside its images")],
    target: Annotated[Path, typer.Argument(help="the archive to write, OUT.zip")],
    limits: Annotated[
        Literal["keep", "add", "drop"],
        typer.Option(help="add: every \\sum _ becomes \\sum \\limits _, as CROHME has it; drop: the reverse"),
    ] = "keep",
    as_is: Annotated[
        bool, typer.Option("--as-is", help="change neither captions nor images, which must be white on black")
    ] = False,
    split: Annotated[str, typer.Option(help="the split of everything; default: as the source tells")] = "",
    split_list: Annotated[Path | None, typer.Option(help="a file of lines `ID SPLIT`")] = None,
    test_share: Annotated[float, typer.Option(help="share to hold out as a test set, by writer or formula")] = 0.0,
    seed: Annotated[int, typer.Option(help="of the share held out", min=0)] = 7,
    force: Annotated[bool, typer.Option("--force", help="replace an archive of this name")] = False,
) -> None:
    """Make an archive of images and captions, or of InkML, in any of several layouts."""
    from hmerbench.benchmarks.data.importing.source import Choice, listed
    from hmerbench.benchmarks.data.importing.write import import_data

    if target.suffix != ".zip" or not target.parent.is_dir():
        raise UserError(f"{target}: must be a .zip in a folder that is there")
    if target.exists() and not force:
        raise UserError(f"{target}: is there already; --force replaces it")
    if split and split_list:
        raise UserError("--split puts everything into one split, --split-list says what into which; leave one out")
    if as_is and limits != "keep":
        raise UserError(f"--limits {limits} changes captions, --as-is changes none; leave one of them out")
    lines = listed(split_list) if split_list else ()
    import_data(source, target, Choice(split, lines, test_share, seed), limits, tidy=not as_is)
