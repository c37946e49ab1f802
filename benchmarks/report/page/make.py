"""The report: one static page, results/report/index.html, that needs neither a server nor a network.

It shows a summary, a browser over every test expression, figures, all tables, and what training cost. Its
data come from run folders, its images and ground truth from the archive: a page made with CROHME contains CROHME and is
never committed. Missing data are listed on the page.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.files import compressed, write_atomically
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.benchmarks.report import summary, tables
from hmerbench.benchmarks.report.figures.results import taxonomy
from hmerbench.benchmarks.report.figures.write import draw, rendered, style
from hmerbench.benchmarks.report.page import browser
from hmerbench.benchmarks.report.page.browser import Json, Systems, TestSet
from hmerbench.benchmarks.report.paper import YEAR
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import EVALUATED, last_own, workspace
from hmerbench.evaluation.scoring.analysis import STRUCTURES
from hmerbench.evaluation.scoring.metrics import BUCKETS, METRICS, TABULATED, interval_text
from hmerbench.evaluation.strict import parse_yaml

INTERVAL = "95 % interval"
HEADINGS = {"interval": INTERVAL} | {metric.rate: metric.heading for metric in TABULATED}
FOLDED = ("training", "errors")  # of every preset and row: too many to be seen at once
Row = tuple[str, dict[str, Any]]  # source, which gives its color, and cells by heading


@dataclass
class Material:
    """The content of a page. `frames` are the result tables."""

    archive: Archive | None
    frames: list[pd.DataFrame]
    runs: list[RunFolder] = field(default_factory=list)
    sets: list[TestSet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    systems: Systems = field(default_factory=dict)

    def add(self, archive: Archive | None, places: list[Path], attention: int, folder: Path | None = None) -> None:
        """Add the runs in `places` on the data of an archive (None: on CROHME, without images and ground truth), and
        the published systems whose predictions are in `folder`."""
        runs = browser.find_runs(self.notes, *places)
        err_console.print(f"  reading {counted(len(runs), 'run')}")
        systems = browser.read_systems(archive, folder, self.notes) if archive and folder else {}
        sets = browser.build(archive, runs, self.notes, systems)
        self.systems |= systems
        if archive is not None:
            browser.add_attention(sets, archive, runs, attention, self.notes)
        self.sets += sets
        self.runs += runs


def report(crohme: Path | None, results: Path, attention: int = 12, systems: Path | None = None) -> Path:
    """Write the page to results/report/index.html, atomically, and return its path.

    With an archive, the page shows the runs on it, and what `evaluate` read of it, with images and ground truth.
    Without, it shows the CROHME runs without them, and in full the embedded set, if there are runs on it, and the last
    data of one's own. `attention` is the number of evenly spaced expressions per set, and of wrong ones, with attention
    playback. `systems`: a folder of published systems' predictions, to be browsed beside the runs on CROHME. Raises
    UserError for a damaged archive or score file.
    """
    target = results / "report" / "index.html"
    write_atomically(target, render(gather(crohme, results, attention, systems), results))
    return target


def gather(crohme: Path | None, results: Path, attention: int, systems: Path | None = None) -> Material:
    """Read the content of the page; add a note for what is missing. Raises UserError for a damaged archive."""
    if results.parent.name == "local" and (results / "runs").is_dir():
        data = results / "data.zip"
        its = f"CROHME={quote(str(data))}" if data.exists() else "CROHME= with its archive"
        raise UserError(f"{results}: these are the runs on one archive, named by it: make report {its}")
    archive = open_archive(crohme, trains=False) if crohme else None
    material = Material(archive, [*tables.local(results).values()])
    notes = material.notes
    if archive is None or archive.name == "crohme":
        material.add(archive, [results / place for place in ("reproduced", "runs", EVALUATED)], attention, systems)
    if systems and (archive is None or archive.name != "crohme"):
        notes.append(f"{systems}: published systems are shown beside CROHME's ground truth; CROHME= gives it")
    for other in (archive,) if archive else _last_used(results, notes):  # each gets a table of its own
        if other.name != "crohme":
            space = workspace(other, results)
            material.frames += [frame for frame in tables.apart(space).values() if len(frame)]
            material.add(other, [space / "runs", space / "evaluated"], attention)
    if not material.runs:
        notes.append("There are no runs yet: make reproduce-table2 makes some; the tables hold reported numbers only.")
    if material.sets:
        notes += _words()["how_to_read"]
    if archive is None:
        notes.append("CROHME's images and ground truth are not included: make report CROHME=data.zip shows them.")
    return material


def _last_used(results: Path, notes: list[str]) -> list[Archive]:
    """The embedded set if there are runs on it, and the data of the last job on data of one's own, if it is there."""
    found = list[Archive]()
    embedded = results / "local" / "embedded"
    if any(embedded.glob("*/*/*/config.yaml")) and (embedded / "data.zip").exists():
        found.append(open_archive(embedded / "data.zip"))
    if place := last_own(results):
        try:
            found.append(open_archive(place, trains=False))
        except FAULTS as error:
            notes.append(f"the data of the last job are not shown: {error}")
    return found


def render(material: Material, results: Path) -> str:
    """Render the page. The template escapes every text; data are JSON with < > & escaped, or base64."""
    script = "".join(_part(name) for name in ("signs.js", "mathematics.js", "attention.js", "filters.js", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    others = sorted({test_set.data for test_set in material.sets} - {"crohme"})
    expressions = sum(len(test_set.rows) for test_set in material.sets)
    counts = {"expression": expressions, "test set": len(material.sets), "run": len(material.runs)}
    content = ", ".join(counted(n, noun) for noun, n in counts.items())
    shown = {name for test_set in material.sets for name in test_set.runs}
    runs = [run for run in material.runs if browser.key(run) in shown]
    best_first = sorted(runs, key=lambda run: run.exprate, reverse=True)
    meta = {
        "sets": [{"key": test_set.key, "label": test_set.label} for test_set in material.sets],
        "runs": [{"key": browser.key(run), "name": browser.title(run)} for run in best_first]
        + [{"key": key, "name": name} for key, (name, _) in material.systems.items()],
        "empty": "There is nothing to browse yet: make reproduce-table2, or make report CROHME=data.zip.",
        "noImages": "The image and the ground truth are not on this page: make report CROHME=data.zip.",
    }
    figures = drawings(material, results)
    return environment.from_string(_part("page.html")).render(
        style=Markup(_part("page.css")),
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        warning=f"Expressions and rows named {' or '.join(others)} are NOT CROHME numbers." if others else "",
        intro=f"{content}; data: {material.archive.edition if material.archive else 'no archive was given'}.",
        summary=_summary(results, material.runs),
        tables=[table for frame in material.frames for table in _tables(frame)],
        meanings=[*_meanings()],
        scores=[row for run in material.runs for row in _scores(run)],
        figures=[figure for figure in figures if not figure["folded"]],
        folded=[figure for figure in figures if figure["folded"]],
        costs=[*_costs(material.runs, material.notes)],
        buckets=BUCKETS,
        kinds=STRUCTURES,
        notes=material.notes,
        packs={test_set.key: _packed(test_set) for test_set in material.sets},
        meta=meta,
    )


def _part(name: str) -> str:
    return resources.files("hmerbench.benchmarks.report.page").joinpath(name).read_text(encoding="utf-8")


def _words() -> dict[str, Any]:
    return parse_yaml(_part("words.yaml"))


def _packed(test_set: TestSet) -> str:
    rows = [row | {"set": test_set.key} for row in test_set.rows]
    return compressed(json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def _summary(results: Path, runs: Sequence[RunFolder]) -> Json:
    """The runs on other data, then README's table and the sentences below it."""
    shown = []
    for data in sorted({run.read_data for run in runs} - {"crohme"}):
        own = [run for run in runs if run.read_data == data and run.scores]
        splits = sorted({split for run in own for split in run.scores})
        rows = [_row(run, **{split: _rate(run, split) for split in splits}) for run in own]
        shown += [(f"ExpRate on {data} data (NOT CROHME), in percent, with the 95 % interval", rows)] if rows else []
    short = summary.Summary(results)
    lines = short.short_table().reset_index().to_dict("records")
    shown.append((f"ExpRate on CROHME {YEAR}, in percent", [("", line) for line in lines]))
    return {"tables": shown, "words": [re.sub(r"\*\*|`|\[|\]\(.*?\)", "", line) for line in short.sentences()]}


def _row(run: RunFolder, **cells: object) -> Row:
    return browser.source(run), {"run": browser.title(run), **cells}


def _rate(run: RunFolder, split: str) -> str:
    score = run.scores.get(split)
    return f"{score.exprate:.2f} ({interval_text(score.exact, score.n)})" if score else "–"


def _meanings() -> Iterator[list[str]]:
    """The columns of tables and what they mean, by the headings that they have here."""
    here = HEADINGS | {"ci_low": INTERVAL, "ci_high": "", "ci_over": ""}
    for line in re.sub(r"`(\w+)`", lambda name: here.get(name[1], f"`{name[1]}`"), tables.meanings()).splitlines():
        if line.startswith("| ") and not line.startswith("| column"):
            columns, meaning = line.replace("`", "").strip("| ").split(" | ", 1)
            yield [columns.rstrip(", "), meaning]


def _tables(frame: pd.DataFrame) -> Iterator[tuple[str, list[Row]]]:
    parts, title = tables.short(frame).groupby("dataset", sort=False), frame.attrs["title"]
    for dataset, part in parts:
        lines = part.drop(columns="dataset").rename(columns=HEADINGS).to_dict("records")
        part_title = f"{title.partition(':')[0]}: {dataset}" if len(parts) > 1 else title
        yield part_title, [(line["source"], line) for line in lines]


def _scores(run: RunFolder) -> Iterator[Row]:
    for split, score in run.scores.items():
        rate, interval = f"{100 * score.exact / score.n:.2f}", interval_text(score.exact, score.n)
        others = {metric.name: score.printed(metric) for metric in METRICS if not metric.heading}
        counts = {"missing": score.missing, "not LaTeX": score.unconverted}
        cells = {"set": split, "ExpRate": rate, "interval": interval} | others | counts
        yield _row(run, **cells, signature=score.signature)


def _costs(runs: Sequence[RunFolder], notes: list[str]) -> Iterator[Row]:
    """One row per run, from its history and environment; a run without a history becomes a note."""
    for run in runs:
        if run.evaluated:  # trained elsewhere
            continue
        try:
            environment, epochs = run.environment, run.history
            if not epochs:
                raise UserError(f"{run.path / 'history.jsonl'} is missing or empty")
        except UserError as error:
            notes.append(f"its cost is left out: {error}")
            continue
        cells = {
            "minutes": f"{run.seconds[-1] / 60:.1f}",
            "epochs": len(epochs),
            "images / s (median)": f"{median(epoch['images_per_s'] for epoch in epochs):.1f}",
            "hardware": run.hardware,
            "threads": environment.get("threads", "–"),
            "torch": environment.get("versions", {}).get("torch", "–"),
            "revision": (environment.get("revision") or "–")[:9],
        }
        yield _row(run, **cells)


def drawings(material: Material, results: Path) -> list[Json]:
    """The figures of `make figures` and the errors of each local run, with captions. One that cannot be drawn becomes a
    note."""
    err_console.print("  drawing the figures")
    images: dict[str, tuple[str, bytes]] = {}
    if (attention := results / "figures/fig4-attention.png").exists():  # takes a network: drawn by its own command
        images["fig4-attention"] = "png", attention.read_bytes()
    with style():
        try:
            for name, drawn in draw(results):
                if not isinstance(drawn, str):
                    images[name] = "svg+xml", rendered(drawn, "svg")
        except UserError as error:
            material.notes.append(f"figures are left out: {error}")
        for run in material.runs:
            try:
                if browser.source(run) == "local" and run.errors:
                    images[f"errors-{browser.title(run)}"] = "svg+xml", rendered(taxonomy(run), "svg")
            except UserError as error:
                material.notes.append(f"a figure is left out: {error}")
    shown = []
    for beginning, caption in _words()["captions"].items():
        for name in sorted(name for name in images if name.startswith(beginning)):
            kind, content = images.pop(name)
            of = f": {name.removeprefix(beginning + '-')}" if beginning in FOLDED else ""
            address = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
            shown.append({"address": address, "caption": caption.format(year=YEAR) + of, "folded": beginning in FOLDED})
    if images:
        raise ValueError(f"page/words.yaml has no captions of {', '.join(images)}")
    return shown
