"""Commands for data: CROHME, other archives, the authors' checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import RESULTS, AsJson, Crohme, Results, app
from benchmarks.errors import UserError

PANEL = "Data"


@app.command(rich_help_panel=PANEL)
def data(crohme: Crohme = None, results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Verify an archive and describe its contents."""
    from benchmarks.data.verify import describe
    from benchmarks.runs.workspace import open_data

    describe(open_data(crohme, results, trains=False), as_json)


@app.command(rich_help_panel=PANEL)
def crohme(target: Annotated[Path, typer.Argument(help="file to write")] = Path("data/crohme.zip")) -> None:
    """Download CROHME (research use only, CC BY-NC-SA 3.0)."""
    from benchmarks.data.archive import open_archive
    from benchmarks.data.download import download

    archive = open_archive(target if target.exists() else download(target))
    print(f"{archive.path}: {archive.edition}; use it with CROHME={archive.path}")


@app.command("import-weights", rich_help_panel=PANEL)
def import_weights(
    ckpt: Annotated[Path, typer.Argument(help="the authors' Lightning checkpoint (.ckpt)")],
    out: Annotated[Path, typer.Argument(help="weights file to write (.safetensors)")],
) -> None:
    """Convert an authors' checkpoint without executing its code."""
    from benchmarks.files import write_atomically
    from models.authors_checkpoint import import_lightning
    from models.weights import pack_weights

    if out.suffix != ".safetensors" or out.exists():
        reason = "is there already; delete it or" if out.exists() else "is not a weights file name;"
        raise UserError(f"{out}: {reason} give another name ending in .safetensors")
    model = import_lightning(ckpt)
    write_atomically(out, pack_weights(model))
    recipes = {(False, True): "comer-self", (True, False): "comer-cross", (True, True): "comer-fusion"}
    coverage = model.settings.cross_coverage, model.settings.self_coverage
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"recipe   {recipes.get(coverage, 'bttr or bttr-baseline')}")  # these two differ only in augmentation
    print(f"network  {millions:.2f} M parameters; {model.settings}")
    print(f"tensors  {len(model.state_dict())}, all tensors of this network: none missing, none unexpected")
    print(f"written  {out}")
