"""The program, and the options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.config import SEED_LIMIT
from benchmarks.errors import UserError

app = typer.Typer(
    help="hmerbench: a reproducibility benchmark suite for handwritten mathematical expression recognition.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ROWS = "bttr bttr-baseline comer-self comer-cross comer-fusion"

Crohme = Annotated[Path | None, typer.Option(help="CoMER's data.zip, or it unpacked; default: the embedded set")]
Results = Annotated[Path, typer.Option(help="folder of runs and tables", envvar="HMERBENCH_RESULTS")]
Preset = Annotated[
    str,
    typer.Option(
        help="smoke | brief | laptop | ink | whole | hour | paper | fast | a YAML file; without: smoke, on a GPU fast"
    ),
]
Years = Annotated[str, typer.Option(help="test sets, all where left out")]
Recipe = Annotated[str, typer.Option(help=f"{ROWS.replace(' ', ' | ')}, or a YAML file")]
Seed = Annotated[int, typer.Option(help="the run's seed", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="print it as JSON")]
Force = Annotated[bool, typer.Option("--force", help="train again what is trained already")]
EngineName = Annotated[str, typer.Option("--engine", help="local: this machine | ray: a Ray cluster (RAY_ADDRESS)")]
Jobs = Annotated[int, typer.Option(help="runs side by side (engine local), a share of the cores each", min=1)]
Cpus = Annotated[float, typer.Option(help="CPUs per run (engine ray)", min=0)]
Gpus = Annotated[float | None, typer.Option(help="GPUs a run gets (engine ray); else one where there are any", min=0)]
CHECKOUT = Path(__file__).resolve().parents[2]
# the project's, wherever one stands; installed without a checkout, the one of the working directory
RESULTS = CHECKOUT / "results" if (CHECKOUT / "pyproject.toml").exists() and Path.cwd() != CHECKOUT else Path("results")


def words(text: str) -> list[str]:
    """What an option holds, separated by spaces or commas."""
    return text.replace(",", " ").split()


def seed_of(word: str) -> int:
    """A seed as a number. Raises UserError for anything but a whole number from 0 that torch takes."""
    if not word.isdecimal() or len(word) > 20 or int(word) >= SEED_LIMIT:  # int refuses very long ones
        raise UserError(f"'{word[:40]}' is not a seed: give whole numbers from 0 below 2**64, as in SEEDS='7 8 9'")
    return int(word)
