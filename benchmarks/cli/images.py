"""Commands that recognize images, and that take a trained network out of the repository."""

import json
import math
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, WEIGHTS, Results, app, refuse_others
from hmerbench.benchmarks.errors import UserError, printable

PANEL, SHARING = "Images", "Sharing"

Run = Annotated[Path | None, typer.Argument(help="a run folder; default: the best committed run")]


@app.command(rich_help_panel=PANEL)
def recognize(
    images: Annotated[
        list[Path], typer.Argument(help="pictures of one expression each: PNG, JPEG, WebP, HEIC, …; or folders")
    ],
    weights: Annotated[Path | None, typer.Option(help=f"{WEIGHTS}; default: the best committed run")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="the best committed run of a smaller network")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per line: LaTeX, score, n-best")] = False,
    nbest: Annotated[int, typer.Option(min=1, help="hypotheses in the JSON output")] = 10,
    show: Annotated[bool, typer.Option("--show", help="draw the attention maps to IMAGE.attention.png")] = False,
    show_prepared: Annotated[
        bool, typer.Option("--show-prepared", help="write what the network is shown to IMAGE.prepared.png")
    ] = False,
) -> None:
    """Recognize images of expressions: one line of LaTeX per image."""
    import cv2

    from hmerbench.benchmarks.data.archive import abridged
    from hmerbench.benchmarks.files import write_atomically
    from hmerbench.benchmarks.recognition.recognizer import Recognizer, files, others, shown_of
    from hmerbench.models.files import one_line

    # before an image is read, as matplotlib may be missing; importing it takes a second
    beside = import_module("hmerbench.benchmarks.report.figures.attention").beside if show else None
    passed = [str(path) for folder in images if folder.is_dir() for path in others(folder)]
    images = [file for path in images for file in files(path) if not shown_of(file, images)]
    if passed:
        print(f"passed over, as their names are no pictures': {printable(abridged(passed))}", file=sys.stderr)
    recognizer, read, faults, began = Recognizer.load(weights, fast), 0, 0, time.perf_counter()
    for path in images:
        try:
            recognition = recognizer(path)
            read += 1
            line = f"{printable(path)}\t{recognition.latex}" if len(images) > 1 else recognition.latex
            print(json.dumps(recognition.to_dict(nbest)) if as_json else line, flush=True)
            if recognition.doubtful:
                share = math.floor(1000 * recognition.confidence) / 10  # never rounded up to the limit
                note = f"its confidence is {share:.1f} %, on a scale fitted to CROHME"
                if recognizer.calibrated:
                    note = f"of readings as uncertain as this one, {share:.1f} % are right"
                asked = "is it a cropped image of a single expression?"
                print(f"doubtful: {printable(path)}: {note}; {asked}", file=sys.stderr)
            # pictures come after what was read, which a full disk must not lose
            if show_prepared:
                shown, done = Path(f"{path}.prepared.png"), "; ".join(recognition.prepared) or "read as it is"
                write_atomically(shown, cv2.imencode(".png", recognition.ink)[1].tobytes())
                print(f"prepared: {printable(shown)} ({done})", file=sys.stderr)
            if beside:
                picture = beside(path, recognizer.attention(recognition))
                print(f"attention: {printable(picture)}", file=sys.stderr)
        except Exception as error:  # one bad image must not stop the others
            if isinstance(error, OSError) and not error.filename:  # the output is full, or its reader has seen enough
                raise
            faults += 1
            message = error if isinstance(error, UserError) else f"{path}: {one_line(error)}"
            print(f"error: {printable(message)}", file=sys.stderr)
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


@app.command(rich_help_panel=SHARING)
def export(
    context: typer.Context,
    run: Run = None,
    to: Annotated[str, typer.Option(help="onnx: a folder that onnxruntime reads with | hub: and a card")] = "onnx",
    weights: Annotated[str, typer.Option(help="how weights are stored: float32 | float16 | int8")] = "float32",
    output: Annotated[Path | None, typer.Option(help="folder; default: local/onnx/… under the results")] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="CoMER's data.zip: write results/exported.md instead, all weights beside PyTorch"),
    ] = None,
    images: Annotated[int, typer.Option(help="test images to compare, a fixed sample", min=2)] = 300,
    results: Results = RESULTS,
) -> None:
    """Write a network as ONNX, with a reader that needs numpy and onnxruntime alone."""
    from hmerbench.benchmarks.export.onnx_files import write_hub, write_onnx
    from hmerbench.benchmarks.recognition.default_weights import default_weights
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.benchmarks.runs.folder import RunFolder

    own = {"run", "compare", "images", "results"} if compare else context.params.keys() - {"images"}
    refuse_others(context, own, "--compare" if compare else "an export; --compare reads them")
    if to not in ("onnx", "hub"):
        raise UserError(f"--to '{to[:40]}': choose onnx or hub")
    run = run or default_weights()
    if (compare or to == "hub") and not run.is_dir():
        why = "a comparison tells what a run reads" if compare else "a model card tells the scores of a run"
        raise UserError(f"{run}: {why}; give its folder")
    if compare:
        from hmerbench.benchmarks.data.archive import open_archive
        from hmerbench.benchmarks.export.compare import bench_export, page

        return print(page(bench_export(open_archive(compare, trains=False), [run], results, images)))
    recognizer = Recognizer.load(run)
    config = recognizer.config
    folder = output or results / f"local/{to}/{config.recipe}-{config.preset}-seed{config.seed}-{weights}"
    if to == "hub":
        write_hub(recognizer, RunFolder(run), folder, weights)
    else:
        write_onnx(recognizer.model, config, folder, weights)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{folder}: {recognizer.name} as ONNX, {size:.1f} MB; `python {folder}/reader.py IMAGE` reads with it")


@app.command(rich_help_panel=SHARING)
def serve(
    context: typer.Context,
    run: Run = None,
    fast: Annotated[bool, typer.Option("--fast", help="the best committed run of a smaller network")] = False,
    host: Annotated[str, typer.Option(help="address to listen at; 0.0.0.0: everybody may send pictures")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0: any free one", min=0, max=65535)] = 8000,
    load: Annotated[
        int, typer.Option(help="measure it at a free port by so many requests of 32 clients: results/serving.md", min=0)
    ] = 0,
    results: Results = RESULTS,
) -> None:
    """Recognize pictures over HTTP: `curl --data-binary @formula.png localhost:8000`."""
    if load:
        from hmerbench.benchmarks.performance.serving import bench_server

        refuse_others(context, {"run", "fast", "load", "results"}, "--load")
        return print(bench_server(results, load, [*([str(run)] if run else []), *["--fast"] * fast]))
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.benchmarks.recognition.server import RecognitionServer

    recognizer, at = Recognizer.load(run, fast), f"[{host}]" if ":" in host else host
    try:
        server = RecognitionServer(recognizer, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{at}:{port}: cannot listen there ({reason}); choose another --host or --port") from None
    print(f"http://{at}:{server.server_port}/ recognizes pictures with {recognizer.name}; Ctrl-C ends it", flush=True)
    with server:
        server.serve_forever()


@app.command(rich_help_panel=SHARING)
def draw(
    context: typer.Context,
    run: Run = None,
    large: Annotated[bool, typer.Option("--large", help="the best committed run, which reads slower")] = False,
    output: Annotated[Path | None, typer.Option(help="file; default: local/draw/index.html under the results")] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="CoMER's data.zip: draw strokes of inkml/YEAR.zip beside it in Chromium; if stopped, the same command "
            "goes on: results/replayed.md"
        ),
    ] = None,
    drawings: Annotated[int, typer.Option(help="of --replay, a fixed sample", min=1)] = 200,
    results: Results = RESULTS,
) -> None:
    """Write a page to draw on, one file that reads formulas in the browser; by default with a small network."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.export.draw import make
    from hmerbench.benchmarks.recognition.recognizer import Recognizer

    if replay:
        open_archive(replay, trains=False)  # refused before a page is made
    else:
        refuse_others(context, context.params.keys() - {"drawings"}, "a page; --replay draws on it")
    recognizer, path = Recognizer.load(run, fast=not large), output or results / "local/draw/index.html"
    make.write_page(recognizer, path, results / "local/onnxruntime-web")
    print(f"{path}: reads with {recognizer.name}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if replay:
        print(make.replay(recognizer, path, replay, drawings, results / "replayed.md"))
