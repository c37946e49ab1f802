"""`make figures`: figures for papers from what lies under results/, reported and reproduced numbers side by side.

Each goes to results/figures/ as PDF, SVG and PNG, the same bytes for the same results. A figure whose data is not
there is not drawn; a line says what makes the data.
"""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.style
import pandas as pd
import yaml
from matplotlib.figure import Figure

from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.report.figures import errors as taxonomy
from benchmarks.report.figures import growth as cost
from benchmarks.report.figures import results as plots
from benchmarks.report.figures.results import Run

STYLE = "benchmarks.report.figures.style"
DATES: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
TABLES = ("symbols", "relations", "structure", "length")
T = TypeVar("T")


def figures(results: Path, kinds: tuple[str, ...] = tuple(DATES)) -> Iterator[Path | str]:
    """Draws and writes all figures; gives the path of every file and a line for every figure without data."""
    with matplotlib.style.context(STYLE, after_reset=True):
        for name, drawn in draw(results):
            if isinstance(drawn, str):
                yield f"{name}: not drawn, {drawn}"
                continue
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # arranged once, so that no format depends on those written before
            for kind in kinds:
                path = results / "figures" / f"{name}.{kind}"
                write_atomically(path, rendered(drawn, kind))
                yield path


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as a file's content, without the date of its making."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata=DATES[kind])
    return content.getvalue()


def draw(results: Path) -> Iterator[tuple[str, Figure | str]]:
    """(name, figure, or why there is none) for all figures, one after the other."""
    runs = read_runs(results / "reproduced")
    yield "fig3-by-length", plots.by_length(runs)
    yield "table1-forest", plots.forest(runs)
    if not runs:
        yield "training, errors", f"there is no run under {results / 'reproduced'}; python -m benchmarks pack adds one"
    for preset in sorted({run.preset for run in runs}):
        yield f"training-{preset}", plots.training([run for run in runs if run.preset == preset])
    for run in runs:
        name = f"errors-{run.recipe}-{run.preset}-seed{run.seed}"
        yield name, taxonomy.taxonomy(run) if run.errors else "no errors/*.json; python -m benchmarks score makes them"
    yield "speed-growth", _growth(results / "speed" / "growth.csv")
    yield from _studies(results / "search")


def read_runs(root: Path) -> list[Run]:
    """The committed runs. Raises UserError for a damaged file."""
    runs = []
    for path in sorted(root.glob("*/*/config.yaml")):
        config = _read(path, yaml.safe_load, "recipe", "preset", "seed")
        history = _read(path.parent / "history.jsonl", _epochs)
        scores = {p.stem: _read(p, json.loads, "n", "exact", "le1", "le2", "by_length") for p in _sets(path, "scores")}
        errors = {p.stem: _read(p, json.loads, "n", *TABLES) for p in _sets(path, "errors")}
        runs.append(Run(config["recipe"], config["preset"], config["seed"], scores, errors, history))
    return runs


def _sets(config: Path, kind: str) -> list[Path]:
    return sorted((config.parent / kind).glob("*.json"))


def _epochs(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    _ = [line["epoch"] for line in lines]
    return lines


def _read(path: Path, parse: Callable[[str], T], *wanted: str) -> T:
    """What a file holds. Raises UserError where it cannot be read or a key is missing."""
    try:
        value = parse(path.read_text())
        _ = [value[key] for key in wanted]  # type: ignore[index]
        return value
    except (ValueError, KeyError, TypeError, FileNotFoundError, yaml.YAMLError):
        raise UserError(f"{path}: damaged or incomplete; restore it, or make it again") from None


def _table(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


def _growth(path: Path) -> Figure | str:
    if not path.exists():
        return f"there is no {path}; make bench measures it"
    return cost.growth(_read(path, _table, "axis", "value", *cost.SIDES))


def _studies(root: Path) -> Iterator[tuple[str, Figure | str]]:
    """A figure for each study of a search."""
    found = sorted(root.glob("*/importance.csv"))
    if not found:
        yield "search-importance", f"there is no {root}/*/importance.csv; python -m benchmarks search --crohme makes it"
    for path in found:
        table = _read(path, _table, "setting", "importance")
        yield f"search-importance-{path.parent.name}", cost.importance(table, path.parent.name)
