"""results/PROVENANCE.md: what made each committed run, from its environment.json, history.jsonl and files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.report.documents import from_template, markdown
from hmerbench.benchmarks.report.paper import model_name
from hmerbench.benchmarks.runs.folder import RunFolder


def provenance(root: Path) -> str:
    """The document: a line for each recipe, preset and seed."""
    runs = [run for run in RunFolder.under(root) if run.scores]
    rows = [
        {"recipe": model_name(run.recipe), "preset": f"`{run.preset}`", "seed": str(run.seed)} | made(run)
        for run in runs
    ]
    return from_template("PROVENANCE.md", runs=markdown(rows) if rows else "There are no runs.")


def made(run: RunFolder) -> dict[str, str]:
    """What made a run: program, devices, versions, revisions, cost, and whether its weights are kept."""
    places, read = run.environments, run.environment.get("trained_in")
    versions = [place.get("versions", {}) for place in places]
    program = _chain("suite" if "hmerbench" in of else "external" for of in versions)
    if run.external and program == "suite":  # it reads with another's network
        program = "suite, and external"
    return {
        "program": program,
        "device": run.hardware,
        "bf16 unit": _chain(map(_bf16, places)),
        **{name: _chain(of.get(name, "?") for of in versions) for name in ("torch", "numpy")},
        "Python": _chain(place.get("python", "?") for place in places),
        "revision": _chain((place.get("revision") or "?")[:7] for place in places),
        "minutes": "" if read or not run.history else _minutes(run),
        "steps": "" if read or not run.history else f"{run.history[-1]['step']:,}",
        "weights": f"of {read.rpartition('-')[0]}" if read else "yes" if run.has_weights else "no",
    }


def _bf16(place: Mapping[str, Any]) -> str:
    if place.get("gpu"):
        return "GPU"
    return "matrix unit" if place.get("bf16_matrix_unit") else place.get("bf16_unit") or "no matrix unit"


def _minutes(run: RunFolder) -> str:
    return f"{run.core_minutes:.0f} (core)" if run.core_minutes else f"{run.seconds[-1] / 60:.0f}"


def _chain(values: Iterable[str]) -> str:
    return ", then ".join(dict.fromkeys(values))
