"""The passport of an archive: what its splits have, how they are written, and what they share, nearly equal images
included; as Croissant, too."""

import json
import os
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data import croissant
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.passport import describe, fingerprint, near, passport, pixels
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation.datasets import crohme as known_crohme
from hmerbench.evaluation.symlg import from_latex, lg_text

CAPTIONS = {
    "train": {"a_1": r"\sum \limits _ { i } x ^ { 2 }", "a_2": "1 + 2", "b_1": "y"},
    "test": {"a_1": "1 + 2", "c_1": r"\sum _ { i } a _ { b ^ { c } }"},
}


def picture(text: str, shift: int = 0, ending: str = ".png") -> bytes:
    canvas = np.zeros((60, 140), np.uint8)
    cv2.putText(canvas, text, (12, 45 - shift), cv2.FONT_HERSHEY_SCRIPT_COMPLEX, 1, 255, 2)
    return cv2.imencode(ending, canvas)[1].tobytes()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two splits that share an id, a caption, an image that is equal and one that is nearly so."""
    images = {"train": {"a_1": "x+y", "a_2": "3k", "b_1": "(z)"}, "test": {"a_1": "3k", "c_1": "x+y"}}
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as file:
        file.writestr("data/PREPARED.json", "{}")
        for split, captions in CAPTIONS.items():
            file.writestr(f"data/{split}/caption.txt", "".join(f"{key}\t{text}\n" for key, text in captions.items()))
            file.writestr(f"data/{split}/writers.txt", "".join(f"{key}\t{key[0]}\n" for key in captions))
            for key, text in captions.items():
                file.writestr(f"data/{split}/img/{key}.png", picture(images[split][key], 3 * (key == "c_1")))
                shown = text if key != "c_1" else text.replace(r"\sum", r"\sum \limits")
                file.writestr(f"data/{split}/symLg/{key}.lg", lg_text(from_latex(shown.split()), key))
    return tmp_path / "mine.zip"


def test_splits_are_described_and_compared(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = passport(open_archive(archive))
    train, test = report["splits"].values()
    assert (train["nesting"], test["nesting"]) == ([2, 1], [1, 0, 1])
    assert train["limits"] == {r"\limits": 1, "script": 0, "neither": 0}
    assert test["limits"] == {r"\limits": 0, "script": 1, "neither": 0}
    assert test["symlg"] == {
        "differ": ["c_1"],
        "differ_without_limits": [],
        "limits": {"Below": 1, "Above": 0, "Sub": 0, "Sup": 0},
    }
    assert (test["captions_in_train"], test["captions_in_train_or_parts"]) == (1, None)
    assert train["captions_in_train"] is None
    assert train["writers"] == test["writers"] == {"n": 2, "known by": "writers.txt"}
    assert report["between"] == {
        "train, test": {
            "shared_ids": 1,
            "shared_captions": 1,
            "shared_writers": 1,
            "equal_images": [["a_2", "a_1"]],
            "near_images": [["a_1", "c_1"]],
        }
    }
    assert report["vocabulary"] == known_crohme().vocabulary and report["published"] is None
    describe(report)
    told = capsys.readouterr().out
    assert "train, test: equal images: a_2 and a_1" in told and "near images: a_1 and c_1" in told
    del train["symlg"]["limits"]  # as of a set whose training set has no ground truth
    describe(report)
    assert re.search(r"symLG: limits Below *│ *– *│ *1 ", capsys.readouterr().out)


def test_ids_tell_writers_where_nothing_else_does(archive: Path) -> None:
    own = archive.with_name("own.zip")
    with zipfile.ZipFile(archive) as file, zipfile.ZipFile(own, "w") as copy:
        for name in (name for name in file.namelist() if not name.endswith("writers.txt")):
            copy.writestr(name, file.read(name))
    report = passport(open_archive(own))
    assert report["splits"]["test"]["writers"] == {"n": None, "known by": "nothing"}
    assert report["between"]["train, test"]["shared_writers"] is None


FORMULAS = ["x^2+1", "y^2+1", "a-b=c", "3(k+7)", "dx/dt", "x^2-1", "(1,2,n)", "|a|+|b|"]


def drawn(text: str) -> np.ndarray:
    canvas = np.zeros((120, 320), np.uint8)
    return cv2.putText(canvas, text, (20, 80), cv2.FONT_HERSHEY_SCRIPT_COMPLEX, 1.5, 255, 2, cv2.LINE_AA)


def noisy(image: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(3).normal(0, 20, image.shape)
    return np.where(image, np.clip(image - np.abs(noise), 1, 255), 0).astype(np.uint8)


DONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the same": lambda image: image,
    "margins": lambda image: np.pad(image, ((30, 5), (0, 60))),
    "larger": lambda image: cv2.resize(image, None, fx=1.7, fy=1.7),
    "noise in the ink": noisy,
    "JPEG": lambda image: np.asarray(cv2.imdecode(cv2.imencode(".jpg", image)[1], cv2.IMREAD_GRAYSCALE)) & 0xF0,
    "a little rotated": lambda image: cv2.warpAffine(
        image, cv2.getRotationMatrix2D((160, 60), 0.5, 1), image.shape[::-1]
    ),
}


@pytest.mark.parametrize("done", DONE)
def test_only_the_same_formula_is_near(done: str) -> None:
    images = [drawn(text) for text in FORMULAS]
    others = [DONE[done](image) for image in images]
    pairs = near([fingerprint(image) for image in images], [fingerprint(image) for image in others])
    assert pairs == [(place, place) for place in range(len(FORMULAS))]
    assert (pixels(images[0]) == pixels(others[0])) is (done == "the same")


def test_another_shape_is_another_image_and_no_ink_is_no_fault() -> None:
    wide, empty = cv2.resize(drawn("x"), None, fx=2, fy=1), np.zeros((20, 30), np.uint8)
    assert near([fingerprint(drawn("x"))], [fingerprint(wide)]) == []
    assert near([fingerprint(empty)], [fingerprint(drawn("x")), fingerprint(empty)]) == [(0, 1)]


@pytest.fixture
def mlcroissant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """It keeps what it unpacks under the archive's name, and would read that again of another archive."""
    import mlcroissant
    from etils import epath
    from mlcroissant._src.operation_graph.operations import extract

    monkeypatch.setattr(extract, "EXTRACT_PATH", epath.Path(tmp_path) / "extract")
    return mlcroissant


def test_croissant_is_valid_and_reads_captions(archive: Path, tmp_path: Path, mlcroissant: Any) -> None:
    target = tmp_path / "mine.json"
    report = passport(open_archive(archive))
    assert croissant.write(report, archive, target) == f"{target}: valid Croissant"
    keys = json.loads(target.read_text())
    needed = {"@context", "@type", "conformsTo", "description", "license", "name", "url", "creator", "datePublished"}
    os.utime(archive, (1767311940, 1767311940))  # a minute before 2026-01-02 in UTC
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        dated = croissant.croissant(report, archive)["datePublished"]
    time.tzset()
    assert dated == "2026-01-01"
    assert needed <= keys.keys() and keys["name"] == "mine" and keys["license"] == "not stated"
    data = mlcroissant.Dataset(jsonld=str(target))
    assert not data.metadata.issues.errors
    rows = [row["test-captions-records/line"].decode() for row in data.records("test-captions-records")]
    assert rows == [f"{key}\t{text}" for key, text in CAPTIONS["test"].items()]


FORMATS = {  # images of a split -> what is declared of them: patterns of names, formats
    (".png", ".png"): (["img/*.png"], ["image/png"]),
    (".bmp", ".JPG"): (["img/*.JPG", "img/*.bmp"], ["image/bmp", "image/jpeg"]),
    (".webp", ".tiff"): (["img/*.tiff", "img/*.webp"], ["image/tiff", "image/webp"]),
    (".png", ".jpg as .png"): (["img/*.png"], ["image/jpeg", "image/png"]),  # the content counts
}


@pytest.mark.parametrize("endings", FORMATS)
def test_croissant_declares_the_files_that_there_are(
    endings: tuple[str, str], tmp_path: Path, mlcroissant: Any
) -> None:
    """In the formats that they have; symLG only where there is some. Other files lie in no set."""
    archive, target = tmp_path / "mine.zip", tmp_path / "mine.json"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data/test/caption.txt", "a\tx , y\nb\t1\n")
        file.writestr("data/test/img/notes.txt", "")
        for id_, ending in zip("ab", endings, strict=True):
            written, _, named = ending.partition(" as ")
            file.writestr(f"data/test/img/{id_}{named or ending}", picture("3k", ending=written.lower()))
    croissant.write(passport(open_archive(archive, trains=False)), archive, target)
    data = mlcroissant.Dataset(jsonld=str(target))
    sets = {each["@id"]: each for each in json.loads(target.read_text())["distribution"]}
    assert sets.keys() == {"mine.zip", "test-images", "test-captions"}
    patterns, formats = FORMATS[endings]
    assert sets["test-images"]["includes"] == [f"data/test/{pattern}" for pattern in patterns]
    assert sets["test-images"]["encodingFormat"] == formats
    rows = [row["test-captions-records/line"] for row in data.records("test-captions-records")]
    assert rows == [b"a\tx , y", b"b\t1"]
    files = [row["test-images-records/file"].decode() for row in data.records("test-images-records")]
    assert len(files) == 2 and all("notes" not in name for name in files)


@pytest.mark.parametrize(
    ("place", "target", "fault"),
    [
        (".", "m.json", "describes one file; zip"),
        ("mine.zip", "no/m.json", "must be a file in"),
        ("mine.zip", ".", "must be"),
        ("mine.zip", "mine.zip", "must end with .json"),
        ("mine.zip", "link.json", "not be the archive"),
    ],
)
def test_what_croissant_cannot_describe_is_refused(archive: Path, place: str, target: str, fault: str) -> None:
    (archive.parent / "link.json").symlink_to(archive)
    with pytest.raises(UserError, match=fault):
        croissant.check(archive.parent / place, archive.parent / target)


def test_crohme(crohme: Path, tmp_path: Path) -> None:
    """Its known figures, the overlaps that results/LIMITATIONS.md states, the conventions and writers of its file."""
    archive = open_archive(crohme)
    assert archive.name == "crohme"
    assert archive.edition == "CROHME as published with CoMER (8,834/986/1,147/1,199)"
    report = passport(archive)
    assert tuple(report["splits"]) == ("train", "2014", "2016", "2019")
    assert {split: (r["n"], *r["buckets"]) for split, r in report["splits"].items()} == {
        "train": (8834, 3808, 2332, 1605, 700, 242, 147),
        "2014": (986, 400, 287, 192, 56, 26, 25),
        "2016": (1147, 421, 335, 222, 90, 40, 39),
        "2019": (1199, 431, 404, 213, 93, 36, 22),
    }
    known = known_crohme()
    for split, each in report["splits"].items():
        assert (each["caption_md5"], each["n"]) == (known.splits[split].captions, known.splits[split].n)
    seen = {split: r["captions_in_train"] for split, r in report["splits"].items()}
    assert seen == {"train": None, "2014": 30, "2016": 20, "2019": 4}
    assert all(r["published"] and r["with_ground_truth"] for r in report["splits"].values())
    assert {split: sorted(r["skipped"]) for split, r in report["splits"].items()} == {
        "train": ["formulaire026-equation008", "formulaire027-equation007"],
        "2014": ["505_em_51"],
        "2016": [],
        "2019": [],
    }
    assert "204 tokens" in report["splits"]["2014"]["skipped"]["505_em_51"]
    assert report["unused_symbols"] == ["\\Pi"]
    assert list(archive.ground_truth("2014")) == list(archive.captions("2014"))
    splits = {split: report["splits"][split] for split in known.tests}
    if (crohme.parent / "inkml/train.zip").is_file():
        assert [each["captions_in_train_or_parts"] for each in splits.values()] == [51, 28, 22]
    for split, each in splits.items():
        below, above, sub, sup = each["symlg"]["limits"].values()
        assert (below + above > sub + sup) is (known.splits[split].limits == "Below and Above")
        assert each["limits"]["script"] == 0 < each["limits"][r"\limits"]
        assert each["published_writers"] == known.splits[split].writers
        assert len(each["symlg"]["differ_without_limits"]) <= len(each["symlg"]["differ"])
    assert all(not each["equal_images"] and not each["near_images"] for each in report["between"].values())
    between = report["between"].values()
    assert [each["shared_captions"] for each in between][3:] == [6, 2, 51]
    assert [each["equal_images"] for each in report["splits"].values()] == [42, 1, 0, 0]
    assert report["vocabulary"] == known.vocabulary
    assert croissant.write(report, crohme, tmp_path / "crohme.json").endswith("valid Croissant")
    told = json.loads((tmp_path / "crohme.json").read_text())
    assert told["license"] == str(known.license_url)
    assert {tuple(each["encodingFormat"]) for each in told["distribution"] if "images" in each["@id"]} == {
        ("image/bmp",)
    }
