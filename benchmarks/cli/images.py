"""Commands that recognize images."""

import math
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, Results, app
from hmerbench.benchmarks.errors import UserError, printable

PANEL = "Images"


@app.command(rich_help_panel=PANEL)
def recognize(
    images: Annotated[
        list[Path], typer.Argument(help="pictures of one expression each: PNG, JPEG, WebP, HEIC, …; or folders")
    ],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="a run folder, its weights file, or a .ckpt of CoMER's authors; default: the best committed run"
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="the best committed run of a smaller network")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON output")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention maps to IMAGE.attention.png")] = False,
    show_prepared: Annotated[
        bool, typer.Option("--show-prepared", help="write what the network is shown to IMAGE.prepared.png")
    ] = False,
) -> None:
    """Recognize images of expressions: one line of LaTeX per image."""
    from PIL import Image

    from hmerbench.benchmarks.recognition.pictures_given import files
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.models.files import one_line

    images = [file for path in images for file in files(path)]
    recognizer, read, faults, began = Recognizer.load(weights, fast), 0, 0, time.perf_counter()
    for path in images:
        try:
            recognition = recognizer(path)
            read += 1
            line = f"{printable(path)}\t{recognition.latex}" if len(images) > 1 else recognition.latex
            print(recognition.as_json(nbest) if as_json else line, flush=True)
            if recognition.doubtful:
                share = math.floor(1000 * recognition.confidence) / 10  # never rounded up to the limit
                note = f"of readings as uncertain as this one, {share:.1f} % are right"
                asked = "is it a cropped image of a single expression?"
                print(f"doubtful: {printable(path)}: {note}; {asked}", file=sys.stderr)
            # pictures come after what was read, which a full disk must not lose
            if show_prepared:
                shown, done = Path(f"{path}.prepared.png"), "; ".join(recognition.prepared) or "read as it is"
                Image.fromarray(recognition.ink).save(shown)
                print(f"prepared: {printable(shown)} ({done})", file=sys.stderr)
            if show:
                from hmerbench.benchmarks.report.figures.attention import beside  # importing matplotlib takes a second

                picture = beside(path, recognizer.attention(recognition))
                print(f"attention: {printable(picture)}", file=sys.stderr)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            raise
        except Exception as error:  # one bad image must not stop the others
            faults += 1
            told = error if isinstance(error, UserError) else f"{path}: {one_line(error)}"
            print(f"error: {printable(told)}", file=sys.stderr)
    if read:
        each = (time.perf_counter() - began) / read
        print(f"read {read} of {len(images)} by {recognizer.name}, {each:.2f} s each", file=sys.stderr)
    if faults:
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
    from hmerbench.benchmarks.report.figures.attention import figure4

    if ids and crohme is None:
        raise UserError(f"'{ids[0]}' is an expression of an archive: give the archive with --crohme")
    for path in figure4(results, crohme, ids or (), weights):
        print(path)
