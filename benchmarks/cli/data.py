"""Verbs for data: CROHME, other archives, the authors' checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, AsJson, Crohme, Results, app
from benchmarks.errors import UserError

PANEL = "Data"


@app.command(rich_help_panel=PANEL)
def data(crohme: Crohme = None, results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Verify an archive and say what it holds."""
    from benchmarks.data.verify import describe
    from benchmarks.runs.workspace import open_data

    describe(open_data(crohme, results), as_json)


@app.command(rich_help_panel=PANEL)
def crohme(target: Annotated[Path, typer.Argument(help="file to write")] = Path("data/crohme.zip")) -> None:
    """Download CROHME (for research; CC BY-NC-SA 3.0)."""
    from benchmarks.data.archive import open_archive
    from benchmarks.data.download import download

    archive = open_archive(target if target.exists() else download(target))
    print(f"{archive.path}: {archive.edition}; use it with CROHME={archive.path}")


@app.command("import-weights", rich_help_panel=PANEL)
def import_weights(
    ckpt: Annotated[Path, typer.Argument(help="the authors' Lightning checkpoint (.ckpt)")],
    out: Annotated[Path, typer.Argument(help="weights file to write (.safetensors)")],
) -> None:
    """Import an authors' checkpoint; nothing in it is executed."""
    from benchmarks.files import write_atomically
    from models.lightning import import_lightning
    from models.weights import pack_weights

    if out.suffix != ".safetensors" or out.exists():
        reason = "is there already; delete it or" if out.exists() else "is not a weights file name;"
        raise UserError(f"{out}: {reason} give another name ending in .safetensors")
    model = import_lightning(ckpt)
    write_atomically(out, pack_weights(model))
    covered = model.config.cross_coverage, model.config.self_coverage
    rows = {(False, True): "comer-self", (True, False): "comer-cross", (True, True): "comer-fusion"}
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"recipe   {rows.get(covered, 'bttr or bttr-baseline')}")  # the two of BTTR differ in their training only
    print(f"network  {millions:.2f} M parameters; {model.config}")
    print(f"tensors  {len(model.state_dict())}, all that this network has: none missing, none unexpected")
    print(f"written  {out}")
