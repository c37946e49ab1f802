"""What there is: recipes, presets, and the runs with how far they are. Loads no torch, so that it is quick."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.config import SHIPPED, names
from benchmarks.errors import UserError
from benchmarks.runs.folder import RunFolder

STAGES = ("damaged", "untrained", "training", "trained", "recognized", "scored")


@dataclass(frozen=True)
class Listed:
    """A run folder. `status` is one of STAGES; `words` says more of it."""

    folder: str
    data: str
    recipe: str
    preset: str
    seed: int | None
    status: str
    words: str


def shipped(kind: str) -> dict[str, str]:
    """Recipes or presets by name, with the comment each begins with."""
    found = {}
    for name in names(kind):
        lines = (SHIPPED / kind / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comment = [line.lstrip("# ") for line in lines if line.startswith("#")]
        found[name] = " ".join(comment).split(". ")[0].rstrip(".")
    return found


def runs(results: Path) -> list[Listed]:
    """Reproduced runs, runs on CROHME, and those on other data."""
    roots = [results / "reproduced", results / "runs", *sorted(results.glob("local/*/runs"))]
    found = []
    for run in RunFolder.under(*roots):
        names = "", run.path.parent.name, "", None
        try:
            names = run.data, run.recipe, run.preset, run.seed
            status, words = _status(run)
        except UserError as error:
            status, words = "damaged", str(error)
        found.append(Listed(str(run.path), *names, status, words))
    return found


def _status(run: RunFolder) -> tuple[str, str]:
    """How far a run is. As in `reproduce`, files older than those they are made from do not count; but a committed run
    has no checkpoint, and git keeps no times."""
    state, epochs = run.state, run.config.get("training", {}).get("epochs", "?")
    if state is None:
        return ("scored", _rates(run, list(run.scores))) if run.scores else ("untrained", "")
    if not run.trained:
        return "training", f"at epoch {state['epoch']} of {epochs}"
    found = [split for split in run.sets("predictions/*.zip") if run.recognized(split)]
    scored = [split for split in found if run.scored(split)]
    if scored:
        rest = [split for split in found if split not in scored]
        return "scored", _rates(run, scored) + (f"; {', '.join(rest)} not scored" if rest else "")
    return ("recognized", ", ".join(found)) if found else ("trained", f"{epochs} epochs")


def _rates(run: RunFolder, splits: Sequence[str]) -> str:
    return ", ".join(f"{split} {run.scores[split].exprate:.2f}" for split in splits)


def lines(results: Path) -> Iterator[str]:
    """The list as people read it."""
    for kind in ("recipes", "presets"):
        yield kind
        for name, comment in shipped(kind).items():
            yield f"  {name:<15}{comment}"
    found = runs(results)
    yield f"runs under {results}" if found else f"no runs under {results}"
    for run in found:
        data = "" if run.data == "crohme" else f"  [{run.data.upper() or 'unknown data'}]"
        yield f"  {run.folder}: {run.status} {run.words}".rstrip() + data
