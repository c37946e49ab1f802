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
from benchmarks.report.figures.errors import taxonomy
from benchmarks.report.figures.make import rendered, style
from benchmarks.report.page.browser import KINDS, Browser, build, find_runs, key, source, title
from benchmarks.report.page.playback import add_attention
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.workspace import workspace
from evaluation.scoring.lengths import BUCKETS

REPORTED_COST = "7 to 8 hours a row on four 2080 Ti"
WITH_IMAGES = '<meta name="hmerbench-images" content="crohme">'  # what tells a page that holds CROHME
HEADINGS = {"exprate": "ExpRate", "interval": "95 % interval", "le1": "≤ 1", "le2": "≤ 2", "le3": "≤ 3"}
HOW_TO_READ = [
    "Expressions are drawn from their symLG, which is what the scorer compares; it differs from the caption for a few.",
    "Attention is the last layer's, the mean of its heads, while the network is made to read its own answer from left "
    "to right; each step is scaled to its maximum. Refinement is what coverage subtracts from the energies there, "
    "scaled to its maximum over the expression.",
]
SPEED = ("benchmark", "plain", "fast", "ratio", "unit", "n", "hardware")
Json = dict[str, Any]


@dataclass
class Material:
    """All that goes into a page."""

    archive: Archive | None
    runs: list[RunFolder]
    browsers: list[Browser]
    frames: list[tuple[str, pd.DataFrame]]
    notes: list[str] = field(default_factory=list)

    @property
    def sets(self) -> list[Json]:
        """The test sets of all browsers."""
        return [one for browser in self.browsers for one in browser.sets]


def report(crohme: Path | None, results: Path, attention: int = 12, target: Path | None = None) -> Path:
    """Writes the page (default results/report/index.html), atomically, and returns its path.

    A page without CROHME's images does not replace one that has them: it becomes without-crohme.html beside it.
    With an archive: its runs, images and truth. Without: the CROHME runs as far as they can be shown without images
    and truth, and the embedded set's runs in full where there are any. `attention`: playback for so many evenly spaced
    expressions of each set, and as many of the wrong ones. Raises UserError for a damaged archive or score file.
    """
    material = gather(crohme, results, attention)
    page = render(material, results)
    target = target or results / "report" / "index.html"
    if WITH_IMAGES not in page and target.exists() and WITH_IMAGES in target.read_text(errors="replace")[:1000]:
        target = target.with_name("without-crohme.html")
    write_atomically(target, page)
    return target


def gather(crohme: Path | None, results: Path, attention: int) -> Material:
    """Reads all that the page shows; what is missing becomes a note. Raises UserError for a damaged archive."""
    notes: list[str] = []
    archive = open_archive(crohme) if crohme else None
    own = find_runs(results / "reproduced", notes) + find_runs(results / "runs", notes)
    frames = [(tables.heading(name), frame) for name, frame in tables.local(results).items()]
    material = Material(archive, [], [], frames, notes)
    if archive is None or archive.name == "crohme":
        _add(material, archive, own, attention)
    embedded = results / "local" / "embedded"
    if archive is None and any(embedded.glob("runs/*/*/config.yaml")) and (embedded / "data.zip").exists():
        _add_apart(material, open_archive(embedded / "data.zip"), results, attention)
    if archive is not None and archive.name != "crohme":
        _add_apart(material, archive, results, attention)
    if not material.runs:
        notes.append("There are no runs yet: make reproduce-table2 makes some; the tables hold reported numbers only.")
    if material.sets:
        notes += HOW_TO_READ
    if archive is None:
        notes.append("Images and truth of CROHME are not here: make report CROHME=data.zip shows them.")
    return material


def _add_apart(material: Material, archive: Archive, results: Path, attention: int) -> None:
    """Runs on data that is not CROHME, with their own table."""
    space = workspace(archive, results)
    frames = tables.apart(space)
    material.frames += [(tables.heading(name, crohme=False), frame) for name, frame in frames.items() if len(frame)]
    _add(material, archive, find_runs(space / "runs", material.notes), attention)


def _add(material: Material, archive: Archive | None, runs: list[RunFolder], attention: int) -> None:
    browser = build(archive, runs)
    if archive is not None:
        add_attention(browser, archive, runs, attention)
    material.browsers.append(browser)
    material.runs += runs
    material.notes += browser.notes


# --- from material to the page --------------------------------------------------------------------------------------


def render(material: Material, results: Path) -> str:
    """The page. Every text is escaped by the template; data are JSON with < > & escaped, or base64."""
    script = "".join(_part(name) for name in ("mathematics.js", "attention.js", "filters.js", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    runs = [{"key": key(run), "name": title(run)} for run in _best_first(material)]
    sets = [{"key": set_key(one), "label": label(one)} for one in material.sets]
    packs, entries = _packs(material)
    scores = [row for run in material.runs for row in _scores(run)]
    return environment.from_string(_part("page.html")).render(
        with_images=Markup(WITH_IMAGES if material.archive and material.archive.name == "crohme" else ""),
        style=Markup(_part("page.css")),
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        warning=_warning(material),
        intro=_intro(material),
        tables=[table for title, frame in material.frames for table in _tables(title, frame)],
        tables_note=tables.NOTE.replace("`", ""),
        scores=scores,
        figures=drawings(material, results),
        costs=costs(material.runs, material.notes),
        reported_cost=REPORTED_COST,
        speed=_speed(results / "speed/cpu.csv"),
        runs=runs,
        sets=sets,
        buckets=BUCKETS,
        kinds=KINDS,
        notes=material.notes,
        packs=packs,
        meta={
            "sets": entries,
            "runs": runs,
            "empty": "There is nothing to browse yet: make reproduce-table2, or make report CROHME=data.zip.",
            "noImages": "The image and the true expression are not in this page: make report CROHME=data.zip.",
        },
    )


def _best_first(material: Material) -> list[RunFolder]:
    """The runs that the browser has something of."""
    right: dict[str, list[bool]] = {}
    for one in material.sets:
        for name, entries in one["runs"].items():
            right.setdefault(name, []).extend(entry["exact"] for entry in entries if entry)
    runs = [run for run in material.runs if right.get(key(run))]
    return sorted(runs, key=lambda run: -sum(right[key(run)]) / len(right[key(run)]))


def _part(name: str) -> str:
    return resources.files("benchmarks.report.page").joinpath(name).read_text(encoding="utf-8")


def set_key(one: Json) -> str:
    """What the page's script and address call a test set."""
    return f"{one['data']}-{one['name']}"


def label(one: Json) -> str:
    """What people call a test set."""
    return one["name"] if one["data"] == "crohme" else f"{one['data']} {one['name']}"


def _packs(material: Material) -> tuple[list[Json], list[Json]]:
    """The data blocks of the page, and for the script what there is of each set."""
    packs, entries = [], []
    for browser in material.browsers:
        for one in browser.sets:
            name, images = set_key(one), browser.images.get(one["name"])
            played = browser.attention.get(one["name"])
            packs.append({"id": f"set-{name}", "type": "text/plain", "text": packed(one)})
            if images:
                text = Markup(json.dumps(images, separators=(",", ":")))  # base64 in quotes: nothing to escape
                packs.append({"id": f"images-{name}", "type": "application/json", "text": text})
            if played:
                packs.append({"id": f"attention-{name}", "type": "text/plain", "text": packed(played)})
            entries.append({"key": name, "label": label(one), "images": bool(images), "attention": bool(played)})
    return packs, entries


def packed(data: Any) -> str:
    """JSON, gzip, base64: no character in it means anything to HTML."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)).decode()


def _warning(material: Material) -> str:
    names = sorted({one["data"] for one in material.sets} - {"crohme"})
    return f"{' and '.join(names).upper()} DATA: these are NOT CROHME numbers." if names else ""


def _intro(material: Material) -> str:
    count = sum(len(one["ids"]) for one in material.sets)
    data = material.archive.edition if material.archive else "no archive was given"
    sets, runs = _plural(len(material.sets), "test set"), _plural(len(material.runs), "run")
    return f"{_plural(count, 'expression')} in {sets}, {runs}; data: {data}."


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)


def _tables(title: str, frame: pd.DataFrame) -> list[Json]:
    """A results table in parts, one for each dataset."""
    cells = tables.short(frame)
    headings = [HEADINGS.get(name, name) for name in cells.columns[1:]]
    return [
        {
            "title": f"{title}: {dataset}" if len(set(frame["dataset"])) > 1 else title,
            "headings": headings,
            "rows": [{"source": row[2], "cells": row[1:]} for row in part.values.tolist()],
        }
        for dataset, part in cells.groupby("dataset", sort=False)
    ]


def _scores(run: RunFolder) -> list[Json]:
    """A line for each scored set of a run; the tables have seen to it that the files are whole."""
    rows = []
    for split, score in run.scores.items():
        low, high = score.get("ci95") or (None, None)
        rates = [f"{score[k]:.2f}" if score.get(k) is not None else "–" for k in ("structure_rate", "token_exprate")]
        exprate, interval = f"{100 * score['exact'] / score['n']:.2f}", "–" if low is None else f"{low:.1f}–{high:.1f}"
        cells = [title(run), split, exprate, interval, *rates]
        cells += [score.get("missing", "–"), score.get("unconverted", "–"), score.get("signature", "")]
        rows.append({"source": source(run), "cells": cells})
    return rows


def drawings(material: Material, results: Path) -> list[Json]:
    """The figures that `make figures` wrote, and what each run that is not committed gets wrong: name and SVG, base64.

    A figure that cannot be drawn becomes a note.
    """
    found = {path.stem: path.read_bytes() for path in sorted((results / "figures").glob("*.svg"))}
    with style():
        for run in material.runs:
            try:
                if source(run) == "local" and run.errors:
                    found[title(run)] = rendered(taxonomy(run), "svg")
            except UserError as error:
                material.notes.append(f"a figure is left out: {error}")
    return [{"name": name, "svg": base64.b64encode(content).decode()} for name, content in found.items()]


# --- cost -----------------------------------------------------------------------------------------------------------


def costs(runs: Sequence[RunFolder], notes: list[str]) -> list[Json]:
    """A line for the runs of one recipe and preset on one machine: medians over them, and over their epochs.

    From environment.json and history.jsonl; what these do not tell is a dash, a run without them a note.
    """
    alike: dict[tuple[str, ...], list[RunFolder]] = {}
    for run in runs:
        try:
            place, epochs = run.environment, run.read("history.jsonl", "seconds")
        except UserError as error:
            notes.append(f"its cost is left out: {error}")
            continue
        facts = place.get("device", "–"), place.get("threads", "–"), (place.get("versions") or {}).get("torch", "–")
        last = [*map(str, facts), str(place.get("revision") or "–")[:9]]
        alike.setdefault((source(run), f"{run.recipe} · {run.preset}", str(len(epochs)), *last), []).append(run)
    rows = []
    for (where, name, epochs, *facts), same in alike.items():
        lines = [line for run in same for line in run.history]
        took = median(run.seconds[-1] if run.history else 0 for run in same)
        speeds = [line["images_per_s"] for line in lines if "images_per_s" in line]
        cells = [name, f"{took / 60:.0f} min" if took >= 120 else f"{took:.0f} s"]
        cells += [f"{median(v):.1f}" if v else "–" for v in ([line["seconds"] for line in lines], speeds)]
        seeds = " ".join(str(run.seed) for run in same)
        rows.append({"source": where, "cells": [*cells, seeds, epochs, *facts]})
    return rows


def _speed(path: Path) -> tuple[list[str], list[Json]] | None:
    """What `make bench` measured, in short: headings and rows."""
    if not path.exists():
        return None
    table = pd.read_csv(path, dtype=str).fillna("–")
    wanted = [name for name in SPEED if name in table]
    return wanted, [{"source": "", "cells": row} for row in table[wanted].values.tolist()]
