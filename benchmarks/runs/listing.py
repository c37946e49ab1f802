"""Runs of either kind, recipes, and their listing. Imports no torch, so that it is fast."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.language_settings import RECIPES
from hmerbench.benchmarks.resolve import SHIPPED, names
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.strict_files import read_yaml

AnyRun = RunFolder | LanguageRun
KINDS = (RunFolder, LanguageRun)  # told apart by the file of their settings


def shipped(kind: str, key: str = "description") -> dict[str, str]:
    """What each recipe or preset says of itself, by name."""
    return {name: str(read_yaml(SHIPPED / kind / f"{name}.yaml").get(key, "")) for name in names(kind)}


def run_in(folder: Path) -> AnyRun:
    """The run in a folder. Without settings it counts as a recognizer's, whose reading says what is missing."""
    return next((kind for kind in KINDS if (folder / kind.FILE).exists()), RunFolder)(folder)


def forget_trainings(runs: Sequence[AnyRun]) -> None:
    """Make the next training of each start afresh; what earlier ones made stays until newer files replace it. Raises
    UserError, and forgets none, if one cannot be trained or another process works in its folder."""
    with ExitStack() as locks:
        for run in runs:
            run.refuse_training()
            locks.enter_context(locked(run.path))
        for run in runs:
            for name in run.PROGRESS:
                (run.path / name).unlink(missing_ok=True)
            run.write("history.jsonl", [])  # an empty one keeps another run's weights from being reused


def runs(results: Path, kind: type[AnyRun] = RunFolder) -> list[dict[str, Any]]:
    """Reproduced runs, then runs made here on CROHME or another text of the papers, then runs on other data: `folder`,
    `data`, `recipe`, `preset`, `seed`, `status` (damaged, untrained, training, trained, recognized, scored; of a
    language model, tested) and `words`, its details."""
    listed = []
    for run in kind.under(results / "reproduced", results / "runs", *sorted(results.glob("local/*/runs"))):
        found: dict[str, Any] = {"data": "", "recipe": run.path.parent.name, "preset": "", "seed": None}
        try:
            found = {"data": run.data, "recipe": run.recipe, "preset": run.preset, "seed": run.seed}
            status, words = run.status
        except UserError as error:
            status, words = "damaged", str(error)
        listed.append({"folder": str(run.path), **found, "status": status, "words": words})
    return listed


def lines(results: Path) -> Iterator[str]:
    """Recipes with what they are, and runs with their progress, one a line."""
    for title, kind in {"recipes": "recipes", "recipes of language models (make reproduce-lm)": RECIPES}.items():
        yield title
        yield from (f"  {name:<25}{comment}" for name, comment in shipped(kind).items())
    listed = [run for kind in KINDS for run in runs(results, kind)]
    yield f"runs under {results}" if listed else f"no runs under {results}"
    for run in listed:
        data = "" if run["data"] in ("crohme", "ptb") else f"  [{run['data'].upper() or 'unknown data'}]"
        yield f"  {run['folder']}: {run['status']} {run['words']}".rstrip() + data
