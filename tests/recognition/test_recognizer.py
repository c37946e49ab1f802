"""Single images: background and file format do not matter, and bad images do not stop the others."""

import errno
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.data import normalize_image
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import MARGIN
from hmerbench.benchmarks.data.normalize_image import decoded, prepare
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition import predict, recognizer
from hmerbench.benchmarks.recognition.confidence import logp
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.regression_gate.networks import known_network
from hmerbench.benchmarks.resolve import resolve
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import searcher
from hmerbench.models.weights import load_weights, pack_weights
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.pictures import INK, LATEX, PAPER
from tests.helpers.tiny import tiny_archive, tiny_config, untrained_run


def on_transparency(ink: int) -> Image.Image:
    """Ink of one brightness on a transparent background."""
    image = Image.new("L", PAPER.size, ink).convert("LA")
    image.putalpha(ImageOps.invert(PAPER))
    return image


def with_holes() -> Image.Image:
    image, whole = PAPER.convert("RGBA"), Image.new("L", PAPER.size, 255)
    whole.paste(0, (0, 0, 10, 10))
    image.putalpha(whole)
    return image


def photograph() -> Image.Image:
    """Four times the size, pencil gray, a shadow across, noise."""
    ink = cv2.GaussianBlur(cv2.resize(np.pad(INK, 50), None, fx=4, fy=4), (0, 0), 2) / 255
    y, x = np.mgrid[: ink.shape[0], : ink.shape[1]]
    light = (0.5 + 0.4 * x / ink.shape[1]) * np.where(x + y / 4 > ink.shape[1] * 0.6, 0.7, 1.0)
    light = cv2.GaussianBlur(light, (0, 0), 12)
    noise = np.random.default_rng(0).normal(0, 4, ink.shape)
    return Image.fromarray(np.clip(235 * light * (1 - 0.6 * ink) + noise, 0, 255).astype(np.uint8))


def turned() -> tuple[Image.Image, Image.Exif]:
    exif = Image.Exif()
    exif[0x112] = 8  # the camera lay on its side
    return PAPER.rotate(-90, expand=True), exif


def colors(ink: tuple[int, int, int], paper: tuple[int, int, int]) -> Image.Image:
    return ImageOps.colorize(PAPER, ink, paper)


AS_STORED: dict[str, Callable[[], tuple[str, Image.Image, dict]]] = {
    "dark on light PNG": lambda: ("x.png", PAPER, {}),
    "light on dark BMP": lambda: ("x.bmp", ImageOps.invert(PAPER), {}),
    "two colors BMP": lambda: ("x.bmp", PAPER.convert("1"), {}),
    "JPEG": lambda: ("x.jpg", PAPER, {"quality": 40}),
    "CMYK JPEG": lambda: ("x.jpeg", PAPER.convert("CMYK"), {}),
    "JPEG on its side": lambda: ("x.jpg", turned()[0], {"quality": 95, "exif": turned()[1]}),
    "blue on yellow": lambda: ("x.png", colors((20, 40, 160), (250, 240, 180)), {}),
    "chalk on green": lambda: ("x.jpg", colors((240, 240, 230), (30, 90, 60)), {"quality": 80}),
    "palette": lambda: ("x.png", PAPER.convert("P"), {}),
    "12 of 16 bits": lambda: ("x.png", Image.fromarray(4095 - INK.astype(np.uint16) * 16), {}),
    "16 bit": lambda: ("x.png", Image.fromarray((255 - INK).astype(np.uint16) * 200 + 5000), {}),
    "dark on glass": lambda: ("x.png", on_transparency(20), {}),
    "light on glass": lambda: ("x.png", on_transparency(235), {}),
    "paper with holes": lambda: ("x.png", with_holes(), {}),
    "wide margin": lambda: ("x.png", ImageOps.expand(PAPER, 150, 255), {}),
    "no margin": lambda: ("x.png", PAPER.crop(ImageOps.invert(PAPER).getbbox()), {}),
}
LARGER: dict[str, Callable[[], tuple[str, Image.Image, dict]]] = {
    "scan": lambda: ("x.png", PAPER.resize((PAPER.width * 6, PAPER.height * 6), Image.Resampling.BICUBIC), {}),
    "photograph": lambda: ("x.jpg", photograph(), {"quality": 70}),
}


@pytest.fixture
def program(tmp_path: Path, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., tuple]:
    """`hmerbench recognize` with quick weights, and a.png to read: the exit code, and what was printed to both."""
    PAPER.save(tmp_path / "a.png")

    def run(*arguments: str | Path, weights: Path | None = quick) -> tuple[int | str | None, str, str]:
        given = [*(["--weights", weights] if weights else []), *arguments]
        monkeypatch.setattr(sys, "argv", ["benchmarks", "recognize", *map(str, given)])
        with pytest.raises(SystemExit) as left:
            sys.exit(cli.main())
        return left.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("kind", AS_STORED)
def test_every_format_gives_the_same_ink(kind: str, tmp_path: Path) -> None:
    name, image, options = AS_STORED[kind]()
    image.save(tmp_path / name, **options)
    ink = prepare(tmp_path / name, name).image
    plain = prepare(255 - INK, "plain").image
    assert ink.shape == plain.shape
    if "jp" in name:  # lossy
        assert np.mean(ink != plain) < 0.01
    else:
        assert np.array_equal(ink, plain)


@pytest.mark.parametrize("kind", ["JPEG", *LARGER])
def test_what_is_not_the_same_ink_gives_the_same_latex(kind: str, tmp_path: Path, medium: Recognizer) -> None:
    name, image, options = (AS_STORED | LARGER)[kind]()
    image.save(tmp_path / name, **options)
    assert medium(tmp_path / name).latex == LATEX


def test_the_network_is_made_ready_once(monkeypatch: pytest.MonkeyPatch, medium: Recognizer) -> None:
    made: list[object] = []
    monkeypatch.setattr(predict, "searcher", lambda *networks: made.append(networks) or searcher(*networks))
    read = Recognizer(medium.model, medium.config)
    assert [read(255 - INK).latex for _ in range(2)] == [LATEX] * 2 and len(made) == 1


def test_ink_of_any_size_and_pen_is_rendered_as_crohmes() -> None:
    plain = prepare(255 - INK, "plain").image
    height = plain.shape[0]
    for factor in (0.5, 3, 8):
        pen = np.ones((max(1, 2 * round(factor) - 1),) * 2, np.uint8)
        scaled = cv2.dilate(cv2.resize(INK, None, fx=factor, fy=factor), pen)
        ink = prepare(255 - scaled, "scaled").image
        assert set(np.unique(ink)) == {0, 255}
        assert 0.7 * height < ink.shape[0] < 1.4 * height
        distance = cv2.distanceTransform(ink, cv2.DIST_L2, 5)
        assert np.quantile(distance[ink > 0], 0.99) <= 4  # no stroke is much wider than three pixels
        assert not ink[:MARGIN].any() and ink[MARGIN].any()


@pytest.mark.parametrize("pen", [2, 3, 4, 5, 6, 8])
def test_diagonals_of_any_pen_are_read(pen: int, medium: Recognizer) -> None:
    """x + 1: of bands two pixels wide, or of an even width, thinning once left hardly a dot."""
    side = 10 * pen
    image = np.full((side + 40, 4 * side), 255, np.uint8)
    band = np.tri(side, k=pen // 2) - np.tri(side, k=pen // 2 - pen)
    image[20 : 20 + side, 20 : 20 + side][np.maximum(band, band[:, ::-1]) > 0] = 0
    for (x, y), (to_x, to_y) in (((14, 5), (22, 5)), ((18, 1), (18, 9)), ((28, 0), (28, 10))):
        cv2.line(image, (20 + x * pen, 20 + y * pen), (20 + to_x * pen, 20 + to_y * pen), 0, pen)
    assert medium(image).latex in ("x + 1", "X + 1")


def test_bars_and_long_lines(medium: Recognizer) -> None:
    bar = np.full((60, 90), 255, np.uint8)
    bar[29:32, 20:70] = 0
    assert medium(bar).latex == "-"
    long = np.tile(255 - INK, (1, 30))
    ink = prepare(long, "long").image
    assert 0.9 * 320_000 < ink.size <= 320_000


def test_stripes_of_many_widths_are_scaled_by_their_stroke() -> None:
    """A symbol is lower on average than a stroke is wide here, which would scale the ink by a negative factor."""
    stripes = np.full((900, 900), 255, np.uint8)
    for top in range(20, 260, 60):
        stripes[top : top + 30, 20:860] = 0
    for top in range(300, 800, 10):
        for left in range(20, 740, 120):
            stripes[top : top + 2, left : left + 80] = 0
    stripes[300:390, 760:800] = 0
    assert 100 < min(prepare(stripes, "stripes").image.shape) < 400


def pattern(kind: str, draw: np.random.Generator) -> np.ndarray:
    """A dark pattern on a light background that is no expression: random dots or lines, or a grid."""
    image = np.full((100, 160), 255, np.uint8)
    places = [(int(x), int(y)) for x, y in draw.integers((10, 10), (150, 90), (20, 2))]
    for one, other in pairwise(places):
        if kind == "dots":
            cv2.circle(image, one, 2, 0, -1)
        if kind == "lines" and draw.random() < 0.5:
            cv2.line(image, one, other, 0, 3)
    if kind == "grid":
        image[10 : 90 : int(draw.integers(12, 30)), 10:150] = image[10:90, 10 : 150 : int(draw.integers(12, 30))] = 0
        image = cv2.erode(image, np.ones((3, 3), np.uint8))
    return image


def test_doubtful_results_are_reported(tmp_path: Path, program) -> None:
    cv2.imwrite(str(tmp_path / "dots.png"), pattern("dots", np.random.default_rng(0)))
    code, out, said = program("--json", tmp_path / "dots.png", tmp_path / "a.png", weights=None)
    dots, drawn = (json.loads(line) for line in out.splitlines())
    assert code == 0 and dots["doubtful"] and dots["confidence"] < 0.2
    assert not drawn["doubtful"] and drawn["latex"] == LATEX and drawn["confidence"] > 0.8
    assert all(other["confidence"] < drawn["confidence"] for other in drawn["nbest"][1:])
    doubt, summary = said.splitlines()
    assert doubt.startswith(f"doubtful: {tmp_path / 'dots.png'}: ") and summary.startswith("read 2 of 2 by ")


@pytest.mark.long
def test_doubt_separates_patterns_from_expressions(crohme: Path) -> None:
    draw, recognizer = np.random.default_rng(0), Recognizer.load()
    archive = open_archive(crohme)
    short = [(id_, tokens) for id_, tokens in archive.captions("train").items() if len(tokens) <= 20]
    every = [pattern(kind, draw) for kind in ("dots", "lines", "grid") for _ in range(3)]
    patterns = recognizer(every[1::2])  # with the two that it doubts least
    chosen = evenly(short, 8)
    read = recognizer([archive.image("train", id_) for id_, _ in chosen])
    right = [found for found, (_, tokens) in zip(read, chosen, strict=True) if [*found.tokens] == tokens]
    assert sum(found.doubtful for found in patterns) >= 0.8 * len(patterns)
    assert len(right) >= 0.9 * len(chosen) and sum(found.doubtful for found in right) <= 0.05 * len(right)


def test_candidates_are_sorted_and_distinct(medium: Recognizer) -> None:
    found = medium(255 - INK)
    assert found.latex == " ".join(found.tokens) == LATEX
    scores = [c.score for c in found.nbest]
    assert len(scores) > 2 and scores == sorted(scores, reverse=True)
    assert len({c.tokens for c in found.nbest}) == len(scores)
    assert all(c.score == pytest.approx(c.forward + c.reverse) for c in found.nbest)


def test_confidence_does_not_depend_on_the_length_penalty(medium: Recognizer) -> None:
    plain = medium(255 - INK).nbest[0]
    for alpha in (0.0, 2.0):
        best = Recognizer(medium.model, medium.config.changed({"search.alpha": alpha}))(255 - INK).nbest[0]
        assert best.ids == plain.ids and best.score != pytest.approx(plain.score)
        assert best.confidence == pytest.approx(plain.confidence, abs=1e-3)
        assert best.evidence.per_token == pytest.approx(plain.evidence.per_token, abs=1e-3)


@pytest.mark.parametrize("recipe", ["bttr-original", "densewap", "densewap-td", "comer-fusion"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_confidence_is_the_mean_of_what_each_search_divided(recipe: str, alpha: float) -> None:
    """Their scores count the end, or do not, or count the symbols of a tree: with alpha 0 none of that matters."""
    config = resolve(recipe, "paper", 0)
    model = known_network(config).float()

    def best(alpha: float) -> tuple[Hypothesis, float]:
        beams = 110 if recipe == "densewap" else 8  # with fewer, nothing ends in time
        found = searcher(model)([view], SearchOptions(beam_size=beams, max_len=12, alpha=alpha))[0]
        chosen = min(found, key=lambda hypothesis: (len(hypothesis.ids), hypothesis.ids))
        return chosen, math.exp(logp(chosen, alpha) / (len(chosen.ids) + 1))

    view = torch.from_numpy(INK)[None, None] / 255, torch.zeros(1, *INK.shape, dtype=torch.bool)
    (plain, per_token), (other, its) = best(0.0), best(alpha)
    assert per_token == pytest.approx(
        np.exp((plain.forward + plain.reverse) / (len(plain.ids) + 1) / (2 if plain.reverse else 1))
    )
    if other.ids == plain.ids:  # CoMER's beam depends on alpha
        assert its == pytest.approx(per_token, rel=1e-4)
    else:
        assert recipe == "comer-fusion"


@pytest.mark.parametrize("recipe", ["bttr-original", "densewap", "densewap-td"])
def test_a_search_with_rules_of_its_own_refuses_to_stop_early(recipe: str) -> None:
    read = searcher(known_network(resolve(recipe, "paper", 0)))
    view = torch.ones(1, 1, 16, 16), torch.zeros(1, 16, 16, dtype=torch.bool)
    with pytest.raises(ValueError, match="rules of its own"):
        read([view], SearchOptions(early_stopping=True))


@pytest.mark.parametrize(("name", "recipe"), [("comer (1)", "comer _1_"), ("-last", "_last"), ("a+b", "a+b")])
def test_any_name_of_a_checkpoint_will_do(tmp_path: Path, monkeypatch, name: str, recipe: str) -> None:
    model = known_network(resolve("comer-fusion", "paper", 0)).float()
    monkeypatch.setattr(recognizer, "import_lightning", lambda path: model)
    assert Recognizer.load(tmp_path / f"{name}.ckpt").config.recipe == recipe


def test_crohme_images_are_not_changed_and_are_recognized(medium: Recognizer, crohme: Path) -> None:
    archive = open_archive(crohme)
    for id_ in ("18_em_13", "502_em_19", "RIT_2014_234"):
        image = archive.image("2014", id_)
        assert np.array_equal(prepare(255 - image, id_).image, image)
        assert medium(image).latex == " ".join(archive.captions("2014")[id_])


# ------------------------------------------------------------------------------------------------- bad input


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">iiBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(50_000))) + chunk(b"IEND", b"")


GRAY = np.random.default_rng(0).normal(200, 8, (200, 300)).clip(0, 255).astype(np.uint8)
BAD = {
    "text.png": (b"not an image", "not an image of a known format"),
    "empty.png": (b"", "not an image of a known format"),
    "cut.png": (png(GRAY)[:5000], "damaged"),
    "bomb.png": (bomb(50_000, 50_000), "million pixels"),
    "negative.png": (bomb(-50, 50), "million pixels"),
    "blank.png": (png(np.full((100, 300), 255, np.uint8)), "no ink"),
    "black.png": (png(np.zeros((1, 1), np.uint8)), "no ink"),
    "noise.png": (png(GRAY), "no ink"),
    "line.png": (png(np.zeros((1, 100_000), np.uint8)), "100000 x 1 pixels, too long and thin"),
    "wide.png": (png(np.tile(np.array([[0, 255]], np.uint8), (2, 2500))), "5000 x 2 pixels, too long and thin"),
    "high.png": (png(np.tile(np.array([[0, 255]], np.uint8), (5000, 1))), "2 x 5000 pixels, too long and thin"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused(name: str, tmp_path: Path) -> None:
    content, words = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words) as error:
        prepare(tmp_path / name, str(tmp_path / name))
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_paths_that_lead_nowhere_are_refused_as_such(tmp_path: Path) -> None:
    PAPER.save(tmp_path / "a.png")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("nowhere.png", "a.png/x.png", "loop", "a" * 300, "."):
        with pytest.raises(UserError, match="give the path of an image that may be read"):
            decoded(tmp_path / name, name)
    with pytest.raises(UserError, match="no ink"):
        prepare(np.zeros((0, 5), np.uint8), "nothing")
    for other in (np.zeros((9, 9, 3), np.uint8), np.zeros((9, 9)), np.zeros((9, 9), bool)):
        with pytest.raises(UserError, match=r"must be a gray image \(H, W\) of uint8"):
            prepare(other, "other")


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path, quick: Path) -> None:
    PAPER.save(tmp_path / "a.png")
    command = [sys.executable, "-m", "hmerbench", "recognize", "--weights", quick, *[tmp_path / "a.png"] * 3]
    done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout and done.stderr
    done.stdout.close()
    assert (done.stderr.read(), done.wait()) == (b"", 1)


def test_on_the_command_line(tmp_path: Path, quick: Path) -> None:
    """Bad images are reported on stderr and by the exit code; the others are recognized."""
    last, hostile = os.fsdecode(b"b\xff.jpg"), "c\n\x1b[31m.png"  # the one is not UTF-8, the other colors a terminal
    PAPER.save(tmp_path / "a.png")
    PAPER.save(tmp_path / hostile)
    PAPER.save(tmp_path / last)
    (tmp_path / "none").mkdir()
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "line.png").write_bytes(BAD["line.png"][0])
    images = [tmp_path / name for name in ("nowhere.png", "a.png", "none", "text.png", "line.png", last, hostile)]
    command = [sys.executable, "-m", "hmerbench", "recognize", "--weights", quick / "best.safetensors", *images]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="surrogateescape")
    assert done.returncode == 1
    assert done.stdout == "".join(f"{tmp_path / name}\t{LATEX}\n" for name in ("a.png", last, r"c\n\x1b[31m.png"))
    *said, summary = done.stderr.splitlines()
    for line, name in zip(said, ("nowhere.png", "none", "text.png", "line.png"), strict=True):
        assert line.startswith(f"error: {tmp_path / name}: ")
    assert summary.startswith("read 3 of 7 by ")


def test_an_unexpected_error_does_not_stop_the_other_images(tmp_path: Path, program, monkeypatch) -> None:
    PAPER.crop((0, 0, 50, 50)).save(tmp_path / "b.png")
    plain = normalize_image._crop

    def breaks_once(ink: np.ndarray) -> np.ndarray:
        if ink.shape == (50, 50):
            raise cv2.error("OpenCV: assertion\nfailed")
        return plain(ink)

    monkeypatch.setattr(normalize_image, "_crop", breaks_once)
    code, out, said = program(tmp_path / "b.png", tmp_path / "a.png")
    assert (code, out) == (1, f"{tmp_path / 'a.png'}\t{LATEX}\n")
    assert said.startswith(f"error: {tmp_path / 'b.png'}: OpenCV: assertion failed\nread 1 of 2 by ")


def test_one_image_prints_one_line(tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one on stderr, which names the network and its speed; nothing of matplotlib is needed for them."""
    for module in ("matplotlib", "hmerbench.benchmarks.report.figures.attention"):
        monkeypatch.setitem(sys.modules, module, None)
    code, out, said = program(tmp_path / "a.png")
    assert (code, out) == (0, LATEX + "\n")
    assert re.fullmatch(r"read 1 of 1 by comer-fusion, \w+, seed 7 \(1\.\d M parameters\), \d+\.\d\d s each\n", said)


def test_what_attention_maps_need_is_missed_before_an_image_is_read(tmp_path: Path, program, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "hmerbench.benchmarks.report.figures.attention", None)
    code, out, said = program("--show", tmp_path / "a.png")
    assert (code, out) == (1, "") and said.count("\n") == 1 and "pip install 'hmerbench[suite]'" in said


def test_json_and_attention_on_the_command_line(tmp_path: Path, program) -> None:
    shown = f"{tmp_path / 'a.png'}.prepared.png"
    code, out, said = program("--json", "--nbest", "3", "--show", "--show-prepared", tmp_path / "a.png")
    assert code == 0 and said.startswith(f"prepared: {shown} (inverted; scaled by ")
    assert f"\nattention: {tmp_path / 'a.png'}.attention.png\nread 1 of 1 by " in said
    answer = json.loads(out)
    assert answer["prepared"][0] == "inverted"
    code, again, said = program("--show-prepared", shown)
    assert code == 0 and "(read as it is)" in said and again == answer["latex"] + "\n"
    assert answer["image"] == str(tmp_path / "a.png") and answer["latex"] == LATEX and len(answer["nbest"]) == 3
    with Image.open(tmp_path / "a.png.attention.png") as drawn:
        assert drawn.width > 1000
    assert recognizer.files(tmp_path) == [tmp_path / "a.png"]  # not what is shown of it
    (tmp_path / "notes.pdf").write_bytes(b"%PDF")
    _, again, said = program(*sorted(tmp_path.glob("*.png")), tmp_path)
    assert again == 2 * f"{tmp_path / 'a.png'}\t{LATEX}\n" and f"{tmp_path / 'notes.pdf'}\n" in said


def test_a_full_disk_loses_nothing_that_was_read(tmp_path: Path, program, quick: Path, monkeypatch) -> None:
    full = Mock(side_effect=UserError("a.png.attention.png: No space left on device; copy the image"))
    monkeypatch.setattr("hmerbench.benchmarks.report.figures.attention.beside", full)
    code, out, said = program("--show", tmp_path / "a.png")
    assert (code, out) == (1, LATEX + "\n") and said.startswith("error: a.png.attention.png: No space left")
    monkeypatch.setattr("hmerbench.benchmarks.files.os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    code, out, _ = program("--show-prepared", *[tmp_path / "a.png"] * 2)
    assert code == 1 and out.count(LATEX) == 2  # the second is read though the first's cannot be shown
    monkeypatch.setattr("builtins.print", Mock(side_effect=[OSError(errno.ENOSPC, "No space left"), None, None]))
    with pytest.raises(OSError, match="No space left"):  # of the output, which is no fault of the picture
        cli.app(["recognize", "--weights", str(quick), str(tmp_path / "a.png")], standalone_mode=False)


def test_a_low_confidence_is_not_rounded_up_to_the_limit(tmp_path: Path, program, monkeypatch) -> None:
    monkeypatch.setattr(recognizer, "calibration", lambda: lambda _: 0.49999)
    assert "of readings as uncertain as this one, 49.9 % are right" in program(tmp_path / "a.png")[2]
    monkeypatch.setattr(Recognizer, "calibrated", False)
    said = program(tmp_path / "a.png")[2]
    assert "its confidence is 49.9 %, on a scale fitted to CROHME" in said and "are right" not in said


def test_a_confidence_is_a_share_for_weights_of_crohme_alone(medium: Recognizer) -> None:
    assert medium.calibrated
    assert not Recognizer(medium.model, medium.config.changed({"data": {"name": "foreign"}})).calibrated


# --------------------------------------------------------------------------------------------------- weights


def test_unusable_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such weights"):
        Recognizer.load(tmp_path)
    with pytest.raises(UserError, match=r"of the runs beside it, these have some: .*large-seed7, medium-seed7"):
        Recognizer.load(MEDIUM.with_name("medium-seed8"))
    (tmp_path / "lone.safetensors").write_bytes((MEDIUM / "best.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"no config\.yaml beside it"):
        Recognizer.load(tmp_path / "lone.safetensors")


def test_weights_that_overflow_are_refused(tmp_path: Path, program) -> None:
    run = untrained_run(tmp_path, tiny_config(tiny_archive(tmp_path / "archive")))
    model = load_weights(run.weights_file)
    torch.nn.init.constant_(model.get_parameter("decoder.proj.weight"), 3e38)  # finite, unlike its sums
    run.write("best.safetensors", pack_weights(model))
    code, out, said = program("--json", tmp_path / "a.png", weights=tmp_path)
    assert (code, out) == (1, "") and said.startswith(f"error: {tmp_path / 'a.png'}: the network overflows")


def test_recognizing_has_one_thread_and_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else memory grows with every new shape of an image, by about 0.5 MB for each of its kernels."""
    limits = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY", "OMP_NUM_THREADS")

    def after(*arguments: str) -> list[str | None]:
        for name in limits:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "argv", ["hmerbench", *arguments])
        with suppress(SystemExit):
            cli.main()
        return [os.environ.get(name) for name in limits]

    assert after("recognize", "nowhere.png") == [None, None, "1"]  # oneDNN's own limits are 1,024 kernels
    assert after("draw", "nowhere") == after("export", "nowhere") == [None, None, "1"]
    assert after("serve", "nowhere") == ["64", "64", "1"]  # for ever
    assert after("ls") == ["16384", None, None]


def test_any_run_folder_can_be_loaded(tmp_path: Path) -> None:
    """Its own search options are used."""
    untrained_run(tmp_path, tiny_config(tiny_archive(tmp_path / "archive")))
    found = Recognizer.load(tmp_path)(255 - INK)
    assert 0 < len(found.nbest) <= 4 and all(len(c.tokens) <= 8 for c in found.nbest)


def test_the_picture_in_the_readme_is_read_as_it_says() -> None:
    picture = "results/figures/circle.png"
    latex = Recognizer.load()(ROOT / picture).latex
    assert f'<img src="{picture}"' in (text := (ROOT / "README.md").read_text()) and f"    {latex}\n" in text
