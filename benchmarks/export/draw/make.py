"""Writes the page: the network as ONNX, onnxruntime-web from the npm package, and the scripts beside this file, in one
HTML file that works from a disk and from any server, and requests nothing.

The scripts are: latex.js (MathML), ink.js (strokes and pictures to ink) and page.js in the page; latex.js, search.js
and worker.js in its worker, which reads; before them, in both, signs.js of the report.

And replays pen strokes of CROHME on it, in a headless Chromium: what it reads, beside the command line on the same
drawing and on the published image of the expression. results/replayed.csv has a row for each drawing, added as soon as
it is read, so that a replay that was stopped goes on; results/replayed.md says what they tell.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import Stroke
from hmerbench.benchmarks.data.samples import at_random, strokes_of
from hmerbench.benchmarks.environment import processor
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.onnx_files import write_onnx
from hmerbench.benchmarks.files import compressed, sha256, write_atomically
from hmerbench.benchmarks.printing import progress
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report import paper
from hmerbench.benchmarks.runtime import cores
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.metrics import interval_text, percent
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.weights import one_line

HERE = Path(__file__).parent
PACKAGE = "onnxruntime-web@1.30.0"
RUNTIME = {  # its files that the page needs, with their SHA-256
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}


def write_page(recognizer: Recognizer, path: Path, cache: Path) -> None:
    """Write the page of a network, its weights as float16, to `path`; `cache` keeps the files of the npm package.

    Raises UserError for a network that cannot be exported, and where the package cannot be had.
    """
    runtime = fetched(cache)
    with tempfile.TemporaryDirectory() as scratch:
        write_onnx(recognizer.model, recognizer.config, Path(scratch), "float16")
        written = {"encoder": "encoder.onnx", "step": "step.onnx", "model": "model.json"}
        files = {name: (Path(scratch) / file).read_bytes() for name, file in written.items()}
    files |= {"runtime": runtime[0], "wasm": runtime[1]}
    scripts = {name: (HERE / f"{name}.js").read_text("utf-8") for name in ("latex", "ink", "page", "search", "worker")}
    scripts["signs"] = (HERE.parents[1] / "report/page/signs.js").read_text("utf-8")
    data = [block(f"data-{name}", compressed(content)) for name, content in files.items()]
    data.append(block("data-worker", "\n".join(scripts[name] for name in ("signs", "latex", "search", "worker"))))
    page = (HERE / "page.html").read_text("utf-8")
    parts = {"CSS": (HERE / "page.css").read_text("utf-8"), "DATA": "\n".join(data)}
    parts["SCRIPT"] = "\n".join(scripts[name] for name in ("signs", "latex", "ink", "page"))
    for name, content in parts.items():
        page = page.replace(f"%{name}%", content)
    write_atomically(path, page)


def block(name: str, text: str) -> str:
    """Data in a page, which no browser runs."""
    return f'<script type="text/plain" id="{name}">{text}</script>'


def fetched(cache: Path) -> list[bytes]:
    """The files of RUNTIME, fetched with npm once and checked."""
    if not all((cache / name).is_file() for name in RUNTIME):
        _fetch(cache)
    contents = [(cache / name).read_bytes() for name in RUNTIME]
    for content, (name, digest) in zip(contents, RUNTIME.items(), strict=True):
        if hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{cache / name}: not the file of {PACKAGE}; delete it, and it is fetched again")
    return contents


def _fetch(cache: Path) -> None:
    if not (npm := shutil.which("npm")):
        raise UserError("npm is not here, which fetches onnxruntime-web; install Node.js (apt-get install npm)")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([npm, "pack", PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True)
        packages = [*Path(scratch).glob("*.tgz")]
        if done.returncode or not packages:
            raise UserError(f"npm pack {PACKAGE}: {one_line(done.stderr)}; is there a connection to the npm registry?")
        with tarfile.open(packages[0]) as archive:
            for name in RUNTIME:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                write_atomically(cache / name, member.read())


# -------------------------------------------------------------------------------------------------------------- replay


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
YEAR, SEED = paper.YEARS[-1], 7  # whose pen strokes; of the sample
MARGIN = 30  # px around a drawing on the page
SECONDS = 120.0  # that the page may take for anything
READERS = ("page", "command", "image")
RECORD = "readings = []; { const plain = show; show = (found) => { if (found) readings.push(found); plain(found); }; }"
READINGS = "n => readings.filter(({ id }) => id === n).map(({ final, seconds }) => [final, seconds])"
# all moves of a stroke as one event, as a browser that is busy hands them over: a message each took most of the time
MOVE = """points => {
  const [last, ...all] = [points.at(-1), ...points].map(([clientX, clientY]) => ({ clientX, clientY, pointerId: 1 }));
  const coalescedEvents = all.map((each) => new PointerEvent("pointermove", each));
  pad.dispatchEvent(new PointerEvent("pointermove", { ...last, coalescedEvents }));
}"""


@dataclass(frozen=True)
class Replayed:
    """What was read of a drawing, as LaTeX, whether that is right, and how many seconds the page took for a glimpse and
    for its reading."""

    id: str
    page: str
    command: str  # of the same drawing
    image: str  # of the published image
    first: float
    final: float
    page_right: int = 0
    command_right: int = 0
    image_right: int = 0
    opened: float = 0.0  # seconds from opening the page to ready
    busy: float = 0.0  # processes that wanted the processor
    made: str = ""  # of which page: its SHA-256


COLUMNS = [field.name for field in fields(Replayed)]


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, float]]:
    """The page in a browser, ready to draw on, and the seconds that it loaded.

    Raises UserError without Chromium or Playwright, and where the page does not get ready.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise UserError("playwright is not here, which drives the browser; make setup-dev installs it") from None
    browser = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UserError("no Chromium here: apt-get install chromium, or give its path in CHROMIUM")
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"] * (os.geteuid() == 0))
        page = launched.new_page(viewport={"width": 1280, "height": 900})
        began = time.monotonic()
        page.goto(path.resolve().as_uri())
        until(page, lambda: said(page).startswith("ready"))
        yield page, time.monotonic() - began
        launched.close()


def until(page: Any, holds: Callable[[], Any]) -> Any:
    """Wait for something; returns it. Raises UserError after SECONDS."""
    end = time.monotonic() + SECONDS
    while not (found := holds()):
        if time.monotonic() > end:
            raise UserError(f"the page says for {SECONDS:.0f} s: {said(page)}")
        time.sleep(0.02)
    return found


def said(page: Any) -> str:
    return page.locator("#said").inner_text()


def draw(page: Any, strokes: Sequence[Stroke]) -> None:
    """Draw strokes with the mouse, as large as fits."""
    box, points = page.locator("#pad").bounding_box(), np.concatenate(strokes)
    low, extent = points.min(0), np.maximum(np.ptp(points, axis=0), 1e-9)
    scale = min((box["width"] - 2 * MARGIN) / extent[0], (box["height"] - 2 * MARGIN) / extent[1])
    for stroke in strokes:
        at = (stroke - low) * scale + MARGIN + (box["x"], box["y"])
        page.mouse.move(*at[0])
        page.mouse.down()
        if len(at) > 1:
            page.evaluate(MOVE, at[1:].tolist())
        page.mouse.up()


def ink_of(page: Any) -> np.ndarray:
    """The drawing as the network of the page saw it: (H, W) uint8."""
    width, height, data = page.evaluate("[shownInk.width, shownInk.height, [...shownInk.data]]")
    return np.array(data, np.uint8).reshape(height, width)


def replayed(
    page: Any, recognizer: Recognizer, drawings: Mapping[str, Sequence[Stroke]], images: Mapping[str, np.ndarray]
) -> Iterator[Replayed]:
    """Every drawing on the page, and what the command line reads of it."""
    from hmerbench.benchmarks.export.compare import best_of  # needs pandas, as below; the page does not

    read = partial(best_of, recognizer.in_float32())  # as the page computes
    page.evaluate(RECORD)
    for id_, strokes in drawings.items():
        page.keyboard.press("Delete")
        draw(page, strokes)
        number = page.evaluate("clearTimeout(timer), readNow(), number")  # what the page does when the pen rests
        image, command = read(images[id_]), read(ink_of(page))  # while the page reads
        until(page, lambda n=number: any(final for final, _ in page.evaluate(READINGS, n)))
        seconds = [each for _, each in page.evaluate(READINGS, number)]
        latex = page.locator("#latex").inner_text()
        yield Replayed(id_, latex, command, image, round(seconds[0], 3), round(seconds[-1], 3))


def replay(recognizer: Recognizer, path: Path, crohme: Path, count: int, to: Path) -> str:
    """Replay a fixed sample of YEAR on the page at `path`, and write what came of it; what `to` holds of the same page
    is kept. Raises UserError without pen strokes of that year."""
    archive, ink = open_archive(crohme, trains=False), crohme.parent / "inkml" / f"{YEAR}.zip"
    if not ink.is_file() or YEAR not in archive.tests:
        raise UserError(f"{ink}: no pen strokes of {YEAR}; put the InkML files of that test set there")
    ids, made = at_random(archive.captions(YEAR), count, SEED), sha256(path)
    rows = {row.id: row for row in stored(to.with_suffix(".csv")) if row.made == made}
    drawings = strokes_of(ink, [id_ for id_ in ids if id_ not in rows])
    if drawings:
        images = {id_: archive.image(YEAR, id_) for id_ in drawings}
        with opened(path) as (page, seconds):
            done = replayed(page, recognizer, drawings, images)
            for each in progress(done, f"replaying {len(drawings)} drawings"):
                truth, told = archive.truth_of(YEAR, [each.id]), asdict(each)
                for key in READERS:
                    told[f"{key}_right"] = evaluate({each.id: told[key]}, truth, NO_FIELDS).score.exact
                told |= {"opened": round(seconds, 2), "busy": round(os.getloadavg()[0], 2), "made": made}
                rows[each.id] = Replayed(**told)
                write_atomically(to.with_suffix(".csv"), csv_text(COLUMNS, map(vars, rows.values())))
    text = page_of([rows[id_] for id_ in ids if id_ in rows], recognizer.name, path.stat().st_size)
    write_atomically(to, text)
    return text


def stored(path: Path) -> list[Replayed]:
    """The rows of replayed.csv, if it is there. Raises UserError for a damaged one."""
    try:
        return TypeAdapter(list[Replayed]).validate_python(read_table(path) if path.exists() else [])
    except ValidationError:
        raise UserError(f"{path}: damaged or of another version; delete it, and all is drawn again") from None


def page_of(done: Sequence[Replayed], network: str, size: int) -> str:
    """results/replayed.md, of a page of `size` bytes."""
    from hmerbench.benchmarks.report.documents import from_template

    n, differing = len(done), [each.id for each in done if each.page != each.command]

    def rate(key: str) -> str:
        right = sum(getattr(each, f"{key}_right") for each in done)
        return f"{percent(right, n):.1f} % ({interval_text(right, n)})"

    def times(values: list[float]) -> str:
        median, most = np.quantile(values, (0.5, 0.9))
        return f"{median:.2f} s ({most:.2f} s)"

    return from_template(
        "replayed.md", year=YEAR, n=n, network=network, same=n - len(differing), **{key: rate(key) for key in READERS},
        megabytes=size / 1e6, opened=np.median([e.opened for e in done]), cpu=processor(), cores=cores(),
        other=f"\nThey differ on {', '.join(differing)}.\n" if differing else "", busy=np.mean([e.busy for e in done]),
        first=times([e.first for e in done]), final=times([e.final for e in done]),
    )  # fmt: skip
