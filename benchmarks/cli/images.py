"""Verbs that read images."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, Results, app
from benchmarks.errors import UserError

PANEL = "Images"


@app.command(rich_help_panel=PANEL)
def recognize(
    images: Annotated[list[Path], typer.Argument(help="PNG, BMP or JPEG files, one expression each")],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="a run folder, the weights file in one, or a .ckpt of CoMER's authors; else the best of ours"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention to IMAGE.attention.png")] = False,
) -> None:
    """Read images of expressions: LaTeX, one line per image."""
    from benchmarks.recognition.photographs import short
    from benchmarks.recognition.recognizer import Recognizer

    recognizer, failed = Recognizer.load(weights), False
    for path in images:
        try:
            found = recognizer(path)
            named = f"{path}\t{found.latex}" if len(images) > 1 else found.latex
            print(found.as_json(nbest) if as_json else named, flush=True)
            if found.doubtful:
                note = "read with little confidence; is it a cropped picture of a single expression?"
                print(f"doubtful: {path}: {note} ({found.nbest[0].confidence:.0%} a token)", file=sys.stderr)
            if show:
                from benchmarks.report.figures.attention import beside

                print(f"attention: {beside(path, recognizer.attention(found))}", file=sys.stderr)
        except Exception as error:  # what is wrong with one image is no reason to leave the others unread
            failed = True
            print(f"error: {error if isinstance(error, UserError) else f'{path}: {short(error)}'}", file=sys.stderr)
    if failed:
        sys.exit(1)


@app.command(rich_help_panel=PANEL)
def attention(
    ids: Annotated[
        list[str] | None, typer.Argument(help="expressions of the archive; two chosen ones if left out")
    ] = None,
    crohme: Annotated[Path | None, typer.Option(help="CoMER's data.zip; else typeset expressions are drawn")] = None,
    weights: Annotated[Path | None, typer.Option(help="a run folder; else the best of the committed ones")] = None,
    results: Results = RESULTS,
) -> None:
    """Draw Fig. 4: attention and refinement, step by step."""
    from benchmarks.report.figures.attention import figure4

    if ids and crohme is None:
        raise UserError(f"'{ids[0]}' is an expression of an archive: give that with --crohme")
    for path in figure4(results, crohme, ids or (), weights):
        print(path)
