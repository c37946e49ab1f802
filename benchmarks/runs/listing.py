"""Listing of recipes, and of runs with their progress. Imports no torch, so that it is fast."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.resolve import SHIPPED, names
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.yaml_files import read_yaml

STAGES = ("damaged", "untrained", "training", "trained", "recognized", "scored")


@dataclass(frozen=True)
class Listed:
    """A run folder. `status` is one of STAGES; `words` gives details."""

    folder: str
    data: str
    recipe: str
    preset: str
    seed: int | None
    status: str
    words: str


def shipped(kind: str, key: str = "description") -> dict[str, str]:
    """What each recipe or preset says of itself, by name."""
    return {name: str(read_yaml(SHIPPED / kind / f"{name}.yaml").get(key, "")) for name in names(kind)}


def roots(results: Path) -> list[Path]:
    """Folders of reproduced runs, of runs on CROHME, and of those on other data."""
    return [results / "reproduced", results / "runs", *sorted(results.glob("local/*/runs"))]


def runs(results: Path) -> list[Listed]:
    """Reproduced runs, then runs on CROHME, then runs on other data."""
    listed = []
    for run in RunFolder.under(*roots(results)):
        identity = "", run.path.parent.name, "", None
        try:
            identity = run.data, run.recipe, run.preset, run.seed
            status, words = _status(run)
        except UserError as error:
            status, words = "damaged", str(error)
        listed.append(Listed(str(run.path), *identity, status, words))
    return listed


def _status(run: RunFolder) -> tuple[str, str]:
    """Status and details of a run. As in `reproduce`, files made from other contents of their sources do not count."""
    state, epochs = run.state, run.settings.training.epochs
    if state is None:  # not begun, or committed, without a checkpoint
        return ("scored", _rates(run, list(run.scores))) if run.scores else ("untrained", "")
    if not run.trained:
        return "training", f"{state['epoch']} of {counted(epochs, 'epoch')}"
    recognized = [split for split in run.sets("predictions/*.tsv") if run.recognized(split)]
    scored = [split for split in recognized if run.scored(split)]
    if scored:
        rest = [split for split in recognized if split not in scored]
        return "scored", _rates(run, scored) + (f"; {', '.join(rest)} not scored" if rest else "")
    return ("recognized", ", ".join(recognized)) if recognized else ("trained", counted(epochs, "epoch"))


def _rates(run: RunFolder, splits: Sequence[str]) -> str:
    return ", ".join(f"{split} {run.scores[split].exprate:.2f}" for split in splits)


def lines(results: Path) -> Iterator[str]:
    """The listing as lines of text."""
    yield "recipes"
    for name, comment in shipped("recipes").items():
        yield f"  {name:<25}{comment}"
    listed = runs(results)
    yield f"runs under {results}" if listed else f"no runs under {results}"
    for run in listed:
        data = "" if run.data == "crohme" else f"  [{run.data.upper() or 'unknown data'}]"
        yield f"  {run.folder}: {run.status} {run.words}".rstrip() + data
