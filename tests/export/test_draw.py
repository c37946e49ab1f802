"""The page to draw on, in a headless Chromium, against the command line's recognizer."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.normalize_image import prepare
from hmerbench.benchmarks.data.samples import strokes_of
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.draw import make
from hmerbench.benchmarks.export.draw.make import ink_of, replayed, said, until
from hmerbench.benchmarks.recognition.complete_latex import is_complete
from hmerbench.benchmarks.recognition.onnx_reader import at_scale
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.evaluation.symlg.mathml import from_mathml
from hmerbench.models.vocab import Vocabulary
from tests.helpers.paths import ROOT
from tests.helpers.pictures import INK, LATEX, PAPER

CACHE = ROOT / "results/local/onnxruntime-web"
X = [[(100, 120), (150, 190)], [(150, 120), (100, 190)]]
TWO = [[(170, 80), (180, 70), (195, 75), (192, 92), (170, 110), (200, 110)]]
PLUS = [[(230, 155), (280, 155)], [(255, 130), (255, 180)]]
ONE = [[(320, 120), (320, 190)]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, medium: Recognizer) -> Path:
    try:
        make.fetched(CACHE)
    except UserError as error:
        pytest.skip(f"no npm registry here: {error}")
    path = tmp_path_factory.mktemp("draw") / "index.html"
    make.write_page(medium, path, CACHE)
    return path


def opened(engine: Any, path: Path, **options: Any) -> Any:
    page = engine.new_page(viewport={"width": 1280, "height": 900}, **options)
    page.errors, page.fetched = [], []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: page.fetched.append(request.url))
    page.goto(path.as_uri())
    return page


@pytest.fixture(scope="module")
def ready(engine: Any, file: Path) -> Iterator[Any]:
    """The page with its network; at the end, nothing but itself was requested."""
    page = opened(engine, file)
    until(page, lambda: said(page).startswith("ready"))
    yield page
    assert page.errors == []
    assert [url for url in page.fetched if not url.startswith(("blob:", "data:"))] == [file.as_uri()]


@pytest.fixture
def page(ready: Any) -> Any:
    ready.keyboard.press("Delete")
    until(ready, lambda: said(ready) == "ready: draw a formula")
    return ready


def draw(page: Any, *strokes: list[tuple[int, int]]) -> None:
    box = page.locator("#pad").bounding_box()
    for (x, y), *others in strokes:
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.mouse.down()
        for x, y in others:
            page.mouse.move(box["x"] + x, box["y"] + y, steps=3)
        page.mouse.up()


def reading(page: Any) -> str:
    """The LaTeX that the page shows once it has read what was drawn last."""
    time.sleep(0.4)  # it reads when the pen rests
    until(page, lambda: not said(page).startswith(("reading", "ready")))
    return page.locator("#latex").inner_text()


def png(image: Any) -> bytes:
    return cv2.imencode(".png", np.asarray(image))[1].tobytes()


def give(page: Any, content: bytes, name: str = "a.png", kind: str = "image/png") -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": kind, "buffer": content})


@pytest.mark.long
@pytest.mark.parametrize("strokes", [X + TWO, X + PLUS + ONE, [[(80, 150), (200, 150)], *ONE]])
def test_a_drawing_is_read_as_on_the_command_line(page: Any, medium: Recognizer, strokes: list) -> None:
    draw(page, *strokes)
    latex = reading(page)
    found = medium(png(ink_of(page)))
    assert found.prepared == () and np.array_equal(found.ink, ink_of(page))  # drawn as CROHME's images are
    assert latex == found.latex
    assert f"{round(100 * found.confidence)} %" in said(page) or found.doubtful


def test_pen_strokes_of_crohme_are_read_as_on_the_command_line(page: Any, medium: Recognizer, crohme: Path) -> None:
    """`hmerbench draw --replay` on two short ones."""
    archive, ink_ = open_archive(crohme), crohme.parent / "inkml/2019.zip"
    if not ink_.is_file():
        pytest.skip(f"no pen strokes here: {ink_}")
    short = sorted(archive.captions("2019"), key=lambda id_: (len(archive.captions("2019")[id_]), id_))[30:32]
    drawings = strokes_of(ink_, short)
    images = {id_: archive.image("2019", id_) for id_ in drawings}
    done = [*replayed(page, medium, drawings, images)]
    assert [each.id for each in done] == short
    assert all(each.page == each.command != "" and 0 < each.first <= each.final for each in done)
    truth = archive.truth_of("2019", short)
    for key in ("page", "image"):  # the drawing is that of the image
        assert evaluate({each.id: getattr(each, key) for each in done}, truth, NO_FIELDS).score.exact


def test_what_is_shown_with_a_reading(page: Any) -> None:
    draw(page, *X, *TWO)
    assert reading(page) == "x ^ { 2 }"
    assert page.locator("#math msup").count() == 1
    assert from_mathml(page.evaluate("toMathML(best.tokens)")).objects
    assert 1 <= page.locator("#nbest li").count() <= 4
    until(page, lambda: page.locator("#tokens button").count() == 5)
    dark = "[...document.getElementById('heat').getContext('2d').getImageData(0, 0, 999, 999).data].some(Boolean)"
    page.locator("#tokens button").nth(3).focus()  # with the keyboard
    assert page.evaluate(dark)


def test_strokes_are_undone_erased_and_cleared(page: Any) -> None:
    draw(page, *X)
    page.keyboard.press("Control+Shift+z")  # which undoes nothing
    assert page.evaluate("strokes.length") == 2
    page.keyboard.press("Control+z")
    assert page.evaluate("strokes.length") == 1
    draw(page, X[1])
    page.locator("#erase").click()
    assert page.locator("#erase").get_attribute("aria-pressed") == "true"
    draw(page, [(100, 120), (101, 121)])
    assert page.evaluate("strokes.length") == 1
    page.locator("#erase").click()
    page.locator("#clear").click()
    assert page.evaluate("strokes.length") == 0
    page.locator("#undo").click()
    assert page.evaluate("strokes.length") == 1


def touch(page: Any, kind: str, x: int, y: int, pointer: int, **what: int | str) -> None:
    """An event of a pen or finger."""
    box = page.locator("#pad").bounding_box()
    event = {"pointerId": pointer, "clientX": box["x"] + x, "clientY": box["y"] + y, **what}
    page.evaluate("([kind, event]) => pad.dispatchEvent(new PointerEvent(kind, event))", [kind, event])


def test_a_second_pointer_leaves_the_stroke_alone(page: Any) -> None:
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 150)
    page.mouse.down()
    for kind in ("pointerdown", "pointermove", "pointerup", "pointercancel"):
        touch(page, kind, 400, 300, 2)
    page.mouse.move(box["x"] + 150, box["y"] + 150)
    page.mouse.up()
    (stroke,) = page.evaluate("strokes")
    assert [x for x, _ in stroke][:: len(stroke) - 1] == pytest.approx([100, 150]) and all(x < 200 for x, _ in stroke)


def test_a_pen_goes_before_a_palm_that_came_first(page: Any) -> None:
    page.evaluate("strokes = []; pad.setPointerCapture = () => {}")
    touch(page, "pointerdown", 400, 300, 7, pointerType="touch")
    for kind in ("pointerdown", "pointerup"):
        touch(page, kind, 100, 150, 1, pointerType="pen")
    touch(page, "pointerup", 400, 300, 7, pointerType="touch")
    ((point,),) = page.evaluate("strokes")
    assert point == pytest.approx([100, 150])
    page.evaluate("delete pad.setPointerCapture; strokes = []")


def test_the_other_end_of_a_pen_erases_a_line_wherever_it_is_touched(page: Any) -> None:
    page.evaluate("strokes = [[[100, 150], [300, 150]]]")
    for y, left in ((170, 1), (155, 0)):
        touch(page, "pointerdown", 200, y, 1, button=5, buttons=32)
        touch(page, "pointerup", 200, y, 1, button=5)
        assert page.evaluate("strokes.length") == left


def test_a_copy_that_fails_is_told_beside_the_doubt(page: Any) -> None:
    page.evaluate("say('doubtful', 'doubtful'); document.execCommand = () => false")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.evaluate("copy('x', 'LaTeX')")
    assert said(page) == "doubtful – LaTeX not copied: the browser refused"
    page.evaluate("document.execCommand = () => true; copy('x', 'LaTeX')")
    assert said(page) == "doubtful – LaTeX copied" and page.evaluate("$('status').className") == "doubtful"
    page.evaluate("delete document.execCommand; delete navigator.clipboard")


def test_the_keyboard_sees_where_pictures_are_opened(page: Any) -> None:
    page.locator("#clear").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    assert page.evaluate("getComputedStyle(document.querySelector('.file')).outlineStyle") == "solid"


def test_a_picture_is_read(page: Any) -> None:
    give(page, png(PAPER))
    assert reading(page) == LATEX


@pytest.mark.parametrize("bright", [0, 255])
def test_ink_on_transparency_is_read_whether_dark_or_bright(page: Any, bright: int) -> None:
    give(page, png(cv2.merge([np.full_like(INK, bright)] * 3 + [INK])))
    assert reading(page) == LATEX


def ink_given(page: Any, image: np.ndarray) -> np.ndarray:
    """What the page makes of a picture."""
    give(page, png(image))
    until(page, lambda: page.evaluate("shownInk !== null && shownInk === picture") or "no ink" in said(page))
    return ink_of(page)


def test_a_wide_picture_drawn_as_crohmes_is_taken_as_it_is(page: Any) -> None:
    wide = np.zeros((60, 1200), np.uint8)
    wide[12:-11, 12:15] = wide[12:15, 12:-11] = 255
    assert np.array_equal(prepare(wide, "wide").image, wide) and np.array_equal(ink_given(page, wide), wide)


def test_noise_is_measured_alike_on_dim_paper(page: Any) -> None:
    dim = np.where(np.pad(INK, 30) > 0, 60, 120) + np.random.default_rng(3).normal(0, 12, np.add(INK.shape, 60))
    dim = dim.clip(0, 255).astype(np.uint8)
    (high, wide), ours = ink_given(page, dim).shape, prepare(dim, "dim").image.shape
    assert (high, wide) == pytest.approx(ours, rel=0.1)


NOISE = np.random.default_rng(0).normal(200, 8, (200, 300)).clip(0, 255).astype(np.uint8)
BAD = {
    "text": (b"not an image", "not a picture that this browser can read"),
    "empty": (b"", "not a picture that this browser can read"),
    "cut": (png(PAPER)[:100], "not a picture that this browser can read"),
    "blank": (png(np.full((100, 300), 255, np.uint8)), "no ink stands out"),
    "one pixel": (png(np.zeros((1, 1), np.uint8)), "no ink"),
    "noise": (png(NOISE), "no ink stands out"),
    "wide": (png(np.zeros((500, 10_001), np.uint8)), "too many"),
    "thin": (png(np.zeros((2, 900), np.uint8)), "too long and thin"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_told_in_one_line(page: Any, name: str) -> None:
    content, words = BAD[name]
    give(page, content)
    until(page, lambda: words in said(page))
    assert "\n" not in said(page) and page.locator("#status").get_attribute("class") == "failed"


def test_a_drop_without_a_picture_is_told(page: Any) -> None:
    page.evaluate("open(undefined)")
    until(page, lambda: "no picture in it" in said(page))


def test_a_damaged_network_is_told(engine: Any, file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    at = text.index('id="data-step">') + 5000
    (tmp_path / "damaged.html").write_text(text[:at] + "AAAAAAAA" + text[at + 8 :])
    page = opened(engine, tmp_path / "damaged.html")
    until(page, lambda: "damaged" in said(page))
    assert "make the page again" in said(page) and "\n" not in said(page)
    page.close()


def test_a_browser_without_webassembly_is_told(engine: Any, file: Path) -> None:
    page = engine.new_page()
    page.add_init_script("delete window.WebAssembly")
    page.goto(file.as_uri())
    until(page, lambda: "no WebAssembly" in said(page))
    assert not page.locator("#progress").is_visible()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(page: Any, width: int, scheme: Any) -> None:
    draw(page, *X, *TWO)
    reading(page)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 900})


def test_its_scripts_agree_with_the_reader(page: Any) -> None:
    """What is complete LaTeX, and its signs; how images are scaled (search.js, which runs in the worker)."""
    draw_, words = np.random.default_rng(0), Vocabulary().words[3:]
    hard = ["{", "}", "^", "_", r"\frac", r"\sqrt", "[", "]", r"\limits", "x"]
    some = [
        [str(draw_.choice(hard if draw_.random() < 0.8 else words)) for _ in range(draw_.integers(1, 9))]
        for _ in range(1000)
    ]
    assert page.evaluate("some => some.map(isComplete)", some) == [is_complete(tuple(tokens)) for tokens in some]
    assert "<mo>&lt;</mo>" in page.evaluate(r"toMathML(['a', '\\lt', 'b'])")
    image = (np.random.default_rng(1).random((60, 90)) > 0.7).astype(np.uint8) * np.uint8(255)
    code = (make.HERE / "search.js").read_text().replace('"use strict";', "")
    code = f"([data, base, scale]) => {{ {code}; const ink = {{ width: 90, height: 60, data }};"
    code += "return [...atScale(ink, base, scale).data]; }"
    for base, scale in ((0.375, 1.45), (0.5, 1.0), (1.0, 1.0), (1.0, 1.3)):
        ours = page.evaluate(code, [image.ravel().tolist(), base, scale])
        assert np.abs(np.array(ours) - at_scale(image, base, scale).ravel().astype(int)).max() <= 1


def test_files_of_the_runtime_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in make.RUNTIME:
        (tmp_path / name).write_text("something else")
    with pytest.raises(UserError, match=r"not the file of onnxruntime-web@.*; delete it"):
        make.fetched(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="npm is not here"):
        make.fetched(tmp_path / "none")
