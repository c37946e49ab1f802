"""The report: one static page, results/report/index.html, that needs neither server nor network.

Tables with reported beside reproduced and local numbers, accuracy by length, cost, and a browser over every test
expression. Everything comes from run folders; images and truth come from the archive, so a page made with CROHME holds
CROHME and is never committed. What is missing is said on the page.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from benchmarks.data.archive import Archive, open_archive
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.report import tables
from benchmarks.report.figures.error_figure import taxonomy
from benchmarks.report.figures.write import rendered, style
from benchmarks.report.page.browser import Json, TestSet, build, find_runs, key, source, title
from benchmarks.report.page.playback import add_attention
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.workspace import workspace
from evaluation.scoring.analysis import STRUCTURES
from evaluation.scoring.interval import proportion_interval
from evaluation.scoring.lengths import BUCKETS

WITH_IMAGES = '<meta name="hmerbench-images" content="crohme">'  # what tells a page that holds CROHME
HEADINGS = {"exprate": "ExpRate", "interval": "95 % interval", "le1": "≤ 1", "le2": "≤ 2", "le3": "≤ 3"}
HOW_TO_READ = [
    "Expressions are drawn from their symLG, which is what the scorer compares; it differs from the caption for a few.",
    "Attention is the last layer's, the mean of its heads, while the network is made to read its own answer from left "
    "to right; each step is scaled to its maximum. Refinement is what coverage subtracts from the energies there, "
    "scaled to its maximum over the expression.",
]
SPEED = ["benchmark", "plain", "fast", "ratio", "unit", "n", "hardware"]


@dataclass
class Material:
    """All that goes into a page. `frames` are the tables with their titles."""

    archive: Archive | None
    frames: list[tuple[str, pd.DataFrame]]
    runs: list[RunFolder] = field(default_factory=list)
    sets: list[TestSet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, archive: Archive | None, runs: list[RunFolder], attention: int) -> None:
        """Runs on the data of an archive."""
        sets = build(archive, runs, self.notes)
        if archive is not None:
            add_attention(sets, archive, runs, attention, self.notes)
        self.sets += sets
        self.runs += runs


def report(crohme: Path | None, results: Path, attention: int = 12) -> Path:
    """Writes the page results/report/index.html, atomically, and returns its path.

    A page without CROHME's images does not replace one that has them: it becomes without-crohme.html beside it.
    With an archive: its runs, images and truth. Without: the CROHME runs as far as they can be shown without images
    and truth, and the embedded set's runs in full where there are any. `attention`: playback for so many evenly spaced
    expressions of each set, and as many of the wrong ones. Raises UserError for a damaged archive or score file.
    """
    material = gather(crohme, results, attention)
    page = render(material, results)
    target = results / "report" / "index.html"
    if WITH_IMAGES not in page and target.exists() and WITH_IMAGES in target.read_text(errors="replace")[:1000]:
        target = target.with_name("without-crohme.html")
    write_atomically(target, page)
    return target


def gather(crohme: Path | None, results: Path, attention: int) -> Material:
    """Reads all that the page shows; what is missing becomes a note. Raises UserError for a damaged archive."""
    archive = open_archive(crohme) if crohme else None
    material = Material(archive, [(tables.heading(name), frame) for name, frame in tables.local(results).items()])
    notes = material.notes
    own = find_runs(results / "reproduced", notes) + find_runs(results / "runs", notes)
    if archive is None or archive.name == "crohme":
        material.add(archive, own, attention)
    other, embedded = archive, results / "local" / "embedded"
    if archive is None and any(embedded.glob("runs/*/*/config.yaml")) and (embedded / "data.zip").exists():
        other = open_archive(embedded / "data.zip")
    if other is not None and other.name != "crohme":  # with a table of its own
        space = workspace(other, results)
        frame = tables.apart(space)["table2"]
        material.frames += [(tables.heading("table2", crohme=False), frame)] if len(frame) else []
        material.add(other, find_runs(space / "runs", notes), attention)
    if not material.runs:
        notes.append("There are no runs yet: make reproduce-table2 makes some; the tables hold reported numbers only.")
    if material.sets:
        notes += HOW_TO_READ
    if archive is None:
        notes.append("Images and truth of CROHME are not here: make report CROHME=data.zip shows them.")
    return material


def render(material: Material, results: Path) -> str:
    """The page. Every text is escaped by the template; data are JSON with < > & escaped, or base64."""
    script = "".join(_part(name) for name in ("mathematics.js", "attention.js", "filters.js", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    others = sorted({one.data for one in material.sets} - {"crohme"})
    expressions = sum(len(one.ids) for one in material.sets)
    counts = {"expression": expressions, "test set": len(material.sets), "run": len(material.runs)}
    holds = ", ".join(f"{n:,} {what}{'s' * (n != 1)}" for what, n in counts.items())
    speed = None
    if (path := results / "speed/cpu.csv").exists():  # by make bench, in short
        table = pd.read_csv(path, dtype=str).fillna("–").reindex(columns=SPEED, fill_value="–")
        speed = SPEED, [{"source": "", "cells": row} for row in table.values.tolist()]
    shown = {name for one in material.sets for name in one.runs}
    best_first = sorted((run for run in material.runs if key(run) in shown), key=lambda run: run.exprate, reverse=True)
    meta = {
        "sets": [{"key": one.key, "label": one.label} for one in material.sets],
        "runs": [{"key": key(run), "name": title(run)} for run in best_first],
        "empty": "There is nothing to browse yet: make reproduce-table2, or make report CROHME=data.zip.",
        "noImages": "The image and the true expression are not in this page: make report CROHME=data.zip.",
    }
    return environment.from_string(_part("page.html")).render(
        with_images=Markup(WITH_IMAGES if material.archive and material.archive.name == "crohme" else ""),
        style=Markup(_part("page.css")),
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        warning=f"{' and '.join(others).upper()} DATA: these are NOT CROHME numbers." if others else "",
        intro=f"{holds}; data: {material.archive.edition if material.archive else 'no archive was given'}.",
        tables=[table for title, frame in material.frames for table in _tables(title, frame)],
        tables_note=tables.NOTE.replace("`", ""),
        scores=[row for run in material.runs for row in _scores(run)],
        figures=drawings(material, results),
        costs=_costs(material.runs, material.notes),
        speed=speed,
        buckets=BUCKETS,
        kinds=STRUCTURES,
        notes=material.notes,
        packs={one.key: packed(vars(one)) for one in material.sets},
        meta=meta,
    )


def _part(name: str) -> str:
    return resources.files("benchmarks.report.page").joinpath(name).read_text(encoding="utf-8")


def packed(data: Any) -> str:
    """JSON, gzip, base64: no character in it means anything to HTML."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)).decode()


def _tables(title: str, frame: pd.DataFrame) -> list[Json]:
    """A results table in parts, one for each dataset."""
    parts, number = tables.short(frame).groupby("dataset", sort=False), title.partition(":")[0]
    return [
        {
            "title": f"{number}: {dataset}" if len(parts) > 1 else title,
            "headings": [HEADINGS.get(name, name) for name in part.columns[1:]],
            "rows": [{"source": row[2], "cells": row[1:]} for row in part.values.tolist()],
        }
        for dataset, part in parts
    ]


def _scores(run: RunFolder) -> list[Json]:
    """A line for each scored set of a run."""
    rows = []
    for split, score in run.scores.items():
        low, high = proportion_interval(score.exact, score.n)
        cells = [title(run), split, f"{100 * score.exact / score.n:.2f}", tables.interval(100 * low, 100 * high)]
        cells += [f"{score.structure_rate:.2f}", "–" if score.token_exprate is None else f"{score.token_exprate:.2f}"]
        cells += [score.missing, score.unconverted, score.signature]
        rows.append({"source": source(run), "cells": cells})
    return rows


def _costs(runs: Sequence[RunFolder], notes: list[str]) -> list[Json]:
    """A line for each run, from its history and environment; a run without a history is a note."""
    rows = []
    for run in runs:
        try:
            place, lines = run.environment, run.history
            if not lines:
                raise UserError(f"{run.path / 'history.jsonl'}: missing or empty")
        except UserError as error:
            notes.append(f"its cost is left out: {error}")
            continue
        speeds = [line["images_per_s"] for line in lines]
        cells = [title(run), f"{run.seconds[-1] / 60:.1f}", len(lines)]
        cells += [f"{median(speeds):.1f}", place.get("device", "–"), place.get("threads", "–")]
        cells += [place.get("versions", {}).get("torch", "–"), (place.get("revision") or "–")[:9]]
        rows.append({"source": source(run), "cells": cells})
    return rows


def drawings(material: Material, results: Path) -> list[Json]:
    """The figures that `make figures` wrote, and what each run that is not committed gets wrong: name and SVG, base64.
    A figure that cannot be drawn becomes a note."""
    found = {path.stem: path.read_bytes() for path in sorted((results / "figures").glob("*.svg"))}
    with style():
        for run in material.runs:
            try:
                if source(run) == "local" and run.errors:
                    found[title(run)] = rendered(taxonomy(run), "svg")
            except UserError as error:
                material.notes.append(f"a figure is left out: {error}")
    return [{"name": name, "svg": base64.b64encode(content).decode()} for name, content in found.items()]
