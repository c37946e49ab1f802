"""Data in the layouts that people have become one archive; what cannot be used is named, all at once."""

import json
import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.importing import tables, write
from hmerbench.benchmarks.data.importing.captions import Unsplit, caption_of
from hmerbench.benchmarks.data.importing.inkml import drawn, ink_of
from hmerbench.benchmarks.data.importing.pickled import unpickled
from hmerbench.benchmarks.data.importing.source import Choice, Source, listed, split_of
from hmerbench.benchmarks.data.importing.write import import_data, reader_of
from hmerbench.benchmarks.data.normalize_image import drawn_as_crohme
from hmerbench.benchmarks.errors import FAULTS, UserError

# ------------------------------------------------------------------------------------------------------- captions

CAPTIONS = {
    r"x^2": "x ^ { 2 }",
    r"$x_i^2$": "x _ { i } ^ { 2 }",
    r"x^2_i": "x _ { i } ^ { 2 }",
    r"\frac12": r"\frac { 1 } { 2 }",
    r"\frac{a}b": r"\frac { a } { b }",
    r"\dfrac{a}{b}": r"\frac { a } { b }",
    r"\sqrt[3]{x+1}": r"\sqrt [ 3 ] { x + 1 }",
    r"\sqrt x": r"\sqrt { x }",
    r"\left( a \right)": "( a )",
    r"\left\{ a \right.": r"\{ a",
    r"\Bigl[ a \Bigr]": "[ a ]",
    r"\mathrm{d}x": "d x",
    r"\operatorname{sin} x": r"\sin x",
    r"\mathrm { t a n } x": r"\tan x",
    r"\operatorname{rank} A": "r a n k A",
    r"sin x + cos y": r"\sin x + \cos y",
    r"cosine": "c o s i n e",
    r"1234": "1 2 3 4",
    r"a \le b \ne c": r"a \leq b \neq c",
    r"a\,b\;c\quad d~e\ f": "a b c d e f",
    r"f''(x)": r"f ^ { \prime \prime } ( x )",
    "f′′g’’": r"f ^ { \prime \prime } g ^ { \prime \prime }",
    r"f'^2": r"f ^ { \prime 2 }",
    r"f'_1": r"f _ { 1 } ^ { \prime }",
    r"f^{'}": r"f ^ { \prime }",
    r"{a \over b} + c": r"\frac { a } { b } + c",
    r"\left[ a \over b \right] \over \left. c \right|": r"\frac { [ \frac { a } { b } ] } { c | }",
    r"\begin{matrix} a & b \end{matrix} \over c": r"\frac { \begin{matrix} a & b \end{matrix} } { c }",
    r"\left{ a \right} \left( b": "a ( b",
    r"\sqrt \left( a \right) \right.": r"\sqrt { ( a ) }",
    r"\bigl. x \Bigr|": "x |",
    r"{{x}}": "x",
    r"{x^2}^3": "{ x ^ { 2 } } ^ { 3 }",
    r"{v_1}^2": "v _ { 1 } ^ { 2 }",
    r"1,000_{},x^{2}_{}+y_{}^{}": "1 , 0 0 0 , x ^ { 2 } + y",
    r"\displaystyle\int_0^1 x\,dx": r"\int _ { 0 } ^ { 1 } x d x",
    r"x \leq \heartsuit": r"x \leq \heartsuit",
    r"\(a\)": "a",
    r"\[a\]": "a",
    r"\begin{equation*} a \leqslant b \end{equation*}": r"a \leq b",
    "a, …, ω ≤ µ + Δ": r"a , \ldots , \omega \leq \mu + \Delta",
    "x ^ { 2 }$": "x ^ { 2 }",
    "$ x ^ { 2 }": "x ^ { 2 }",
    r"5\$": r"5 \$",
    "2×3−√4": r"2 \times 3 - \sqrt { 4 }",
    "ａ＋１’": r"a + 1 ^ { \prime }",
    r"\begin{array}{l@{\,}r}a&b\\[2pt]c&d\end{array}": r"\begin{matrix} a & b \\ c & d \end{matrix}",
    r"\begin { pmatrix } a \end { pmatrix }": r"\begin{pmatrix} a \end{pmatrix}",
    r"\textcircled { 1 } \xrightarrow [ a ] { b }": r"\textcircled { 1 } \xrightarrow [ a ] { b }",
    r"\foo{x}{y^2} \foo": r"\foo { x } { y ^ { 2 } } \foo",
    r"\alpha{x}": r"\alpha x",
    r"\textcolor{red}{x}": "x",
    r"\textcolor[rgb]{1,0,0}{x}\color[gray]{0.5}y\smash[b]{z}": "x y z",
    r"R^{a}{}_{b}": "R _ { b } ^ { a }",
    r"\mathbf{x^{2}}^{3}": "{ x ^ { 2 } } ^ { 3 }",
    "{x'}'": r"{ x ^ { \prime } } ^ { \prime }",
    r"x^{{}^{a}b^{c}}": "x ^ { ^ { a } b ^ { c } }",
    r"x^{'\frac{a}{b}}": r"x ^ { ^ { \prime } \frac { a } { b } }",
    "\ufeffx\u200b^2\u2061": "x ^ { 2 }",
    r"\sum\nolimits_{i}": r"\sum _ { i }",
}


@pytest.mark.parametrize("latex", CAPTIONS)
def test_latex_becomes_tokens(latex: str) -> None:
    tokens = CAPTIONS[latex].split()
    assert list(caption_of(latex).tokens) == tokens
    assert list(caption_of(" ".join(tokens)).tokens) == tokens  # and tokens stay as they are
    assert not caption_of(" ".join(tokens)).changes.keys() - {r"written \sum _, not \sum \limits _"}


@pytest.mark.parametrize(
    ("latex", "reason"),
    {
        r"\frac{a": "has a { without its }",
        "a}": "has a } without its {",
        "x^": "has no argument after ^",
        r"\frac{a}": r"has no argument after \frac",
        "a $b$ c": "text around its mathematics",
        r"\begin{matrix} a \over b & c \end{matrix}": "has .over beside & or",
        "$$": "is empty",
        r"\nolimits": "is empty",
        "": "is empty",
        "a\x00b": "control characters",
        "a\N{REPLACEMENT CHARACTER}": "damaged",
        "{" * 400 + "a" + "}" * 400: "nested more than 100 deep",
        r"\sqrt " * 600 + "x": "nested more than 100 deep",
        r"\mathbf{" * 196 + "x" + "}" * 196: "nested more than 100 deep",  # 5 calls for each
        r"x^{2}{}^{3}": "has a second . on one base",
        r"\Gamma^{\mu}{}_{\nu}{}^{\rho}": "has a second . on one base",
        "x_a_b": "has a second _ on one base",
        r"\left({a \atop b}\right)": "has .atop, which",
    }.items(),
)
def test_what_cannot_be_split_says_why(latex: str, reason: str) -> None:
    with pytest.raises(Unsplit, match=reason.replace("{", r"\{").replace("\\frac", r"\\frac").replace("^", r"\^")):
        caption_of(latex)


@pytest.mark.parametrize(
    ("limits", "written"), {"keep": r"\sum _ { i }", "add": r"\sum \limits _ { i }", "drop": r"\sum _ { i }"}.items()
)
def test_limits_become_one_convention(limits, written) -> None:
    for latex in (r"\sum_i", r"\sum\limits_i") if limits != "keep" else (r"\sum_i",):
        assert " ".join(caption_of(latex, limits).tokens) == written
    assert " ".join(caption_of(r"\sum\nolimits_i", limits).tokens) == r"\sum _ { i }"
    assert any(rule.startswith("written") for rule in caption_of(r"\sum_i").changes)


# -------------------------------------------------------------------------------------------------------- layouts


def picture(kind: int) -> np.ndarray:
    """A picture of 160 x 240 px, dark on light, that differs by `kind`."""
    page = np.full((160, 240), 250, np.uint8)
    cv2.line(page, (30, 80), (120 + 8 * kind, 80), 10, 4)
    cv2.circle(page, (170, 80), 25 + kind, 10, 4)
    return page


def encoded(kind: int, ending: str = ".png") -> bytes:
    return cv2.imencode(ending, picture(kind))[1].tobytes()


LATEX = {"train": ["x^2", "a+b"], "test": [r"\frac12", "y_1"]}


def ink(latex: str, kind: str = "truth", traces: str = "", more: str = "") -> str:
    traces = traces or "<trace id='0'>10 10, 12 40, 9 70</trace><trace id='1'>40 12 5, 60 44 6, 80 69 7</trace>"
    return (
        f'<ink xmlns="http://www.w3.org/2003/InkML"><annotation type="{kind}">{latex}</annotation>'
        f'<annotation type="writer">w1</annotation>{more}{traces}</ink>'
    )


SPLIT_TAG = '<annotation type="splitTagOriginal">SPLIT</annotation><annotation type="label">?</annotation>'
LISTED = {  # the file of captions, what it has of each and first, and the image
    "comer": ("SPLIT/caption.txt", "NAME.jpg\tLATEX\n", "", "SPLIT/img/NAME.jpg"),
    "blanks": ("SPLIT_labels.txt", "NAME.png LATEX\n", "", "SPLIT_images/NAME.png"),  # HME100K
    "commas": ("SPLIT.csv", 'NAME.png,"LATEX"\n', "", "images/NAME.png"),
    "bars": ("SPLIT_list.txt", "images/NAME.png | LATEX\n", "", "images/NAME.png"),
    "names last": ("SPLIT.tsv", "LATEX\tNAME.png\r\n", "", "images/NAME.png"),
    "a file each": ("SPLIT/labels/NAME.tex", "%NAME\n$LATEX$\n", "", "SPLIT/images/NAME.png"),
    "huggingface": ("SPLIT/metadata.jsonl", '{"file_name": "NAME.png", "text": JSON}\n', "", "SPLIT/NAME.png"),
    "spreadsheet": ("captions.csv", "images/NAME.png,LATEX,SPLIT\n", "file_name,latex,split\n", "images/NAME.png"),
    "crohme's ink": ("INKML/SPLIT/NAME.inkml", ink("$LATEX$"), "", ""),
    "mathwriting": ("all/NAME.inkml", ink("LATEX", "normalizedLabel", more=SPLIT_TAG), "", ""),
}


def listed_as(layout: str, folder: Path) -> None:
    files: dict[str, bytes] = {}
    for split, captions in LATEX.items():
        for k, latex in enumerate(captions):
            words = {"SPLIT": split, "NAME": f"{split}_{k}", "LATEX": latex, "JSON": json.dumps(latex)}
            file, line, first, image = (
                re.sub("|".join(words), lambda m, of=words: of[m[0]], x) for x in LISTED[layout]
            )
            files[file] = files.get(file, first.encode()) + line.encode()
            if image:
                files[image] = encoded(k, Path(image).suffix)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


comer, spreadsheet = (partial(listed_as, layout) for layout in ("comer", "spreadsheet"))


def im2latex(folder: Path) -> None:
    """Numbers of formulas, with images in another folder."""
    listed_as("commas", folder)
    number = {"train": [2, 0], "test": [1, 3]}
    formulas = dict(zip([2, 0, 1, 3], LATEX["train"] + LATEX["test"], strict=True))
    (folder / "im2latex_formulas.lst").write_text("".join(f"{formulas[n]}\n" for n in range(4)))
    for split in LATEX:
        (folder / f"{split}.csv").unlink()
        lines = [f"{n} {split}_{k} basic\n" for k, n in enumerate(number[split])]
        (folder / f"im2latex_{split}.lst").write_text("".join(lines))


def matching(folder: Path) -> None:
    """Formulas and numbers of each split in files of its own."""
    listed_as("commas", folder)
    for split, captions in LATEX.items():
        (folder / f"{split}.csv").unlink()
        (folder / f"{split}.formulas.norm.txt").write_text("".join(f"{latex}\n" for latex in captions))
        (folder / f"{split}.matching.txt").write_text("".join(f"{split}_{k}.png {k}\n" for k in range(len(captions))))
    (folder / "val.matching.txt").write_text("train_0.png 0\n")  # whose formulas are not there


def json_list(folder: Path) -> None:
    folder.mkdir()
    for split, captions in LATEX.items():
        rows = [
            {"img_id": f"{split}_{k}", "gt": t, "image_path": f"pics/{split}_{k}.bmp"} for k, t in enumerate(captions)
        ]
        (folder / f"{split}.json").write_text(json.dumps(rows))
        (folder / "pics").mkdir(exist_ok=True)
        for k in range(len(captions)):
            (folder / f"pics/{split}_{k}.bmp").write_bytes(encoded(k, ".bmp"))


def pickled(folder: Path) -> None:
    folder.mkdir()
    for split, captions in LATEX.items():
        images = {f"{split}_{k}.bmp": picture(k) for k in range(len(captions))}
        (folder / f"{split}_images.pkl").write_bytes(pickle.dumps(images))
        (folder / f"{split}_labels.txt").write_text("".join(f"{split}_{k}.bmp\t{t}\n" for k, t in enumerate(captions)))


def parquet(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as writer

    folder.mkdir()
    for split, captions in LATEX.items():
        images = [{"bytes": encoded(k), "path": f"{split}_{k}.png"} for k in range(len(captions))]
        table = arrow.Table.from_pylist([{"image": i, "text": t} for i, t in zip(images, captions, strict=True)])
        writer.write_table(table, folder / f"{split}-00000-of-00001.parquet")


LAYOUTS = {layout: partial(listed_as, layout) for layout in LISTED} | {
    layout.__name__: layout for layout in (im2latex, matching, json_list, pickled, parquet)
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_the_same_archive(layout: str, tmp_path: Path) -> None:
    """Packed and unpacked, with equal bytes; its images are read as they are."""
    LAYOUTS[layout](tmp_path / "source")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        for path in sorted((tmp_path / "source").rglob("*")):
            file.write(path, path.relative_to(tmp_path / "source"))
    for name in ("source", "packed.zip", "source"):
        import_data(tmp_path / name, tmp_path / f"{name}.out.zip", Choice())
        contents = (tmp_path / f"{name}.out.zip").read_bytes()
        assert contents == (tmp_path / "source.out.zip").read_bytes()
    archive = open_archive(tmp_path / "source.out.zip")
    assert archive.splits == ("train", "test")
    assert (layout in ("crohme's ink", "mathwriting")) != ("inverted" in archive.prepared("train", "train_0").done)
    for split, captions in LATEX.items():
        assert archive.captions(split) == {f"{split}_{k}": list(caption_of(t).tokens) for k, t in enumerate(captions)}
        for sample in archive.samples(split):
            assert drawn_as_crohme(sample.image) and sample.image.max() == 255


AS_TOLD = Choice()


def imported(folder: Path, files: Mapping[str, str | bytes | int], choice: Choice = AS_TOLD, **options) -> dict:
    """Split -> id -> caption of what comes of files, of which numbers are pictures."""
    for name, content in files.items():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        told = content.encode() if isinstance(content, str) else content
        (folder / "source" / name).write_bytes(encoded(told) if isinstance(told, int) else told)
    import_data(folder / "source", folder / "a.zip", choice, **options)
    archive = open_archive(folder / "a.zip", trains=False)
    return {split: {k: " ".join(v) for k, v in archive.captions(split).items()} for split in archive.splits}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_no_caption_gets_an_image_from_the_folder_of_another_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "train/img/1.png": 1,
        "train/caption.txt": "1\tx\n2\ty\n",
        "test/img/2.png": 2,
        "test/caption.txt": "2\tz\n",
    }
    assert imported(tmp_path / "a", files) == {"train": {"1": "x"}, "test": {"2": "z"}}
    assert "its image is in test/img/, the folder of another split; name the folder, too: 1 (2)" in said(capsys)
    files = {"train/1.png": 1, "captions.txt": "train/1.png\tx\ntrain/2.png\ty\n", "test/2.png": 2}
    assert imported(tmp_path / "b", files) == {"train": {"1": "x"}}
    files = {f"off_image_{split}/1.png": k for k, split in enumerate(("train", "test"))}
    files |= {f"{split}_caption.txt": f"1.png\t{split[1]}\n" for split in ("train", "test")}
    assert imported(tmp_path / "c", files) == {"train": {"1": "r"}, "test": {"1": "e"}}
    archive = open_archive(tmp_path / "c/a.zip")
    assert archive.image("train", "1").shape != archive.image("test", "1").shape
    files = {"train_images/1.png": 1, "val.txt": "train_images/1.png\tx\n"}  # but where the list says so
    assert imported(tmp_path / "d", files) == {"valid": {"1": "x"}}
    files = {"test/1.png": 1, "14_test_labels.txt": "1.png\tx\n"}  # and "test" may be any test set
    assert imported(tmp_path / "e", files) == {"test_14": {"1": "x"}}


@pytest.mark.parametrize("table", ["13_test.txt", "2013_test.txt", "test2013.txt"])
@pytest.mark.parametrize("folder", ["2013", "test2013", "13_test_images"])
def test_a_list_and_its_images_may_name_a_year_differently(table: str, folder: str, tmp_path: Path) -> None:
    files = {f"{folder}/1.png": 1, "2012/1.png": 2, table: "1.png\tx\n2.png\ty\n", "2012/2.png": 3}
    (captions,) = imported(tmp_path, files).values()
    assert captions == {"1": "x"}


def test_images_behind_links_are_found_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "source/more").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.png").write_bytes(encoded(1))
    links = {"img": "elsewhere", "more/again": "source", "more/other": "elsewhere"}
    links |= {"latest": "source/more", "around": ".", "../elsewhere/again": "elsewhere"}
    for link, place in links.items():
        (tmp_path / "source" / link).symlink_to(tmp_path / place)
    assert imported(tmp_path, {"caption.txt": "a.png\tx\n"}) == {"test": {"a": "x"}}
    assert [*Source(tmp_path / "source").sizes] == [
        "caption.txt",
        *(f"{at}/a.png" for at in ("img", "latest/other", "more/other")),
    ]


def test_a_link_within_the_source_is_followed_and_its_images_count_once(tmp_path: Path) -> None:
    for link, place in {"latest": "v1", "train/img": "../.hidden"}.items():
        (tmp_path / "source" / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / link).symlink_to(place)
    files = {"v1/a.png": 1, "caption.txt": "a.png\tx\n", ".hidden/b.png": 2, "train/caption.txt": "b.png\ty\n"}
    assert imported(tmp_path, files) == {"test": {"a": "x"}, "train": {"b": "y"}}


SPLITS_TOLD = {  # of an image, its table and that one's column -> the split
    ("test0.png", "train/metadata.csv", ""): "train",  # what an image is called says nothing
    ("training_plan.png", "metadata.csv", ""): "test",
    ("pics/a.png", "train.csv", ""): "train",
    ("train/a.png", "metadata.csv", ""): "train",
    ("2014/a.png", "metadata.csv", ""): "2014",
    ("val/images/a.png", "labels.csv", ""): "valid",
    ("a.png", "metadata.csv", "Training"): "train",
    ("a.png", "metadata.csv", "validation"): "valid",
    ("a.png", "metadata.csv", "Validate"): "valid",
    ("a.png", "metadata.csv", "train2017"): "train",
    ("a.png", "im2latex_validate.csv", ""): "valid",
    ("a.png", "metadata.csv", "../x"): "_._x",  # and what no archive may have becomes what it may
    ("Class 7/a.png", "Class 7/labels.csv", ""): "Class_7",
}


@pytest.mark.parametrize(("image", "table", "split"), SPLITS_TOLD)
@pytest.mark.parametrize("column", ["text", "latex", "label", "caption"])
def test_folders_and_tables_tell_the_split(image: str, table: str, split: str, column: str, tmp_path: Path) -> None:
    for path in (tmp_path / table, tmp_path / table / ".." / image):
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / table).write_text(f"file_name,{column},split\n{image},x^2,{split}\n")
    ((tmp_path / table).parent / image).write_bytes(encoded(1))
    import_data(tmp_path, tmp_path / "a.zip", Choice())
    assert open_archive(tmp_path / "a.zip", trains=False).splits == (SPLITS_TOLD[image, table, split],)


@pytest.mark.parametrize(
    ("name", "split"),
    {
        **dict.fromkeys(("train2013/c.txt", "trainset/c.txt", "TrainINKML/HAMEX/x", "train_1.txt"), "train"),
        **dict.fromkeys(("valset/c.txt", "val2017/c.txt", "dev/c.txt", "validation_set/x"), "valid"),
        **{"values/c.txt": "values", "device/c.txt": "device", "test2013/c.txt": "test2013", "latest/c.txt": "latest"},
        **{"val1a/c.txt": "val1a", "validated/c.txt": "valid"},
    }.items(),
)
def test_words_that_begin_like_train_or_valid_tell_it(name: str, split: str) -> None:
    assert split_of(name) == split


def test_a_single_table_is_enough(tmp_path: Path) -> None:
    """Also a hidden one, and again: what the first import listed beside its archive is no table of the source."""
    spreadsheet(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing here\n")
    (tmp_path / ".captions.csv").write_bytes((tmp_path / "captions.csv").read_bytes())
    for source in ("captions.csv", ".captions.csv", ".", "."):
        import_data(tmp_path / source, tmp_path / "a.zip", Choice(everything="train"))
        assert [*open_archive(tmp_path / "a.zip").captions("train")] == ["test_0", "test_1", "train_0", "train_1"]


# ------------------------------------------------------------------------------------------------------- bad input


def test_what_is_left_out_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comer(tmp_path / "source")
    img, blank = tmp_path / "source/test/img", cv2.imencode(".png", np.full((50, 50), 255, np.uint8))[1].tobytes()
    more = dict.fromkeys(("gone", "twice", "blank", "cut"), "x") | {"bad": r"\frac{1", "odd": r"\textcircled{a}"}
    with (tmp_path / "source/test/caption.txt").open("a") as file:
        file.write("".join(f"\n{name}\t{latex}" for name, latex in more.items()) + "\ntest_0.jpg\ty")
    contents = {"bad.png": encoded(1), "twice.png": encoded(1), "sub/twice.png": encoded(2), "blank.png": blank}
    contents |= {"cut.png": encoded(1)[:90], "odd.png": encoded(3), "unnamed.png": encoded(4), "test_0.lg": b""}
    (img / "sub").mkdir()
    (tmp_path / "source/more/test/img").mkdir(parents=True)
    (tmp_path / "source/more/test/caption.txt").write_text("test_1\tz")
    (tmp_path / "source/more/test/img/test_1.png").write_bytes(encoded(5))
    for name, content in contents.items():
        (img / name).write_bytes(content)
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    said = " ".join(capsys.readouterr().err.split())
    for reason in (
        "caption has a { without its }: 1 (bad)",
        "no image for the caption: 1 (gone)",
        "two captions of one image: 1 (test/test_0)",
        "another image of its name; rename it: 1 (test/test_1)",
        "no caption for the image: 1 (test/img/unnamed.png)",
        r"does not convert to symLG (",
        r"; not of CROHME: \textcircled): 1 (test/odd)",
        "the ground truth of a test set is made from its captions: 1 (test/img/test_0.lg)",
        "no ink on it that stands out",
        "damaged image",
    ):
        assert reason in said, reason
    listing = [json.loads(line) for line in (tmp_path / "a.import.jsonl").read_text().splitlines()]
    assert {row["id"] for row in listing if "id" in row} == {"train_0", "train_1", "test_0", "test_1"}
    assert {row["reason"] for row in listing if row.get("left_out") == "twice"} == {
        "two images of one name (test/img/sub/twice.png, test/img/twice.png)"
    }
    assert tuple(open_archive(tmp_path / "a.zip").captions("test")["test_0"]) == caption_of(r"\frac12").tokens


INK = {
    "": ("not XML", b""),
    "no annotation": ("no annotation of its LaTeX", ink("").encode()),
    "two": ("2 different annotations", ink("a", more='<annotation type="truth">b</annotation>').encode()),
    "no traces": ("no strokes", ink("a", traces="<trace id='0'></trace>").encode()),
    "nan": ("out of range", ink("a", traces="<trace>1 2, nan 4</trace>").encode()),
    "words": ("coordinates that are no numbers", ink("a", traces="<trace>1 2, x y</trace>").encode()),
    "half": ("has no y", ink("a", traces="<trace>1 2, 3</trace>").encode()),
    "bomb": ("declares XML entities", b'<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><ink>&b;</ink>'),
    "page": ("not InkML", b"<html/>"),
}


def test_bad_ink_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    for number, (_, content) in enumerate(INK.values()):
        (tmp_path / f"source/bad{number}.inkml").write_bytes(content)
    with pytest.raises(UserError, match=rf"no expression is left of {len(INK)}; .*a\.import\.jsonl says why"):
        import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    said = " ".join(capsys.readouterr().err.split())
    assert all(reason in said for reason, _ in INK.values())
    assert not (tmp_path / "a.zip").exists()
    (tmp_path / "source/good.inkml").write_text(ink("a"))
    (tmp_path / "source/told.inkml").write_text(ink(""))
    (tmp_path / "source/truths.tsv").write_text("told.inkml\tx^2\n")
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    assert open_archive(tmp_path / "a.zip", trains=False).captions("test") == {
        "good": ["a"],
        "told": ["x", "^", "{", "2", "}"],
    }


def test_ink_has_the_caption_of_the_nearest_list(tmp_path: Path) -> None:
    folders = {"data/train": "a", "data/test": "b", "data/2014": ""}  # no list is nearer to the last than to the others
    for folder, latex in folders.items():
        (tmp_path / folder / "ink").mkdir(parents=True)
        (tmp_path / folder / "ink/a1.inkml").write_text(ink(""))
        if latex:
            (tmp_path / folder / "lists").mkdir()
            (tmp_path / folder / "lists/gt.txt").write_text(f"a1\t{latex}\n")
    import_data(tmp_path, tmp_path / "a.zip", Choice())
    archive = open_archive(tmp_path / "a.zip")
    assert {split: archive.captions(split) for split in archive.splits} == {
        "train": {"a1": ["a"]},
        "test": {"a1": ["b"]},
    }


def test_a_pickle_that_runs_a_program_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Program:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    pickled(tmp_path / "source")
    (tmp_path / "source/test_images.pkl").write_bytes(pickle.dumps({"a": Program()}))
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    said = " ".join(capsys.readouterr().err.split())
    assert "no pickle of arrays (it wants to run builtins.exec): 1 (test_images.pkl)" in said
    assert open_archive(tmp_path / "a.zip").splits == ("train",) and not (tmp_path / "ran").exists()


NAMED = b"\x80\x04}X\x01\x00\x00\x00a"  # a dictionary, and its first key
LARGE = b"J\xff\xff\xff\x7f"  # 2,147,483,647
ARRAY = b"cnumpy\nndarray\n(" + LARGE + b"\x85cnumpy\ndtype\nX\x01\x00\x00\x00B\x85RtRs."
PICKLES = {
    NAMED + b"r\xff\xff\xff\x0f0.": "no pickle that Python wrote",  # a place of its memory: 4 GB
    NAMED + ARRAY: "an array without numbers",
    NAMED + b"B\xff\xff\xff\xff.": "expected 4294967295 bytes",
}


@pytest.mark.parametrize("content", PICKLES)
def test_a_small_pickle_takes_little_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=PICKLES[content]):
            unpickled(content)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


TABLES = {  # of a folder with an image a.png: the captions that are read, or what is said
    "a.jsonl": (b'\xef\xbb\xbf{"image": "a", "text": "x\xe2\x80\xa8y"}\r\n\n[1]\n', ["x\u2028y"]),
    "b.json": (
        b'{"version": [], "images": [{"image": "a", "text": "x"}], "more": [{"img": "a", "gt": "y"}]}',
        ["x", "y"],
    ),
    "c.json": (b'{"a.png": "x", "n": 1}', ["x"]),
    "d.csv": (b"\n\nimage,text\r\na,x\r\n", ["x"]),
    "office.csv": (b"file_name;latex;class\r\na.png;x,y;7b\r\n", ["x,y"]),
    "e.json": (b'[{"image": "a", "text": "x"}, {"image": "a", "text": ["x", "^", "2"]}]', ["x", "x ^ 2"]),
    "blanks.csv": (b"image, text\na, x\n", ["x"]),
    "empty.csv": (b"image,latex,label\na,x,printed\na,,handwritten\n", ["x"]),  # not from another column
    "empty.jsonl": (b'{"image": "a", "label": "hand"}\n{"image": "a", "latex": "x", "label": "print"}\n', ["x"]),
    "images.csv": (b"file_name,id,latex\n,a,x\na,b,y\n", ["y"]),
    "null.jsonl": (b'{"image": "a", "latex": null, "text": "x"}\n', ["x"]),
    "late.jsonl": (b'{"image": "a", "latex": null, "label": "z"}\n' * 9 + b'{"image": "a", "latex": "x"}\n', ["x"]),
    "half.json": (b'[{"image": "a", "text": "\\ud800"}]', ["\N{REPLACEMENT CHARACTER}"]),
    "twice.jsonl": (b'{"image": "a", "text": "x", "text": "y"}', "line 1: the key text occurs twice"),
    "twice.json": (b'{"a.png": "x", "a.png": "y"}', "the key a.png occurs twice"),
    "twice.csv": (b"image,text,text\na,x,y\n", "its column text occurs twice"),
    "ragged.tsv": (b"image\ttext\na\tx\ty\n", "line 2: 3 fields under 2 columns"),
    "open.csv": (b'image,text\na,"x\n', "not a table"),
    "deep.json": (b"[" * 100_000, "not JSON"),
    "cut.json": (b'[{"image": "a", "text": "x"}', "not JSON"),
    "latin.csv": (b"image,text\na,\xff\n", "not UTF-8 text"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_strictly(name: str, tmp_path: Path) -> None:
    content, expected = TABLES[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "a.png").write_bytes(encoded(1))
    if isinstance(expected, list):
        assert [found.latex for found in tables.read_tables(Source(tmp_path))] == expected
        return
    with pytest.raises(FAULTS, match=rf"{name}.*{expected}") as caught:
        assert reader_of(Source(tmp_path / name)).read is tables.read_tables
        list(tables.read_tables(Source(tmp_path / name)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
def test_columns_of_other_names_are_refused(between: str, tmp_path: Path) -> None:
    """A third one is no part of the formula; two need no names, and formulas with commas are no columns."""
    (tmp_path / "a.png").write_bytes(encoded(1))
    table = tmp_path / "list.csv"
    for lines, read in {("Bild|Formel|Klasse", "a.png|x^2|7b"): None, ("Bild|Formel", "a.png|x^2"): "x^2"}.items():
        table.write_text("\n".join(lines).replace("|", between) + "\n")
        found = tables.read_captions(Source(tmp_path))
        if read:
            assert [found.latex for found in found] == [read]
            continue
        with pytest.raises(UserError, match=r"list\.csv: .*Bild, Formel, Klasse; name its columns file_name and latex"):
            list(found)
    table.write_text("a.png,x,y\na.png,z,y\n")
    assert [found.latex for found in tables.read_captions(Source(tmp_path))] == ["x,y", "z,y"]


@pytest.mark.parametrize("line", ["a.png|x^2|SPLIT", "SPLIT|x^2|a.png"])
@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
def test_a_third_column_without_a_name_is_refused(line: str, between: str, tmp_path: Path) -> None:
    lines = [line.replace("|", between).replace("SPLIT", split) for split in ("train", "test", "test")]
    with pytest.raises(UserError, match=r"list\.txt: one of its columns has train or test; name its columns file_name"):
        imported(tmp_path, {"a.png": 1, "list.txt": "\n".join(lines)})


def test_an_empty_column_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="no expression is left of 2"):
        imported(tmp_path, {"a.png": 1, "m.csv": "image,latex,text\na,,x\na,,y\n"})
    assert "no image or no LaTeX in the row: latex is empty: 2 (m.csv, row 1, m.csv, row 2)" in said(capsys)


def test_a_tab_in_latex_after_another_separator_is_a_blank(tmp_path: Path) -> None:
    files = {"a.png": 1, "b.png": 2, "list.txt": "a.png,\\frac\t12\nb.png,y\n"}
    assert imported(tmp_path, files) == {"test": {"a": r"\frac { 1 } { 2 }", "b": "y"}}


def test_a_line_with_a_second_tab_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.png": 1, "b.png": 2, "list.txt": "a.png\tx\nb.png\ty\ttest\n"}
    assert imported(tmp_path / "list", files) == {"test": {"a": "x"}}
    files = {"a.inkml": ink(""), "b.inkml": ink(""), "list.txt": "a\tx\nb\ty\ttest\n"}
    assert imported(tmp_path / "ink", files) == {"test": {"a": "x"}}
    files = {"a.pkl": pickle.dumps({"a": picture(1), "b": picture(2)}), "list.txt": "a\tx\nb\ty\ttest\n"}
    assert imported(tmp_path / "pickle", files) == {"test": {"a": "x"}}
    assert said(capsys).count("left out, a third column after a second tab; name its columns") == 3


LATIN = "Mouch\xe8re\n".encode("latin-1")
BESIDE = {
    "list": {"a.png": 1, "caption.txt": "a\tx\n"},
    "ink": {"a.inkml": ink("x")},
    "table": {"a.png": 1, "metadata.csv": "file_name,latex\na.png,x\n"},
    "pickle": {"a.pkl": pickle.dumps({"a": picture(1)}), "labels.txt": "a\tx\n"},
    "each": {"a.png": 1, "a.txt": "x", "b.png": 2, "b.txt": "", "b/b.txt": ""},
}


@pytest.mark.parametrize("layout", BESIDE)
def test_a_text_in_another_encoding_is_left_out(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = "notes.csv" if layout == "table" else "README.txt"
    assert imported(tmp_path, BESIDE[layout] | {notes: LATIN}) == {"test": {"a": "x"}}
    assert f"{notes} is not UTF-8 text; save it as that" in said(capsys)


def test_captions_in_another_encoding_are_told_if_there_are_no_others(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no captions in a known layout.*caption\.txt is not UTF-8 text"):
        imported(tmp_path, {"a.png": 1, "caption.txt": b"a\t" + LATIN})


def test_images_that_are_not_white_on_black_are_counted_and_words_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    white = cv2.imencode(".png", 255 - picture(1))[1].tobytes()
    files = {"train/a.png": 1, "train/b.png": white, "train/caption.txt": "a\tx \u200b\nb\ty\n"}
    imported(tmp_path, files, tidy=False)
    told = capsys.readouterr()
    assert "1 image not white on black" in told.err and r"not among CROHME's symbols: \u200b (1)" in told.out
    imported(tmp_path, files)
    assert "white" not in capsys.readouterr().err


def test_captions_that_no_archive_may_have_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comer(tmp_path / "source")
    monkeypatch.setattr(write, "MAX_CAPTIONS", 20)
    with pytest.raises(UserError, match=r"captions of test have \d+ bytes, and an archive's may have 20; import them"):
        import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    assert not (tmp_path / "a.zip").exists()


def test_two_imports_at_once_leave_one_whole_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comer(tmp_path / "source")
    plain = write._add

    def add(*entry) -> None:
        monkeypatch.setattr(write, "_add", plain)  # the other one begins and ends within the first
        import_data(tmp_path / "source", tmp_path / "a.zip", Choice(everything="2023"))
        plain(*entry)

    monkeypatch.setattr(write, "_add", add)
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    assert open_archive(tmp_path / "a.zip").splits == ("train", "test")


@pytest.mark.parametrize("name", ["nothing", "page.html"])
def test_no_known_layout_says_which_are(name: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    if name != "nothing":
        (tmp_path / "source" / name).write_text("<html>")
    with pytest.raises(
        UserError, match=r"no captions in a known layout; there should be .*metadata\.jsonl.* needs a tab"
    ):
        reader_of(Source(tmp_path / "source"))


@pytest.mark.parametrize("megabytes", [5, 70])
def test_a_small_parquet_takes_little_memory(megabytes: int, tmp_path: Path) -> None:
    """A few kilobytes with an image for all rows, which arrow would put in memory 256 times at once."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as writer

    images = arrow.DictionaryArray.from_arrays(arrow.array([0] * 256, arrow.int32()), [bytes(megabytes << 20)])
    table = arrow.table({"image": images, "text": ["x"] * 256})
    path = tmp_path / "a.parquet"
    writer.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert path.stat().st_size < 100_000
    reading = tables.read_parquet(source := Source(tmp_path))
    if megabytes > 64:
        assert not list(reading) and " bytes unpack to 7" in next(iter(source.left_out))
    else:
        taken = arrow.total_allocated_bytes()
        assert next(reading).latex == "x" and arrow.total_allocated_bytes() - taken < 1e8


def test_a_parquet_without_images_says_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as writer

    parquet(tmp_path / "source")
    writer.write_table(arrow.Table.from_pylist([{"text": "x", "score": 1}]), tmp_path / "source/a.parquet")
    (tmp_path / "source/b.parquet").write_bytes(b"PAR1")
    whole = (tmp_path / "source/train-00000-of-00001.parquet").read_bytes()
    (tmp_path / "source/c.parquet").write_bytes(b"PAR1" + bytes(200) + whole[204:])  # the footer alone is whole
    large = {"image": arrow.array([encoded(1)], arrow.large_binary()), "latex": ["x"], "label": ["printed"]}
    writer.write_table(arrow.table(large), tmp_path / "source/train-large.parquet")
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice())
    assert open_archive(tmp_path / "a.zip").captions("train")["train-large_1"] == ["x"]
    said = " ".join(capsys.readouterr().err.split())
    assert "no column of images as bytes, or none of LaTeX, only text (string), score (int64): 1 (a.parquet)" in said
    assert re.search(r"damaged from row 1 on \(.*\): 1 \(c\.parquet\)", said)
    assert "not parquet (" in said and open_archive(tmp_path / "a.zip").splits == ("train", "test")
    for name in ("a", "b"):
        with pytest.raises(UserError, match="no expression is left of 1"):
            import_data(tmp_path / f"source/{name}.parquet", tmp_path / f"{name}.zip", Choice())


# --------------------------------------------------------------------------------------------------------- splits


def test_a_share_is_held_out_by_formula_and_by_writer(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for writer in range(10):
        for number in range(6):
            text = ink(f"{writer}{number}" if number else "x").replace(">w1<", f">w{writer}<")
            (tmp_path / f"source/{writer}_{number}.inkml").write_text(text)
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice(test_share=0.2, seed=3))
    archive = open_archive(tmp_path / "a.zip")
    writers = {split: {id_.partition("_")[0] for id_ in archive.captions(split)} for split in archive.splits}
    formulas = {split: {tuple(t) for t in archive.captions(split).values()} for split in archive.splits}
    assert len(writers["test"]) == 2 and not writers["train"] & writers["test"]
    assert not formulas["train"] & formulas["test"]
    import_data(tmp_path / "source", tmp_path / "b.zip", Choice(test_share=0.2, seed=4))
    assert writers["test"] != {id_.partition("_")[0] for id_ in open_archive(tmp_path / "b.zip").captions("test")}


def test_no_image_with_two_captions_is_in_both_splits(tmp_path: Path) -> None:
    files = {f"{k}.png": k for k in range(12)}
    lines = [f"{k}.png\t{letter} {k}\n" for k in range(12) for letter in "AB"]
    found = imported(tmp_path, files | {"caption.txt": "".join(lines)}, Choice(test_share=0.4))
    assert not found["train"].keys() & found["test"].keys() and sum(map(len, found.values())) == 12


def test_ids_that_are_in_no_list_or_change_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a b.png": 1, "c.png": 2, "caption.txt": "a b.png\tx\nc.png\ty\n"}
    assert imported(tmp_path, files)["test"] == {"a_b": "x", "c": "y"}
    assert "id made a name of a file in 1" in capsys.readouterr().out
    imported(tmp_path, files, Choice(listed=(("c", "train"), ("zz", "test"))))
    assert "in the list of splits, but no expression that could be read has this id: 1 (zz)" in said(capsys)


def test_a_list_and_one_split_for_all(tmp_path: Path) -> None:
    comer(tmp_path / "source")
    (tmp_path / "splits.txt").write_text("\ufefftrain_0 test\r\n\ntest_1\tTrain\n")
    import_data(tmp_path / "source", tmp_path / "a.zip", Choice(listed=listed(tmp_path / "splits.txt")))
    archive = open_archive(tmp_path / "a.zip")
    assert {split: list(archive.captions(split)) for split in archive.splits} == {
        "train": ["test_1"],
        "test": ["train_0"],
    }
    import_data(tmp_path / "source", tmp_path / "b.zip", Choice(everything="2023"))
    assert len(open_archive(tmp_path / "b.zip", trains=False).captions("2023")) == 4
    import_data(tmp_path / "source", tmp_path / "c.zip", Choice(everything="Train"))
    assert open_archive(tmp_path / "c.zip").splits == ("train",)
    folds = tuple((id_, f"train{id_[-1]}") for id_ in ("train_0", "train_1", "test_0", "test_1"))
    import_data(tmp_path / "source", tmp_path / "c.zip", Choice(listed=folds))
    assert open_archive(tmp_path / "c.zip", trains=False).splits == ("train0", "train1")
    with pytest.raises(UserError, match="every expression is in a test set already"):
        import_data(tmp_path / "source", tmp_path / "c.zip", Choice(everything="2023", test_share=0.5))
    faults = {b"train_0\n": "an id and a split on every line", b"a train\na test\n": "a occurs twice", b"\xff": "UTF-8"}
    faults[b"\n"] = faults[b"train_0\n"]  # without any, too
    for content, fault in faults.items():
        (tmp_path / "splits.txt").write_bytes(content)
        with pytest.raises(FAULTS, match=rf"splits\.txt: .*{fault}"):
            listed(tmp_path / "splits.txt")


# --------------------------------------------------------------------------------------------------------- CROHME


@pytest.mark.parametrize(("year", "same"), [("2014", 0.97), ("2016", 1.0), ("2019", 1.0)])
def test_crohmes_ink_gives_its_captions_and_the_size_of_its_images(year: str, same: float, crohme: Path) -> None:
    archive, inks = open_archive(crohme), Source(crohme.parent / f"inkml/{year}.zip")
    captions, close, equal, checked = archive.captions(year), 0, 0, 0
    for name in [name for name in inks.sizes if name.endswith(".inkml")][::9]:
        strokes, notes = ink_of(inks.read(name))
        id_ = Path(name).stem
        with suppress(Unsplit):
            equal += list(caption_of(notes["truth"][0], "add").tokens) == captions[id_]
        sides = zip(drawn(strokes).shape, archive.image(year, id_).shape, strict=True)
        close += all(abs(ours - theirs) <= 0.03 * theirs + 1 for ours, theirs in sides)
        checked += 1
    assert equal >= same * checked and close >= 0.7 * checked > 70


def test_ink_is_drawn_alike_in_every_unit() -> None:
    strokes, _ = ink_of(ink("a").encode())
    for unit in (1e-3, 1, 1e4):
        assert np.array_equal(drawn([stroke * unit for stroke in strokes]), drawn(strokes))
    assert drawn([stroke for stroke in strokes for _ in range(1)], 2000).size <= 2000
    assert drawn([np.array([[5.0, 5.0], [5.0, 5.0]])]).any() and drawn([np.array([[0.0, 0.0], [9.0, 0.0]])]).any()
