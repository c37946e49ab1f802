"""What there is: recipes, presets, and the runs with how far they are. Reads files alone, so that it is quick."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

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
    for path in sorted(resources.files("benchmarks").joinpath(kind).iterdir(), key=lambda path: path.name):
        if path.name.endswith(".yaml"):
            lines = path.read_text(encoding="utf-8").splitlines()
            comment = [line.lstrip("# ") for line in lines if line.startswith("#")]
            found[path.name[:-5]] = " ".join(comment).split(". ")[0].rstrip(".")
    return found


def runs(results: Path) -> list[Listed]:
    """Reference runs, runs on CROHME, and those on other data."""
    roots = [results / "reproduced", results / "runs", *sorted(results.glob("local/*/runs"))]
    return [_listed(path.parent) for root in roots for path in sorted(root.glob("*/*/config.yaml"))]


def _listed(folder: Path) -> Listed:
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        names = config["data"]["name"], config["recipe"], config["preset"], int(config["seed"])
        status, words = _status(folder, int(config["training"]["epochs"]))
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        names, status, words = ("", folder.parent.name, "", None), "damaged", "config.yaml or checkpoint.json"
    return Listed(str(folder), *names, status, words)


def _status(folder: Path, epochs: int) -> tuple[str, str]:
    """How far a run is. As in `reproduce`, files older than those they are made from do not count; but a committed run
    has no checkpoint, and git keeps no times."""
    scores = {path.stem: path for path in sorted(folder.glob("scores/*.json"))}
    state = _state(folder)
    if state is None and scores:
        return "scored", _scores(scores)
    best = folder / "best.safetensors"
    if state is None or not (state["finished"] and best.exists()):
        epoch = 0 if state is None else int(state["epoch"])
        return ("training", f"at epoch {epoch} of {epochs}") if state is not None else ("untrained", "")
    found = {path.stem: path for path in sorted(folder.glob("predictions/*.zip")) if _newer(path, best)}
    scored = {split: path for split, path in scores.items() if split in found and _newer(path, found[split])}
    if scored:
        rest = [split for split in found if split not in scored]
        return "scored", _scores(scored) + (f"; {', '.join(rest)} not scored" if rest else "")
    return ("recognized", ", ".join(found)) if found else ("trained", f"{epochs} epochs")


def _state(folder: Path) -> dict[str, Any] | None:
    path = folder / "checkpoint.json"
    return json.loads(path.read_text()) if path.exists() else None


def _newer(path: Path, source: Path) -> bool:
    return path.stat().st_mtime_ns >= source.stat().st_mtime_ns


def _scores(scores: dict[str, Path]) -> str:
    return ", ".join(f"{split} {json.loads(path.read_text())['exprate']:.2f}" for split, path in scores.items())


def lines(results: Path) -> Iterator[str]:
    for kind in ("recipes", "presets"):
        yield kind
        for name, comment in shipped(kind).items():
            yield f"  {name:<15}{comment}"
    found = runs(results)
    yield f"runs under {results}" if found else f"no runs under {results}"
    for run in found:
        data = "" if run.data == "crohme" else f"  [{run.data.upper() or 'unknown data'}]"
        yield f"  {run.folder}: {run.status} {run.words}".rstrip() + data
