"""The Typer app and the options shared by several commands."""

import os
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hmerbench.benchmarks.config import SEED_LIMIT
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import CHECKOUT, suite_version
from hmerbench.benchmarks.report.paper import ORDER
from hmerbench.benchmarks.resolve import PRESETS, read_named
from hmerbench.benchmarks.runtime import GRAPHS, WORKERS
from hmerbench.renamed import renamed


class Commands(TyperGroup):
    """The commands, which know what those of before are called now."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (now := renamed(args[0])):
            raise UserError(now)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    help="hmerbench: a reproducibility benchmark suite for handwritten mathematical expression recognition.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"hmerbench {suite_version()}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None: ...


WEIGHTS = "a run folder, its weights file, or a .ckpt of CoMER's authors"
ROWS = " ".join(ORDER)

Crohme = Annotated[
    Path | None,
    typer.Option(
        help="CoMER's data.zip, or data of your own laid out like it, packed or unpacked; default: the embedded set"
    ),
]
Ptb = Annotated[
    Path | None, typer.Option(help="folder of train.txt, valid.txt, test.txt; default: LaTeX of training captions")
]
Results = Annotated[Path, typer.Option(help="folder of runs and tables", envvar="HMERBENCH_RESULTS")]
PRESET = f"{' | '.join(PRESETS)} | YAML file; empty: {PRESETS[0]}, or on a GPU large (small without pen strokes)"
Preset = Annotated[str, typer.Option(help=PRESET)]
NamedPreset = Annotated[str, typer.Option(help="a preset, or a YAML file")]
Years = Annotated[str, typer.Option(help="test sets, separated by spaces or commas; default: all")]
Recipe = Annotated[str, typer.Option(help=f"{ROWS.replace(' ', ' | ')}, another one that `ls` lists, or a YAML file")]
Seed = Annotated[int, typer.Option(help="random seed", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Force = Annotated[bool, typer.Option("--force", help="retrain runs that are already trained")]
EngineName = Annotated[str, typer.Option("--engine", help="local: this machine | ray: a Ray cluster (RAY_ADDRESS)")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="concurrent runs (engine local), on equal shares of the cores, also where fewer are left, so that weights "
        "are the same bit for bit; default: as many as fill a GPU",
        min=1,
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="processes that prepare a run's batches; default: by the device", min=0, max=4096)
]
Graphs = Annotated[
    bool | None, typer.Option("--graphs/--no-graphs", help="record steps as CUDA graphs; default: on a GPU")
]
Cpus = Annotated[float, typer.Option(help="CPUs per run (engine ray)", min=0)]
Gpus = Annotated[float | None, typer.Option(help="GPUs per run (engine ray); default: 1 if the cluster has any", min=0)]
# the checkout's results/ from any working directory; without a checkout, results/ in the working directory
RESULTS = CHECKOUT / "results" if (CHECKOUT / "pyproject.toml").exists() and Path.cwd() != CHECKOUT else Path("results")


def compute_with(workers: int | None, graphs: bool | None) -> None:
    """Let this process and those that it starts compute as these options say, where they say anything."""
    for name, value in ((WORKERS, workers), (GRAPHS, graphs)):
        if value is not None:
            os.environ[name] = str(int(value))


def parse_list(text: str) -> list[str]:
    """Split an option's value at spaces and commas that are not between quotes; what is named twice counts once."""
    words = shlex.shlex(text, posix=True)
    words.whitespace += ","
    words.whitespace_split, words.commenters, words.escape = True, "", ""
    try:
        return list(dict.fromkeys(words))
    except ValueError:
        raise UserError(f"{text!r}: a quotation mark without its partner; close it") from None


def refuse_others(context: typer.Context, own: Collection[str], form: str) -> None:
    """Raise UserError for options that were given but do not apply to this form of the command."""
    source = context.get_parameter_source
    given = [name for name in context.params if name not in own and getattr(source(name), "name", "") == "COMMANDLINE"]
    if given:
        option = next(option for option in context.command.params if option.name == given[0])
        raise UserError(f"{option.opts[0]}: does not go with {form}")


def refuse_unknown(recipes: Iterable[str], preset: str) -> None:
    """Raise UserError for a misspelt recipe or preset, and for what no file may set, before any data is made."""
    for kind, name in (*(("recipes", recipe) for recipe in recipes), ("presets", preset)):
        read_named(kind, name)


def parse_seeds(text: str) -> list[int]:
    """The seeds in an option's value. Raises UserError for other than whole numbers below 2**64, torch's limit."""
    for word in (words := parse_list(text)):
        if not word.isdecimal() or len(word) > 20 or int(word) >= SEED_LIMIT:  # int() rejects very long strings
            raise UserError(f"'{word[:40]}' is not a seed: give whole numbers from 0 below 2**64, as in SEEDS='7 8 9'")
    return list(map(int, words))
