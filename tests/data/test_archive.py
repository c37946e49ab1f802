"""Reading archives: the published one has its known figures; a bad one gets a one-line error that names it."""

import json
import os
import shutil
import struct
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data import archive as archives
from hmerbench.benchmarks.data.archive import Archive, open_archive, unknown_words
from hmerbench.benchmarks.data.passport import describe, passport, skip_reason
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.evaluation import InputError, datasets, stores, symlg
from tests.helpers.graphs import content

Entries = dict[str, bytes]


DRAWN = np.zeros((60, 63), np.uint8)  # with the margins of CROHME's images
DRAWN[12:15, 12:52] = 255
DRAWN[15:49, 30:33] = 255


def bmp() -> bytes:
    return cv2.imencode(".bmp", DRAWN)[1].tobytes()


@pytest.fixture
def entries() -> Entries:
    """A well-formed archive of two splits."""
    captions = {"train": {"a_1": "x ^ { 2 }", "a_2": "1 + 2"}, "2014": {"b-1": "\\frac { 1 } { 2 }"}}
    files: Entries = {}
    for split, lines in captions.items():
        files[f"data/{split}/caption.txt"] = "".join(f"{i}\t{c}\n" for i, c in lines.items()).encode()
        for id_ in lines:
            files[f"data/{split}/img/{id_}.bmp"] = bmp()
            files[f"data/{split}/symLg/{id_}.lg"] = b"# IUD, x\nO, x_1, x, 1.0, O\n"
    return files


def test_names_with_accents_may_be_decomposed(tmp_path: Path) -> None:
    """As macOS writes them; captions are typed composed, or made of the files' names."""
    (tmp_path / "data/test/img").mkdir(parents=True)
    (tmp_path / "data/test/img/Lo\u0308sung.bmp").write_bytes(bmp())
    for name in ("L\u00f6sung", "Lo\u0308sung"):
        (tmp_path / "data/test/caption.txt").write_text(f"{name}\tx\n", "utf-8")
        assert open_archive(tmp_path, trains=False).image("test", "L\u00f6sung").shape == DRAWN.shape
    (tmp_path / "data/test/symLg").mkdir()
    (tmp_path / "data/test/symLg/Lo\u0308sung.lg").write_text("# its ground truth")
    assert open_archive(tmp_path, trains=False).ground_truth("test") == {"L\u00f6sung": "# its ground truth"}


def pack(path: Path, files: Entries, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def refusal(path: Path) -> str:
    """The one-line error of reading an archive to its end."""
    with pytest.raises(FAULTS) as caught:
        passport(open_archive(path))
    message = str(caught.value)
    assert "\n" not in message and path.name in message and (";" in message or "cannot be read" in message), message
    return message


def test_samples_come_in_caption_order_as_uint8(tmp_path, entries):
    archive = open_archive(pack(tmp_path / "a.zip", entries))
    assert archive.splits == ("train", "2014") and archive.tests == ("2014",)
    samples = archive.samples("train")
    assert [s.id for s in samples] == ["a_1", "a_2"]
    assert samples[0].tokens == ("x", "^", "{", "2", "}")
    assert samples[0].image.dtype == np.uint8 and samples[0].image.shape == (60, 63)
    assert samples[0].image[12, 12:-11].min() == 255 and samples[0].image[11].max() == 0
    assert archive.ground_truth("2014")["b-1"].startswith("# IUD")


def test_zip_folder_and_data_folder_give_the_same_archive(tmp_path, entries):
    zipped = pack(tmp_path / "a.zip", entries)
    shutil.unpack_archive(zipped, tmp_path / "unpacked")
    (tmp_path / "unpacked/data/notes.txt").write_text("not part of the layout")
    archives = [open_archive(p) for p in (zipped, tmp_path / "unpacked", tmp_path / "unpacked/data")]
    assert len({a.digest for a in archives}) == 1
    assert len({json.dumps(passport(a)["splits"]["2014"]) for a in archives}) == 1
    entries["data/train/img/a_1.bmp"] = png(255 - DRAWN)
    assert open_archive(pack(tmp_path / "b.zip", entries)).digest != archives[0].digest


def test_links_in_a_folder_are_followed(tmp_path, entries):
    zipped = pack(tmp_path / "a.zip", entries)
    shutil.unpack_archive(zipped, tmp_path / "elsewhere")
    (tmp_path / "linked/train").mkdir(parents=True)
    (tmp_path / "linked/2014").symlink_to(tmp_path / "elsewhere/data/2014")
    for name in ("caption.txt", "img", "symLg"):
        (tmp_path / "linked/train" / name).symlink_to(tmp_path / "elsewhere/data/train" / name)
    assert open_archive(tmp_path / "linked").digest == open_archive(zipped).digest


def test_a_name_that_is_not_utf8_is_no_trouble(tmp_path, entries):
    shutil.unpack_archive(pack(tmp_path / "a.zip", entries), tmp_path / "unpacked")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/unpacked/data/train/img/\xff.bmp")).write_bytes(bmp())
    assert open_archive(tmp_path / "unpacked").digest != open_archive(tmp_path / "a.zip").digest


def publish(monkeypatch, original: Archive, digest: str = "") -> datasets.Dataset:
    """Let the archive be all that is known of CROHME."""
    splits = {
        split: {"n": len(original.captions(split)), "captions": original.caption_md5(split)}
        for split in original.splits
    }
    keys = datasets.crohme().model_dump(mode="json") | {"splits": splits, "symlg": bool(digest)}
    known = datasets.Dataset.model_validate(keys | {"digests": {digest: list(splits)} if digest else {}})
    monkeypatch.setattr(archives, "datasets", lambda: {"crohme": known})
    return known


def test_a_test_set_more_leaves_the_published_ones_as_they_are(tmp_path, entries, monkeypatch):
    before = open_archive(pack(tmp_path / "a.zip", entries))
    publish(monkeypatch, before, before.digest)
    for name in [name for name in entries if "/2014/" in name]:
        entries[name.replace("2014", "2023")] = entries[name]
    after = open_archive(pack(tmp_path / "b.zip", entries))
    assert [*after.editions] == [before.digest] != [after.digest] and after.name == "foreign"
    assert "2023 is not in CROHME" in after.edition and after.holds(before.digest)
    known = publish(monkeypatch, after, after.digest)
    both = known.model_copy(update={"digests": known.digests | {before.digest: [*before.splits]}})
    monkeypatch.setattr(archives, "datasets", lambda: {"crohme": both})
    both_here, without = (open_archive(tmp_path / name) for name in ("b.zip", "a.zip"))
    assert (both_here.name, without.name) == ("crohme", "crohme")
    assert both_here.holds(before.digest) and not without.holds(after.digest)


def test_a_set_whose_files_are_not_known_is_told_by_its_captions(tmp_path, entries, monkeypatch):
    original = open_archive(pack(tmp_path / "a.zip", entries))
    publish(monkeypatch, original)
    inverted = cv2.imencode(".bmp", 255 - DRAWN)[1].tobytes()
    other = open_archive(pack(tmp_path / "b.zip", entries | {"data/2014/img/b-1.bmp": inverted}))
    assert other.name == "crohme" and [*other.editions] == [other.digest] != [original.digest]


def test_foreign_archive_lists_how_it_differs(tmp_path, entries):
    archive = open_archive(pack(tmp_path / "a.zip", entries))
    assert archive.name == "foreign"
    assert "train has other captions" in archive.edition and "2019 is missing" in archive.edition


def test_published_captions_alone_are_not_crohme(tmp_path, entries, monkeypatch):
    """With other images they are another data set, and ink on white paper is inverted."""
    original = open_archive(pack(tmp_path / "a.zip", entries))
    publish(monkeypatch, original, original.digest)
    known = open_archive(tmp_path / "a.zip")
    assert known.name == "crohme" and known.edition == "CROHME as published with CoMER (2/1)"
    inverted = cv2.imencode(".bmp", 255 - known.image("2014", "b-1"))[1].tobytes()
    other = open_archive(pack(tmp_path / "b.zip", entries | {"data/2014/img/b-1.bmp": inverted}))
    assert other.name == "foreign" and "captions as published, but other images or symLG" in other.edition
    assert np.array_equal(other.image("2014", "b-1"), known.image("2014", "b-1"))


def test_marked_archive_is_embedded(tmp_path, entries):
    entries["data/EMBEDDED.json"] = b'{"generator": 1, "seed": 5}'
    archive = open_archive(pack(tmp_path / "a.zip", entries))
    assert archive.name == "embedded" and "seed 5" in archive.edition
    entries["data/EMBEDDED.json"] = b'{"generator": '
    assert "EMBEDDED.json" in refusal(pack(tmp_path / "b.zip", entries))


def test_a_test_set_of_ones_own_needs_no_ground_truth(tmp_path, entries, capsys):
    bare = {name: content for name, content in entries.items() if "/symLg/" not in name}
    archive = open_archive(pack(tmp_path / "a.zip", bare))
    describe(passport(archive))
    told = capsys.readouterr().out
    assert "2014: no symLG, so its ground truth is made from its captions" in told and "train: no symLG" not in told
    assert archive.ground_truth("2014")


def test_a_test_set_alone_is_described(tmp_path, entries, capsys):
    alone = {name: content for name, content in entries.items() if "/2014/" in name}
    describe(passport(open_archive(pack(tmp_path / "a.zip", alone), trains=False)))
    said = capsys.readouterr().out
    assert "train is missing" in said and "no occurrence of" not in said


def test_train_may_lack_ground_truth(tmp_path, entries):
    bare = {name: content for name, content in entries.items() if not name.startswith("data/train/symLg")}
    archive = open_archive(pack(tmp_path / "a.zip", bare))
    assert not passport(archive)["splits"]["train"]["with_ground_truth"]
    with pytest.raises(UserError, match=r"data/train/symLg/ID\.lg: no ground truth for a_1, a_2; add it"):
        archive.ground_truth("train")


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def test_a_test_set_of_ones_own(tmp_path, entries, capsys):
    """No training set, PNG of either polarity, symLG from captions; with training, the training set is missed."""
    own = {"data/mine/caption.txt": b"a\tx ^ 2\nb\t1 + 2\n"}
    own |= {"data/mine/img/a.png": png(DRAWN), "data/mine/img/b.png": png(255 - DRAWN)}
    path = pack(tmp_path / "a.zip", own)
    archive = open_archive(path, trains=False)
    assert archive.splits == ("mine",) and archive.name == "foreign"
    assert all((sample.image == DRAWN).all() for sample in archive.samples("mine")) and not capsys.readouterr().err
    assert content(symlg.from_latex("x ^ 2")) == content(archive.ground_truth("mine")["a"])
    with pytest.raises(UserError, match=r"only test sets \(mine\); `import-data --split train` or"):
        open_archive(path)
    with pytest.raises(UserError, match=r"no data/NAME/caption.txt"):
        open_archive(pack(tmp_path / "b.zip", {"data/mine/img/a.png": b""}), trains=False)


def test_what_an_import_did_is_told_and_is_not_needed_to_read(tmp_path, entries):
    own = pack(tmp_path / "own.zip", entries | {"data/2014/prepared.txt": b"b-1\tinverted; frame cut off\n"})
    assert open_archive(own).prepared("2014", "b-1").done == ("inverted", "frame cut off")
    large = pack(tmp_path / "large.zip", entries | {"data/2014/prepared.txt": bytes(stores.MAX_CAPTIONS + 1)})
    assert len(open_archive(large).samples("train")) == 2


def test_what_cannot_be_read_is_left_out_and_named_at_once(tmp_path, capsys):
    """Large ink is made smaller; blank, damaged and empty images are told in one line, and `data` refuses them."""
    large = cv2.resize(DRAWN, None, fx=30, fy=30, interpolation=cv2.INTER_NEAREST)
    images = {"good": png(255 - DRAWN), "large": png(large), "blank": png(DRAWN * 0), "cut": png(DRAWN)[:40], "no": b""}
    own = {"data/mine/caption.txt": "".join(f"{id_}\tx\n" for id_ in images).encode()}
    path = pack(tmp_path / "a.zip", own | {f"data/mine/img/{id_}.png": content for id_, content in images.items()})
    archive = open_archive(path, trains=False)
    for _ in range(2):
        good, shrunk = archive.samples("mine")
    assert np.array_equal(good.image, DRAWN) and shrunk.id == "large" and shrunk.image.size < 2 * DRAWN.size
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("3 of 5 images of mine cannot be read, are left out and count as wrong: ") == 1
    assert all(f"data/mine/img/{id_}.png: " in said for id_ in ("blank", "cut", "no"))
    # chosen by captions, as those that are scored are: good and blank, not good and large
    assert [sample.id for sample in archive.samples("mine", limit=2)] == ["good"]
    with pytest.raises(UserError, match=r"3 images cannot be read: .*blank\.png: no ink .*cut\.png.*no\.png"):
        passport(archive)
    with pytest.raises(UserError, match="1 of 1 images of mine cannot be read"):
        lone = {"data/mine/caption.txt": b"a\tx\n", "data/mine/img/a.png": png(DRAWN * 0)}
        open_archive(pack(tmp_path / "b.zip", lone), trains=False).samples("mine")


OWN_CAPTION, OWN_IMAGE = "data/mine/caption.txt", "data/mine/img/a.png"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (OWN_CAPTION, b"a\t\\frac { x }\n", "a does not convert to symLG (the expression ends too early)"),
        (OWN_IMAGE, b"%PDF-1.7", "data/mine/img/a.png: not an image of a known format"),
        (OWN_IMAGE, png(DRAWN)[:60], "data/mine/img/a.png: damaged image"),
        ("data/class 7/caption.txt", b"a\tx\n", "data/class 7: cannot be the name of a set: take letters"),
        (OWN_IMAGE, None, "no image data/mine/img/ID.* for a; add it, or drop the caption"),
        (OWN_CAPTION, b"b\tx\nc\tx\n", "no image data/mine/img/ID.* for b, c; add them, or drop the captions"),
        ("data/mine/img/a.JPG", b"", "than one image of an expression: mine/img/a.png and mine/img/a.JPG; keep one"),
    ],
)
def test_what_is_wrong_with_ones_own_set(tmp_path, name, content, message):
    own = {OWN_CAPTION: b"a\tx\n", OWN_IMAGE: png(np.zeros((9, 9), np.uint8)), name: content}
    path = pack(tmp_path / "a.zip", {name: content for name, content in own.items() if content is not None})
    with pytest.raises(FAULTS) as caught:
        archive = open_archive(path, trains=False)
        assert archive.ground_truth("mine")
        archive.image("mine", "a")
    assert message in str(caught.value) and "\n" not in str(caught.value)


CAPTION, IMAGE, TRUTH = "data/train/caption.txt", "data/train/img/a_1.bmp", "data/2014/symLg/b-1.lg"
HUGE = bmp()[:18] + struct.pack("<ii", 100_000, 100_000) + bmp()[26:]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (CAPTION, None, "no data/train/caption.txt"),
        (CAPTION, b"", "holds no expression"),
        (CAPTION, b"a_1 x\n", "line 1: must be ID<TAB>tokens; correct it"),
        (CAPTION, b"a_1\tx\n\na_2\t\n", "line 3: 'a_2' has no tokens; correct the line"),
        (CAPTION, b"a_1\tx\n../a\tx\n", "line 2: '../a' cannot be an id"),
        (CAPTION, b"a_1\tx\na_1\ty\n", "line 2: the id a_1 occurs twice"),
        (CAPTION, b"a_1\t<pad> <eos>\n", "<eos>, <pad> cannot be a symbol of a caption"),
        (CAPTION, b"a_1\t\xff\n", "not UTF-8"),
        (IMAGE, None, "no image data/train/img/ID.* for a_1"),
        (IMAGE, b"GIF89a" + bytes(99), "a_1.bmp: not an image"),
        (IMAGE, HUGE, "more than 100 million pixels"),
        (IMAGE, bmp()[:-40], "a_1.bmp: damaged image"),
        (IMAGE, b"BM" + b"\xff" * 99, "a_1.bmp: "),
        (IMAGE, bmp()[:14] + b"\x0c" + bmp()[15:], "a_1.bmp: "),
        (IMAGE, bmp()[:30] + b"\x63" + bmp()[31:], "a_1.bmp: "),
        (TRUTH.replace("2014", "train").replace("b-1", "a_1"), None, "ID.lg: no ground truth for a_1; add it"),
        (TRUTH, b"O, y_1, \xff, 1.0, OR\n", "b-1.lg: is not UTF-8 text"),
        ("data/../../evil", b"", "is no plain path"),
        ("/etc/evil", b"", "is no plain path"),
        ("C:evil", b"", "is no plain path"),
    ],
)
def test_bad_entry_is_named(tmp_path, entries, name, content, message):
    if content is None:
        del entries[name]
    else:
        entries[name] = content
    assert message in refusal(pack(tmp_path / "a.zip", entries))


def test_words_of_its_own_come_after_the_usual_ones(tmp_path, entries):
    """Those of the training set; a set without others has the usual vocabulary, whatever its test sets hold."""
    usual = open_archive(pack(tmp_path / "a.zip", entries))
    entries["data/2014/caption.txt"] = b"b-1\t@ x\n"
    assert usual.vocabulary.words == open_archive(pack(tmp_path / "b.zip", entries)).vocabulary.words
    entries[CAPTION] = b"a_1\tx \\heartsuit\na_2\t\\aleph \\aleph <\n"
    other = open_archive(pack(tmp_path / "c.zip", entries))
    assert other.vocabulary.words == (*usual.vocabulary.words, "\\aleph", "\\heartsuit")
    assert other.other_words == {"\\aleph": 1, "\\heartsuit": 1, "@": 1} and not usual.other_words
    assert [*unknown_words([["ü", "ö"], ["ö", *"ÄÖÜẞ", "ö"]])] == ["ö", "ü", *"ÄÖÜẞ"]  # alike in every process


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path, entries):
    before = open_archive(pack(tmp_path / "a.zip", entries))
    entries[CAPTION] = b"\xef\xbb\xbf" + entries[CAPTION]
    after = open_archive(pack(tmp_path / "b.zip", entries))
    assert after.captions("train") == before.captions("train") and after.digest != before.digest


def test_files_that_macos_leaves_are_no_part_of_an_archive(tmp_path, entries):
    left = {"data/2014/img/._b-1.png": b"\0", "data/mine/symLg/._a.lg": b"\0", "data/mine/img/._a.png": b"\0"}
    entries |= {"data/mine/caption.txt": b"a\tx\n", "data/mine/img/a.png": png(np.zeros((9, 9), np.uint8))}
    plain, littered = (pack(tmp_path / name, files) for name, files in (("a.zip", entries), ("b.zip", entries | left)))
    with zipfile.ZipFile(littered) as file:
        file.extractall(tmp_path / "folder")
    for path in (littered, tmp_path / "folder"):
        archive = open_archive(path)
        assert archive.digest == open_archive(plain).digest and not archive.has_ground_truth("mine")


def test_a_zip_of_the_folder_above_says_how_to_pack_it(tmp_path, entries):
    path = pack(
        tmp_path / "mine.zip", {"__MACOSX/mine/data/._x": b""} | {f"mine/{name}": entries[name] for name in entries}
    )
    assert "its data/ lies under mine/; zip it as `cd mine && zip -r ../mine.zip data`" in refusal(path)


def test_missing_truncated_and_other_files_are_named(tmp_path, entries):
    assert "no such archive" in refusal(tmp_path / "none.zip")
    whole = pack(tmp_path / "a.zip", entries).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-50])
    assert "truncated" in refusal(tmp_path / "cut.zip")
    (tmp_path / "page.zip").write_text("<html>404</html>")
    assert "not a zip" in refusal(tmp_path / "page.zip")
    (tmp_path / "empty").mkdir()
    assert "no data/train/caption.txt" in refusal(tmp_path / "empty")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_image_data_is_named(tmp_path, entries, method):
    path = pack(tmp_path / "a.zip", entries, method)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(IMAGE)
    damaged = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len(IMAGE)
    damaged[start + 5 : start + 25] = bytes(20)
    path.write_bytes(damaged)
    assert f"{IMAGE} is damaged" in refusal(path)


def test_bombs_are_refused_before_they_unpack(tmp_path, entries, monkeypatch):
    entries[CAPTION] = bytes((64 << 20) + 1)  # as evaluation/ refuses, which reads 100,000 captions
    assert "holds 67,108,865 bytes, more than 67,108,864" in refusal(pack(tmp_path / "large.zip", entries))
    monkeypatch.setattr(stores, "MAX_TOTAL", 10 << 20)
    assert "unpacked, it holds 67,1" in refusal(tmp_path / "large.zip")


def test_entry_larger_than_declared_is_refused(tmp_path, entries):
    """The directory says 100 bytes, the data inflates to 50 MB: only 100 are read, and their CRC is wrong."""
    entries[TRUTH] = bytes(50 << 20)
    path = pack(tmp_path / "lie.zip", entries)
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 50 << 20), struct.pack("<I", 100)))
    assert f"{TRUTH} is damaged" in refusal(path)


def test_duplicate_entry_is_refused(tmp_path, entries):
    path = pack(tmp_path / "a.zip", entries)
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(CAPTION, "a_1\tx\n")
    assert "occurs 2 times" in refusal(path)


def test_unknown_split_is_named(tmp_path, entries):
    with pytest.raises(InputError, match=r"a\.zip: has no split 2016; it has train, 2014"):
        open_archive(pack(tmp_path / "a.zip", entries)).samples("2016")


def test_a_test_set_that_cannot_be_scored_is_refused_at_once(tmp_path, entries, monkeypatch):
    monkeypatch.setattr("hmerbench.benchmarks.data.archive.MAX_FILES", 0)
    message = refusal(pack(tmp_path / "a.zip", entries))
    assert "data/2014/caption.txt has 1 expressions, more than 0; divide the test set" in message


def test_limits_are_the_authors():
    def reason(height: int, width: int, tokens: int) -> str:
        return str(skip_reason(Sample("a", ("x",) * tokens, np.zeros((height, width), np.uint8)), datasets.sizes_of()))

    assert reason(320, 1000, 200) == "None"
    assert "pixels" in reason(321, 1000, 200)
    assert "201 tokens" in reason(1, 1, 201)


def test_crohmes_equal_images_have_one_caption(crohme: Path) -> None:
    """The pairs in results/LIMITATIONS, by their checksums."""
    captions = open_archive(crohme).captions("train")
    equal: dict[tuple[str, int, int], list[str]] = {}
    with zipfile.ZipFile(crohme) as archive:
        for entry in (entry for entry in archive.infolist() if entry.filename.endswith(".bmp")):
            path = Path(entry.filename)
            equal.setdefault((path.parts[1], entry.CRC, entry.file_size), []).append(path.stem)
    pairs = [(split, *ids) for (split, _, _), ids in equal.items() if len(ids) > 1]
    assert len(pairs) == 43 and [pair for pair in pairs if pair[0] != "train"] == [("2014", "501_em_1", "501_em_5")]
    assert all(captions[a] == captions[b] for split, a, b in pairs if split == "train")
