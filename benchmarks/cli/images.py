"""Commands that recognize images."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, Results, app
from benchmarks.errors import UserError, one_line

PANEL = "Images"


@app.command(rich_help_panel=PANEL)
def recognize(
    images: Annotated[list[Path], typer.Argument(help="PNG, BMP or JPEG files, one expression each")],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="a run folder, its weights file, or a .ckpt of CoMER's authors; default: the best committed run"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON output")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention maps to IMAGE.attention.png")] = False,
) -> None:
    """Recognize images of expressions: one line of LaTeX per image."""
    from benchmarks.recognition.photographs import short
    from benchmarks.recognition.recognizer import Recognizer
    from benchmarks.report.figures.attention import beside

    recognizer, failed = Recognizer.load(weights), False
    for path in images:
        try:
            recognition = recognizer(path)
            picture = beside(path, recognizer.attention(recognition)) if show else None
        except Exception as error:  # one bad image must not stop the others
            failed = True
            told = error if isinstance(error, UserError) else f"{path}: {short(error)}"
            print(f"error: {one_line(told)}", file=sys.stderr)
            continue
        line = f"{one_line(path)}\t{recognition.latex}" if len(images) > 1 else recognition.latex
        print(recognition.as_json(nbest) if as_json else line, flush=True)
        if recognition.doubtful:
            note = f"low confidence ({recognition.nbest[0].confidence:.0%} per token)"
            print(f"doubtful: {one_line(path)}: {note}; is it a cropped image of a single expression?", file=sys.stderr)
        if picture:
            print(f"attention: {one_line(picture)}", file=sys.stderr)
    if failed:
        sys.exit(1)


@app.command(rich_help_panel=PANEL)
def attention(
    ids: Annotated[
        list[str] | None, typer.Argument(help="IDs of expressions in the archive; default: two selected ones")
    ] = None,
    crohme: Annotated[Path | None, typer.Option(help="CoMER's data.zip; default: typeset expressions")] = None,
    weights: Annotated[Path | None, typer.Option(help="a run folder; default: the best committed run")] = None,
    results: Results = RESULTS,
) -> None:
    """Draw Fig. 4: attention and refinement term, step by step."""
    from benchmarks.report.figures.attention import figure4

    if ids and crohme is None:
        raise UserError(f"'{ids[0]}' is an expression of an archive: give the archive with --crohme")
    for path in figure4(results, crohme, ids or (), weights):
        print(path)
