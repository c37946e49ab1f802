"""Replays pen strokes of CROHME on the page, in a headless Chromium: what it reads, beside the command line on the same
drawing and on the published image of the expression."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import Stroke
from hmerbench.benchmarks.data.samples import at_random, strokes_of
from hmerbench.benchmarks.environment import cores, processor
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.evaluation.datasets import crohme as known_crohme
from hmerbench.evaluation.scoring.interval import interval_text, percent
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
YEAR, SEED = known_crohme().tests[-1], 7  # whose pen strokes; of the sample
MARGIN = 30  # px around a drawing on the page
SECONDS = 120.0  # that the page may take for anything
RECORD = "readings = []; { const plain = show; show = (found) => { if (found) readings.push(found); plain(found); }; }"
READINGS = "n => readings.filter(({ id }) => id === n).map(({ final, seconds }) => [final, seconds])"


@dataclass(frozen=True)
class Replayed:
    """What was read of a drawing, as LaTeX, and how many seconds the page took for a glimpse and for its reading."""

    id: str
    page: str
    command: str  # of the same drawing
    image: str  # of the published image
    first: float
    final: float


@contextmanager
def opened(path: Path, seconds: list[float]) -> Iterator[Any]:
    """The page in a browser, ready to draw on; the seconds that it loaded are added to the list.

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
        seconds.append(time.monotonic() - began)
        yield page
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
    """The status of the page."""
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
        for x, y in at[1:]:
            page.mouse.move(x, y)
        page.mouse.up()


def ink_of(page: Any) -> np.ndarray:
    """The drawing as the network of the page saw it: (H, W) uint8."""
    width, height, data = page.evaluate("[shownInk.width, shownInk.height, [...shownInk.data]]")
    return np.array(data, np.uint8).reshape(height, width)


def replayed(
    page: Any, recognizer: Recognizer, drawings: Mapping[str, Sequence[Stroke]], images: Mapping[str, np.ndarray]
) -> Iterator[Replayed]:
    """Every drawing on the page, and what the command line reads of it."""
    page.evaluate(RECORD)
    for id_, strokes in drawings.items():
        page.keyboard.press("Delete")
        draw(page, strokes)
        number = page.evaluate("clearTimeout(timer), readNow(), number")  # what the page does when the pen rests
        until(page, lambda n=number: any(final for final, _ in page.evaluate(READINGS, n)))
        seconds = [each for _, each in page.evaluate(READINGS, number)]
        latex = page.locator("#latex").inner_text()
        found = [*recognizer.each([ink_of(page), images[id_]])]
        command, image = ("" if isinstance(each, UserError) else each.latex for each in found)
        yield Replayed(id_, latex, command, image, seconds[0], seconds[-1])


PAGE = """# The page to draw on, tried with the pen strokes of CROHME {year}

Written by `hmerbench draw --replay`: {n} drawings, a fixed sample, were drawn with the mouse on the page in a headless
Chromium. The page reads with {network}, weights as float16, in WebAssembly on one thread; the command line with
the same network in PyTorch, on the drawing that the page made. Rates are ExpRate with a 95 % interval.

| | |
|---|---|
| the page reads the same LaTeX as the command line | {same} of {n} |
| read right on the page | {page} |
| read right on the command line, from the same drawings | {command} |
| read right on the command line, from the published images of the same expressions | {image} |
| size of the page | {megabytes:.1f} MB |
| from opening the file to ready | {load:.1f} s |
| until a first reading is shown, median (90 % within) | {first} |
| until the final reading is shown, median (90 % within) | {final} |
{other}
Measured on {cores} cores of a processor ({cpu}) while {busy:.1f} processes wanted them on average.
"""


def page_of(
    done: Sequence[Replayed], right: Mapping[str, int], network: str, path: Path, load: float, busy: float
) -> str:
    """results/replayed.md; `right`: how many are read right, by field of Replayed."""
    n, differing = len(done), [each for each in done if each.page != each.command]

    def rate(key: str) -> str:
        return f"{percent(right[key], n):.1f} % ({interval_text(right[key], n)})"

    def times(values: list[float]) -> str:
        median, most = np.quantile(values, (0.5, 0.9))
        return f"{median:.2f} s ({most:.2f} s)"

    other = f"\nThey differ on {', '.join(each.id for each in differing)}.\n" if differing else ""
    return PAGE.format(
        year=YEAR, n=n, network=network, same=n - len(differing), page=rate("page"), command=rate("command"),
        image=rate("image"), megabytes=path.stat().st_size / 1e6, load=load, other=other, cpu=processor(),
        cores=cores(), busy=busy, first=times([e.first for e in done]), final=times([e.final for e in done]),
    )  # fmt: skip


def replay(recognizer: Recognizer, path: Path, crohme: Path, count: int, to: Path) -> str:
    """Replay a fixed sample of YEAR on the page at `path`, and write what came of it. Raises UserError without pen
    strokes of that year."""
    archive, ink = open_archive(crohme), crohme.parent / "inkml" / f"{YEAR}.zip"
    if not ink.is_file() or YEAR not in archive.test_splits:
        raise UserError(f"{ink}: no pen strokes of {YEAR}; put the InkML files of that test set there")
    drawings = strokes_of(ink, at_random(archive.captions(YEAR), count, SEED))
    images, load, busy = {id_: archive.image(YEAR, id_) for id_ in drawings}, list[float](), list[float]()
    done = list[Replayed]()
    with opened(path, load) as page:
        for each in replayed(page, recognizer, drawings, images):
            done.append(each)
            busy.append(os.getloadavg()[0])
    truth = archive.truth_of(YEAR, drawings)
    right = {
        key: evaluate({each.id: getattr(each, key) for each in done}, truth, NO_FIELDS).score.exact
        for key in ("page", "command", "image")
    }
    text = page_of(done, right, recognizer.name, path, load[0], float(np.mean(busy)))
    write_atomically(to, text)
    return text
