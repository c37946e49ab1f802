"""A picture of any kind becomes ink as CROHME draws it, by one way; CROHME's own images pass through."""

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from hmerbench.benchmarks.data import normalize_image
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.normalize_image import (
    MAX_PIXELS,
    decoded,
    drawn_as_crohme,
    mime_type,
    pixels_to_decode,
    prepare,
)
from hmerbench.benchmarks.data.pictures import gray_of, without_surroundings
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation import datasets
from tests.helpers.paths import ROOT

INK = np.array(Image.open(ROOT / "results/figures/circle.png").convert("L"))
PAGE = np.pad(INK, 30, constant_values=255)
H, W = PAGE.shape
SQUARE = np.ones((3, 3), int)


def framed(thickness: int, gray: int, at: int = 4) -> np.ndarray:
    return cv2.rectangle(PAGE.copy(), (at, at), (W - 1 - at, H - 1 - at), gray, thickness)


def on_desk(*sides: int, desk: int = 55) -> np.ndarray:
    top, below, left, right = sides
    return np.pad(PAGE, ((top, below), (left, right)), constant_values=desk)


def tilted() -> np.ndarray:
    turn = cv2.getRotationMatrix2D((W / 2 + 100, H / 2 + 100), 5, 1)
    page = np.pad(PAGE, 100, constant_values=0)
    sheet = cv2.warpAffine(np.pad(np.ones_like(PAGE), 100), turn, page.shape[::-1], flags=cv2.INTER_NEAREST)
    return np.where(sheet > 0, cv2.warpAffine(page, turn, page.shape[::-1]), 55).astype(np.uint8)


AROUND = {
    "dark desk": (on_desk(120, 120, 120, 120), "desk"),
    "much desk": (on_desk(250, 250, 250, 250), "desk"),
    "gray table": (on_desk(60, 60, 60, 60, desk=150), "desk"),
    "two sides": (on_desk(0, 60, 0, 60), "desk"),
    "tool bar": (on_desk(28, 0, 0, 0, desk=90), "desk"),
    "white on a board": (255 - on_desk(80, 80, 80, 80), "desk"),
    "thin frame": (framed(1, 0), "frame"),
    "thick frame": (framed(6, 0), "frame"),
    "pale frame": (framed(2, 180), "frame"),
    "frame at the edge": (framed(5, 0, at=0), "frame"),
    "frame on a desk": (np.pad(framed(3, 0, at=12), 90, constant_values=40), "frame"),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_the_paper_is_cut_off_and_told(name: str) -> None:
    picture, what = AROUND[name]
    plain, prepared = prepare(PAGE, "plain"), prepare(picture, name)
    assert f"{what} cut off" in prepared.done and not any("cut off" in done for done in plain.done)
    assert np.array_equal(prepared.image, plain.image)


def test_a_tilted_sheet_becomes_the_whole_paper() -> None:
    plain, prepared = prepare(PAGE, "plain"), prepare(tilted(), "tilted")
    assert "desk cut off" in prepared.done
    ours, whole = prepared.image, plain.image
    assert abs(ours.shape[1] - whole.shape[1]) < 20 and 0.9 < ours.sum() / whole.sum() < 1.1


def shaded(paper: np.ndarray) -> np.ndarray:
    return (np.linspace(0.5, 1, paper.shape[1]) * (30 + 0.8 * paper)).astype(np.uint8)


def in_shadow(paper: np.ndarray) -> np.ndarray:
    return (np.where(np.arange(paper.shape[1]) > paper.shape[1] / 2, 1, 0.55) * (30 + 0.8 * paper)).astype(np.uint8)


def cut_close(paper: np.ndarray) -> np.ndarray:
    x, y, wide, high = cv2.boundingRect(255 - paper)
    return paper[y : y + high, x : x + wide]


@pytest.mark.parametrize("taken", [lambda paper: paper, shaded, in_shadow, cut_close], ids=lambda taken: taken.__name__)
@pytest.mark.parametrize("drawn", ["writing", "root", "letter"])
def test_shadows_and_ink_at_the_edge_are_no_surroundings(taken: Callable, drawn: str) -> None:
    """A root whose bar is the upper edge, and a letter that closes like a frame, are kept whole."""
    paper = PAGE.copy()
    if drawn == "root":
        points = np.array([(8, H - 60), (20, H - 10), (30, 6), (W - 8, 6)])
        cv2.polylines(paper, [points], False, 0, 6)
    elif drawn == "letter":
        paper = np.full((90, 80), 255, np.uint8)
        cv2.rectangle(paper, (12, 10), (68, 80), 0, 4)
    picture = taken(paper)
    kept, cut = without_surroundings(picture)
    assert not cut
    assert np.array_equal(kept, picture)


@pytest.mark.parametrize("narrower", [0.06, 0.08])
def test_a_sheet_in_perspective_leaves_no_edges(narrower: float) -> None:
    sheet = np.pad(PAGE, ((120, 120), (30, 30)), constant_values=255)
    high, wide = sheet.shape
    flat = np.array([(0, 0), (wide, 0), (wide, high), (0, high)], np.float32)
    seen = np.array([(0.08 + narrower, 0.1), (0.92 - narrower, 0.1), (0.95, 0.93), (0.05, 0.93)]) * [wide, high]
    warp = cv2.getPerspectiveTransform(flat, seen.astype(np.float32))
    prepared = prepare(cv2.warpPerspective(sheet, warp, (wide, high), borderValue=55), "in perspective")
    ours, whole = prepared.image.shape, prepare(PAGE, "plain").image.shape
    assert "frame cut off" in prepared.done and np.allclose(ours, whole, rtol=0.1)


def test_a_bar_from_side_to_side_of_a_frame_parts_nothing_off() -> None:
    page = framed(4, 0)
    page[H // 2 : H // 2 + 4, 4:-4] = 0
    kept, cut = without_surroundings(page)
    assert cut == ("frame",) and kept.shape[0] > 0.8 * H


def with_lines(paper: np.ndarray, *directions: int, apart: int = 90) -> np.ndarray:
    lines = np.zeros(paper.shape, bool)
    for axis in directions:
        for at in range(apart // 2, paper.shape[axis], apart):
            np.moveaxis(lines, axis, 0)[at : at + 4] = True
    return np.minimum(paper, np.where(lines, 140, 255)).astype(np.uint8)


@pytest.mark.parametrize("directions", [(0,), (1,), (0, 1)], ids=["ruled", "columns", "squared"])
@pytest.mark.parametrize("taken", [lambda paper: paper, shaded, lambda paper: 255 - paper], ids=["", "shaded", "board"])
def test_lines_of_the_paper_are_no_ink(directions: tuple[int, ...], taken: Callable) -> None:
    sheet = np.pad(np.kron(INK, np.ones((3, 3), np.uint8)), 60, constant_values=255)
    plain, lined = (prepare(taken(paper), "it").image for paper in (sheet, with_lines(sheet, *directions)))
    assert lined.shape == plain.shape and 0.95 < lined.sum() / plain.sum() < 1.05


@pytest.mark.parametrize("bars", [1, 3])
def test_a_thin_pen_beside_a_thick_one_is_ink(bars: int) -> None:
    """Long bars of fractions and a root in pencil, in a picture cut close."""
    paper = np.full((400, 600), 255, np.uint8)
    for y in range(60, 60 + 120 * bars, 120):
        cv2.line(paper, (0, y), (599, y + 2), 130, 3)
        cv2.putText(paper, "x + 2", (60, y - 16), cv2.FONT_HERSHEY_SIMPLEX, 1.2, 0, 4)
    cv2.polylines(paper, [np.array([(2, 360), (14, 396), (24, 330), (598, 330)])], False, 130, 3)
    ink = (paper < 255).astype(np.uint8)
    assert np.array_equal(normalize_image._without_ruling(ink, 255 - paper), ink)


def saved(form: str, page: np.ndarray = PAGE, **options: object) -> bytes:
    stream = io.BytesIO()
    if form == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    Image.fromarray(page).save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "form", ["PNG", "BMP", "JPEG", "WEBP", "TIFF", "GIF", "PPM", "AVIF", "HEIF", "JPEG2000", "PCX"]
)
def test_every_format_is_read_alike(form: str) -> None:
    lossy = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}, "AVIF": {"quality": 95}, "HEIF": {"quality": 95}}
    image = prepare(saved(form, **lossy.get(form, {})), form).image
    assert np.abs(image.astype(int) - prepare(PAGE, "plain").image).mean() < (6 if form in lossy else 1e-9)


def bitmap(width: int = 37, **fields: int) -> bytes:
    """A gray bitmap of noise, with some fields of its header changed, by their place."""
    content = bytearray(cv2.imencode(".bmp", np.random.default_rng(width).integers(0, 256, (21, width), np.uint8))[1])
    for place, value in fields.items():
        content[int(place[1:])] = value
    return bytes(content)


BITMAPS = {  # content, and whether OpenCV reads it instead of Pillow
    "as CROHME's": (bitmap(), True),
    "without padding": (bitmap(40), True),
    "number of colors left out": (bitmap(_46=0, _47=0), True),
    "top row first": (bitmap(_22=256 - 21, _23=255, _24=255, _25=255), True),
    "another gray": (bitmap(_58=7, _59=7, _60=7), False),
    "a color": (bitmap(_58=200), False),
    "cut": (bitmap()[:-50], False),
    "more behind it": (bitmap() + b"more", False),
    "fewer colors": (bitmap(_46=16, _47=0), False),
    "run lengths": (bitmap(_30=1), False),
    "no height": (bitmap(_22=0), False),
    "no width": (bitmap(_18=0), False),
    "too large": (bitmap(_20=255, _24=255), False),
    "not a bitmap": (b"BX" + bitmap()[2:], False),
}


def read_or_refused(content: bytes) -> np.ndarray | str:
    try:
        return decoded(content, "it")
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("name", BITMAPS)
def test_gray_bitmaps_are_what_pillow_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content, fast = BITMAPS[name]
    assert normalize_image._gray_bitmap(content) == fast
    found, kind = read_or_refused(content), mime_type(content)
    monkeypatch.setattr(normalize_image, "_gray_bitmap", lambda _: False)
    expected = read_or_refused(content)
    assert type(found) is type(expected) and np.array_equal(found, expected) and kind == mime_type(content)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_the_orientation_of_a_phone_is_followed(form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    prepared = prepare(saved(form, np.rot90(PAGE).copy(), exif=exif), form)
    assert "turned upright" in prepared.done and prepared.image.shape == prepare(PAGE, "plain").image.shape


def test_of_several_frames_the_first_is_read() -> None:
    prepared = prepare(saved("GIF", save_all=True, append_images=[Image.fromarray(255 - PAGE[::-1])]), "two")
    assert "first frame taken" in prepared.done and np.array_equal(prepared.image, prepare(PAGE, "one").image)


@pytest.mark.parametrize(
    "picture", [PAGE, 255 - PAGE, on_desk(60, 60, 60, 60), PAGE[::3, ::3], np.kron(PAGE, [[1] * 3] * 3)]
)
def test_what_is_prepared_stays_as_it_is(picture: np.ndarray) -> None:
    once = prepare(picture.astype(np.uint8), "once")
    twice = prepare(once.image, "twice")
    assert drawn_as_crohme(once.image) and np.array_equal(once.image, twice.image) and not twice.done and once.done


def test_an_image_too_large_is_made_smaller() -> None:
    wide = np.tile(PAGE, (1, 12))
    assert 60_000 < prepare(wide, "wide", 80_000).image.size <= 80_000 < prepare(wide, "wide").image.size


def test_a_program_is_no_picture(tmp_path: Path) -> None:
    for content in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"%PDF-1.7\n", b"<svg/>"):
        with pytest.raises(UserError, match="not an image of a known format"):
            decoded(content, "program")


def test_crohmes_own_images_pass_through(crohme: Path) -> None:
    """Also in an archive that is not CROHME's; only what is above the limit of size is made smaller."""
    archive, large = zipfile.ZipFile(crohme), 0
    assert open_archive(crohme).splits == tuple(datasets.crohme().splits)
    names = [name for name in archive.namelist() if name.endswith(".bmp")]
    for name in (*names[::17], "data/2014/img/505_em_51.bmp"):
        raw = decoded(archive.read(name), name)
        with Image.open(io.BytesIO(archive.read(name))) as picture:
            assert np.array_equal(raw, np.asarray(picture.convert("L")))
        prepared = prepare(archive.read(name), name)
        large += raw.size > 320_000
        assert (np.array_equal(prepared.image, raw) and not prepared.done) == (raw.size <= 320_000)
    assert large


def noise(kind: str, height: int, width: int) -> Image.Image:
    draws = np.random.default_rng(height)
    if kind == "16 bits":
        return Image.fromarray(draws.integers(0, 65536, (height, width)).astype(np.uint16))
    if kind == "floats":
        values = draws.normal(0, 100, (height, width)).astype(np.float32)
        return Image.fromarray(np.where(values > 200, np.nan, values))
    rgba = draws.integers(0, 256, (height, width, 4), dtype=np.uint8)
    rgba[..., 3] = rgba[..., 3] // 2 if kind == "glass" else np.where(rgba[..., 3] > 60, 255, 0)
    return Image.fromarray(rgba)


KINDS = ("16 bits", "floats", "glass", "holes")


@pytest.mark.parametrize("kind", KINDS)
def test_brightness_is_that_of_the_whole_picture(kind: str) -> None:
    """Rows are worked on some at a time; what they need to know of each other is told by numpy on all at once."""
    picture = noise(kind, 700, 31)
    if picture.mode == "RGBA":
        gray, alpha = (np.asarray(band, np.float32) for band in picture.convert("LA").split())
        paper = np.median(gray[alpha > 127]) if kind == "holes" else 255 * ((gray * alpha).sum() <= 127 * alpha.sum())
        expected = (paper + (gray - paper) * alpha / 255).round()
    else:
        values = np.nan_to_num(np.asarray(picture, np.float64))
        expected = np.interp(values, (values.min(), values.max()), (0, 255)).round()
    assert np.array_equal(gray_of(picture), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_brightness_takes_few_bytes_a_pixel(kind: str) -> None:
    picture = noise(kind, 2000, 1000)
    tracemalloc.start()
    gray = gray_of(picture)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert gray.nbytes <= most < 10 * gray.size  # as floats of 8 bytes, it took 20 and more


def test_how_much_is_decoded_is_known_before() -> None:
    def saved(kind: str, width: int, height: int) -> bytes:
        file = io.BytesIO()
        Image.new("1", (width, height)).convert("L" if kind == "JPEG" else "1").save(file, kind)
        return file.getvalue()

    assert pixels_to_decode(saved("PNG", 6000, 5000)) == 30_000_000
    assert pixels_to_decode(saved("JPEG", 6000, 5000)) == 3000 * 2500  # what Pillow decodes of it
    assert pixels_to_decode(saved("PNG", 11_000, 10_000)) > MAX_PIXELS
    assert pixels_to_decode(b"no picture") == pixels_to_decode(b"") == 0
