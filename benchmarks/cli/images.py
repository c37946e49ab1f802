"""Verbs that read images."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import RESULTS, Results, app
from benchmarks.errors import UserError

if TYPE_CHECKING:
    pass

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
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention to IMAGE.attention.png")] = False,
) -> None:
    """Read images of expressions: LaTeX, one line per image."""
    from benchmarks.cli.recognize import recognize

    if recognize(images, weights, as_json=as_json, nbest=nbest, show=show):
        sys.exit(1)  # what failed has been said


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
