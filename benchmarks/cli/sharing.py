"""Commands that take a trained network out of the repository."""

from pathlib import Path
from typing import Annotated

import typer

from hmerbench.benchmarks.cli.options import RESULTS, Results, app
from hmerbench.benchmarks.errors import UserError

PANEL = "Sharing"

Run = Annotated[Path | None, typer.Argument(help="a run folder; default: the best committed run")]


@app.command(rich_help_panel=PANEL)
def export(
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
    from hmerbench.benchmarks.export.hub import write_hub
    from hmerbench.benchmarks.export.onnx_files import write_onnx
    from hmerbench.benchmarks.recognition.default_weights import default_weights
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.benchmarks.runs.folder import RunFolder

    if to not in ("onnx", "hub"):
        raise UserError(f"--to '{to[:40]}': choose onnx or hub")
    run = run or default_weights()
    if compare:
        from hmerbench.benchmarks.data.archive import open_archive
        from hmerbench.benchmarks.export.compare import bench_export, page

        return print(page(bench_export(open_archive(compare), [run], results, images)))
    if to == "hub" and not run.is_dir():
        raise UserError(f"{run}: a model card tells the scores of a run; give its folder")
    recognizer = Recognizer.load(run)
    config = recognizer.config
    folder = output or results / f"local/{to}/{config.recipe}-{config.preset}-seed{config.seed}-{weights}"
    if to == "hub":
        write_hub(recognizer, RunFolder(run), folder, weights)
    else:
        write_onnx(recognizer.model, config, folder, weights)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{folder}: {recognizer.name} as ONNX, {size:.1f} MB; `python {folder}/reader.py IMAGE` reads with it")


@app.command(rich_help_panel=PANEL)
def serve(
    run: Run = None,
    fast: Annotated[bool, typer.Option("--fast", help="the best committed run of a smaller network")] = False,
    host: Annotated[str, typer.Option(help="address to listen at; 0.0.0.0: everybody may send pictures")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port; 0: any free one", min=0, max=65535)] = 8000,
    load: Annotated[
        int, typer.Option(help="measure it instead with so many requests of 32 clients: results/serving.md", min=0)
    ] = 0,
    results: Results = RESULTS,
) -> None:
    """Recognize pictures over HTTP: `curl --data-binary @formula.png localhost:8000`."""
    if load:
        from hmerbench.benchmarks.performance.serving import bench_server

        return print(bench_server(results, load, [*([str(run)] if run else []), *["--fast"] * fast]))
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.benchmarks.recognition.server import RecognitionServer

    recognizer = Recognizer.load(run, fast)
    try:
        server = RecognitionServer(recognizer, host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{host}:{port}: cannot listen there ({reason}); choose another --host or --port") from None
    print(f"http://{host}:{server.server_port}/ recognizes pictures with {recognizer.name}; Ctrl-C ends it", flush=True)
    with server:
        server.serve_forever()


@app.command(rich_help_panel=PANEL)
def draw(
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
    drawings: Annotated[int, typer.Option(help="to replay, a fixed sample", min=1)] = 200,
    results: Results = RESULTS,
) -> None:
    """Write a page to draw on, one file that reads formulas in the browser; by default with a small network."""
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.export.draw.make import write_page
    from hmerbench.benchmarks.recognition.recognizer import Recognizer

    if replay:
        open_archive(replay)  # refused before a page is made
    recognizer, path = Recognizer.load(run, fast=not large), output or results / "local/draw/index.html"
    write_page(recognizer, path, results / "local/onnxruntime-web")
    print(f"{path}: reads with {recognizer.name}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if replay:
        from hmerbench.benchmarks.export.draw import replay as replaying

        print(replaying.replay(recognizer, path, replay, drawings, results / "replayed.md"))
