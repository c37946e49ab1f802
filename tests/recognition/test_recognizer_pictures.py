"""What a recognizer takes, and what it gives back."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.recognizer import (
    BATCH,
    Recognition,
    Recognizer,
    gray_array,
    is_several,
    pictures_of,
)
from hmerbench.evaluation.symlg import Unconverted
from hmerbench.evaluation.symlg.mathml import from_mathml, to_mathml
from tests.helpers.pictures import INK, LATEX, PAPER

GRAY = np.asarray(PAPER.convert("L"))


def png() -> bytes:
    file = io.BytesIO()
    PAPER.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.png", "a.PNG", "c.jpg"):
        PAPER.save(tmp_path / name, "JPEG" if name.endswith("jpg") else "PNG", quality=95)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


FORMS = {
    "bytes": png(),
    "bytearray": bytearray(png()),
    "memoryview": memoryview(png()),
    "stream": io.BytesIO(png()),
    "PIL": PAPER,
    "PIL RGBA": PAPER.convert("RGBA"),
    "gray": GRAY,
    "RGB": np.stack([GRAY] * 3, -1),
    "RGBA": np.concatenate([np.stack([GRAY] * 3, -1), np.full((*GRAY.shape, 1), 255, np.uint8)], -1),
    "one channel": GRAY[..., None],
    "floats": GRAY / 255,
    "bool": GRAY > 127,
    "uint16": GRAY.astype(np.uint16) * 257,
    "12 of 16 bits": np.stack([GRAY.astype(np.uint16) * 16] * 3, -1),
}


def test_every_form_of_a_picture_is_read_alike(medium: Recognizer, folder: Path) -> None:
    pictures: list[Any] = [*FORMS.values(), folder / "a.PNG", str(folder / "b.png"), [folder]]
    found = medium(pictures)
    assert [each.latex for each in found] == [LATEX] * (len(FORMS) + 5)
    assert [Path(each.name).name for each in found[-5:]] == ["a.PNG", "b.png", "a.PNG", "b.png", "c.jpg"]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    [(name, picture)] = pictures_of(FORMS[form])
    assert name and not is_several(FORMS[form]) and isinstance(picture, bytes | np.ndarray)
    if isinstance(picture, np.ndarray):
        assert picture.dtype == np.uint8 and np.abs(picture.astype(int) - GRAY).max() <= (255 if form == "bool" else 1)


BAD = {
    "number": (3, "int is no picture"),
    "nothing": (None, "NoneType is no picture"),
    "complex": (np.zeros((9, 9), complex), "an array of complex128 of shape (9, 9) is no picture"),
    "five channels": (np.zeros((9, 9, 5), np.uint8), "shape (9, 9, 5)"),
    "flat": (np.zeros(9, np.uint8), "shape (9,)"),
    "large floats": (np.full((9, 9), 200.0), "floats from 0 to 1"),
    "not a number": (np.full((9, 9), np.nan), "floats from 0 to 1"),
    "a mode of colors that Pillow cannot make gray": (Image.new("LAB", (9, 9)), "damaged image"),
    "cut, open": (Image.open(io.BytesIO(png()[:-100])), "damaged image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_picture_is_refused(name: str) -> None:
    given, words = BAD[name]
    with pytest.raises(UserError) as error:
        pictures_of([PAPER, given])
    assert words in str(error.value) and "image 2" in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pictures in this folder"):
        pictures_of(tmp_path)
    assert gray_array(np.zeros((0, 0), np.uint8), "x").size == 0


def test_of_several_all_faults_are_told_and_the_others_are_read(medium: Recognizer, tmp_path: Path) -> None:
    pictures: list[Any] = [PAPER, b"text", tmp_path / "nowhere.png", np.full((50, 50), 255, np.uint8), 255 - INK]
    with pytest.raises(UserError, match=r"image 2: not an image .*and 2 more: .*nowhere.png.*image 4: no ink"):
        medium(pictures)
    found = list(medium.each(pictures))
    assert [getattr(each, "latex", None) for each in found] == [LATEX, None, None, None, LATEX]
    assert len(list(medium.each([b"text"] * (BATCH + 1)))) == BATCH + 1


def test_a_recognition_shows_itself(medium: Recognizer) -> None:
    found = medium(PAPER)
    assert isinstance(found, Recognition)
    assert repr(found) == f"<image: {LATEX} ({found.confidence:.0%})>" and "\n" not in repr(medium)
    plain = json.loads(json.dumps(found.to_dict(2)))
    assert plain["latex"] == plain["nbest"][0]["latex"] == LATEX and len(plain["nbest"]) == 2
    assert plain["image"] == "image" and plain["mathml"] == found.mathml
    html = found._repr_html_()
    assert found.mathml in html and "data:image/png;base64," in html and "<script" not in html


@pytest.mark.parametrize(
    ("latex", "mathml"),
    [
        ("x ^ { 2 }", "<msup><mi>x</mi><mn>2</mn></msup>"),
        (r"\frac { 1 } { a < b }", "<mfrac><mn>1</mn><mrow><mi>a</mi><mo>&lt;</mo><mi>b</mi></mrow></mfrac>"),
        (r"\sqrt [ 3 ] { x }", "<mroot><mi>x</mi><mn>3</mn></mroot>"),
        (r"\sum \limits _ { i } ^ { n } i", "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><mi>i</mi>"),
    ],
)
def test_mathml(latex: str, mathml: str) -> None:
    made = to_mathml(latex)
    assert mathml in made and from_mathml(made).objects
    with pytest.raises(Unconverted):
        to_mathml(latex + " {")


def test_deep_nesting_is_no_problem() -> None:
    assert to_mathml(r"\sqrt { " * 900 + "x" + " }" * 900).count("<msqrt>") == 900
