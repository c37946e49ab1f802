"""Scores of predictions and ground truth in files of every form, and everything that can be wrong with them."""

import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmerbench.evaluation import InputError, stores, symlg
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.scoring import inputs
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.evaluation.scoring.metrics import Bucket
from hmerbench.evaluation.scoring.score import evaluate
from tests.helpers.commands import script
from tests.helpers.scored_files import TRUTH, one_line, score_files, tex_folder


def test_a_zip_with_a_damaged_directory_is_refused(tmp_path: Path, archive: Path):
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 255  # the version needed to unpack
    archive.write_bytes(content)
    with pytest.raises(InputError, match="truncated, or not a zip"):
        inputs.read_ground_truth(f"{archive}:2014")


def put_truth(path: Path, latex: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for number in range(20):
            file.writestr(f"data/test/symLg/e{number}.lg", symlg.lg_text(symlg.from_latex(latex.split()), f"e{number}"))
        file.writestr("data/test/caption.txt", "".join(f"e{number}\t{latex}\n" for number in range(20)))
    os.utime(path, (1, 1))


def test_an_archive_that_is_kept_open_is_that_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two of one relative name and one time, as reproducible builds leave them."""
    for folder, latex in (("a", "x"), ("b", "y")):
        put_truth(tmp_path / folder / "d.zip", latex)
        monkeypatch.chdir(tmp_path / folder)
        captions = inputs.read_ground_truth("d.zip:test").captions
        assert captions and captions["e0"] == [latex]


def test_forked_processes_read_an_archive_that_was_open_before(tmp_path: Path):
    put_truth(tmp_path / "d.zip", "x ^ 2")
    spec = f"{tmp_path}/d.zip:test"
    truth = inputs.read_ground_truth(spec)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(inputs.read_ground_truth, [spec] * 8, chunksize=1) == [truth] * 8


def test_ids_with_accents_may_be_decomposed(tmp_path: Path):
    (tmp_path / "p.tsv").write_text("id\ttokens\nLo\u0308sung\tx\n", "utf-8")
    (tmp_path / "data/test").mkdir(parents=True)
    (tmp_path / "data/test/caption.txt").write_text("L\u00f6sung\tx\n", "utf-8")
    known, _, others = inputs.matched(tmp_path / "p.tsv", f"{tmp_path}:test")
    assert [*known] == ["L\u00f6sung"] and not others


@pytest.mark.parametrize("name", [b"\xff.txt", b"a\nb.txt", b"a\tb.txt"])
def test_an_unprintable_file_name_is_refused(tmp_path: Path, name: bytes):
    folder = tex_folder(tmp_path / "tex", TRUTH)
    Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text("%a\n$x$")
    assert "is not printable" in one_line(script("tex2symlg", "tex", "out", cwd=tmp_path))
    with pytest.raises(InputError, match="cannot be the id"):
        inputs.read_predictions(folder)


def test_a_folder_and_a_zip_of_predictions_are_equivalent(tmp_path: Path):
    folder = tex_folder(tmp_path / "tex", TRUTH)
    with zipfile.ZipFile(tmp_path / "result.zip", "w") as file:
        for path in folder.iterdir():
            file.write(path, f"some/folder/{path.name}")
        file.writestr("__MACOSX/e0.txt", "junk")
        file.writestr("some/folder/._e0.txt", b"\xff")
        file.writestr("README.md", "junk")
    (folder / "._e0.txt").write_bytes(b"\xff")  # macOS leaves such files beside others
    assert inputs.read_predictions(folder) == inputs.read_predictions(tmp_path / "result.zip")


def test_three_forms_of_truth_are_equivalent(tmp_path: Path, archive: Path, truth: Path):
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "unpacked")
    from_zip = inputs.read_ground_truth(f"{archive}:2014")
    assert from_zip == inputs.read_ground_truth(f"{tmp_path}/unpacked:2014")
    assert from_zip == inputs.read_ground_truth(f"{tmp_path}/unpacked/data:2014")
    assert from_zip.captions == {key: text.split() for key, text in TRUTH.items()}
    alone = inputs.read_ground_truth(str(truth))
    assert (alone.symlg, alone.captions) == (from_zip.symlg, None)


def zip_of(entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as file:
        for name, data in entries:
            file.writestr(name, data)
    return packed.getvalue()


def damaged() -> bytes:
    data = bytearray(zip_of([("e0.txt", os.urandom(2000))], zipfile.ZIP_DEFLATED))
    data[60:900] = b"\xff" * 840
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("p.md", b"a,b", "must be a folder"),
        ("a.jsonl", b"[1]\n", "line 1: not a JSON object with id"),
        ("b.jsonl", b'{"id": "a", "tokens": []}\n{"id": "b"}\n', "line 2: not a JSON object with id"),
        ("c.jsonl", b'\n\n{"id": 3, "tokens": ["x"]}\n', "line 3: id must be"),
        ("e.jsonl", b'{"id": "../e0", "tokens": []}\n', "cannot be the id"),
        ("f.jsonl", b'{"id": "\xff"}', "f.jsonl: is not UTF-8"),
        ("h.jsonl", b"[" * 100_000, "line 1: not a JSON"),
        ("i.jsonl", b'{"id": "\\u001b[0m", "tokens": []}', "'\\x1b[0m' cannot be the id"),
        ("j.jsonl", b'{"id": "a", "tokens": ["\\ud800"]}', "tokens a text or a list of strings"),
        ("cut.zip", b"PK\x03\x04", "truncated, or not a zip"),
        ("climb.zip", zip_of([("../../e0.txt", b"x")]), "no plain path"),
        ("root.zip", zip_of([("/etc/e0.txt", b"x")]), "is no plain path"),
        ("twice.zip", zip_of([("a/e1.txt", b"x"), ("b/e1.txt", b"x")]), "the id e1 occurs twice"),
        ("bytes.zip", zip_of([("e2.txt", b"\xff")]), "e2.txt: is not UTF-8"),
        ("empty.zip", zip_of([]), "empty.zip: holds no predictions"),
        ("damaged.zip", damaged(), "damaged"),
        ("nowhere", None, "no such file"),
        ("void/e0", b"", "void: holds no predictions"),
        ("latin/e0.txt", b"\xe9", "e0.txt: is not UTF-8 text"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_bad_predictions_are_refused_in_one_line(tmp_path: Path, name: str, data: bytes | None, says: str):
    path = tmp_path / Path(name).parts[0]
    if data is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        inputs.read_predictions(path)
    text = str(caught.value)
    assert "\n" not in text and path.name in text and says in text


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere", "must be ARCHIVE.zip:SPLIT"),
        ("nowhere.zip:2014", "no such archive"),
        ("data.zip:2019", "has no split 2019; it has 2014, train"),
        ("gt:2014", "has no split"),
        ("junk:2014", "truncated, or not a zip"),
        ("void", "holds no .lg files"),
        ("short.zip:2014", "expressions without a symLG: 1 (e9); add their .lg"),
        ("more.zip:2014", "expressions without a caption: 1 (e9); add their lines"),
        ("caption.zip:2014", "line 1: must be ID<TAB>tokens"),
        ("double.zip:2014", "line 2: the id e0 occurs twice"),
        ("twice.zip:2014", "twice.zip: entry 'data/2014/symLg/e0.lg' occurs 2 times; pack"),
    ],
)
def test_bad_ground_truth_is_refused_in_one_line(
    tmp_path: Path, archive: Path, truth: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
):
    monkeypatch.chdir(tmp_path)
    Path("junk").write_bytes(b"junk")
    Path("void").mkdir()
    for name, caption, ids in (
        ("short.zip", b"e0\ta\ne9\tb\n", ["e0"]),
        ("more.zip", b"e0\ta\n", ["e0", "e9"]),
        ("caption.zip", b"e0 a\n", ["e0"]),
        ("double.zip", b"e0\ta\ne0\ta\n", ["e0"]),
        ("twice.zip", b"e0\ta\n", ["e0", "e0"]),
    ):
        graphs = [(f"data/2014/symLg/{key}.lg", b"") for key in ids]
        Path(name).write_bytes(zip_of([("data/2014/caption.txt", caption), *graphs]))
    with pytest.raises(InputError) as caught:
        inputs.read_ground_truth(spec)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("year", "exact"), [("2014", 895), ("2016", 1124), ("2019", 1182)])
def test_what_a_perfect_reader_of_captions_gets(tmp_path: Path, crohme: Path, year: str, exact: int):
    truth = inputs.read_ground_truth(f"{crohme}:{year}")
    (tmp_path / "captions.tsv").write_text(tsv(truth.captions or {}))
    score = evaluate(tmp_path / "captions.tsv", truth).score
    assert (score.exact, score.token_exact) == (exact, score.n)


def test_all_captions_that_do_not_convert_are_told_at_once(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    bad = {"b": r"\foo x", "c": "{ x", "d": r"\bar", "e": "x }"}
    lines = "".join(f"{key}\t{text}\n" for key, text in {"a": "x", **bad}.items())
    (tmp_path / "mine/caption.txt").write_text(lines)
    with pytest.raises(InputError, match=r"b \(unknown .*\), c \(.*\), d \(.*\) and 1 others do not convert"):
        inputs.read_ground_truth(f"{tmp_path}:mine")


def test_a_hundred_thousand_captions_are_read(tmp_path: Path):
    """Of 60 bytes each, so more than a single expression's file may have."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/caption.txt").write_text("".join(f"e{k}\t{'x ' * 30}\n" for k in range(100_000)))
    text = stores.read_text(tmp_path / "mine/caption.txt", stores.MAX_CAPTIONS)
    assert len(inputs.parse_captions(text, "c")) == 100_000
    with pytest.raises(InputError, match="is larger than 4 MB"):
        stores.read_text(tmp_path / "mine/caption.txt")


@pytest.mark.parametrize("packed", [False, True])
def test_captions_alone_are_a_ground_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool):
    captions = "".join(f"{key}\t{text}\n" for key, text in TRUTH.items())

    def truth(split: str, text: str) -> str:
        if packed:
            with zipfile.ZipFile(tmp_path / "mine.zip", "w") as file:
                file.writestr(f"data/{split}/caption.txt", text)
            return f"{tmp_path}/mine.zip:{split}"
        (tmp_path / "mine/data" / split).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine/data" / split / "caption.txt").write_text(text)
        return f"{tmp_path}/mine:{split}"

    (tmp_path / "p.tsv").write_text("id\ttokens\n" + captions)
    result = evaluate(tmp_path / "p.tsv", truth("test", captions))
    assert (result.score.exact, result.score.token_exact) == (len(TRUTH), len(TRUTH))
    assert "the ground truth has no symLG; it was made from the captions" in result.notes
    with pytest.raises(InputError, match=r"test caption.txt: e9 does not convert to symLG \(.*\); correct or drop it"):
        inputs.read_ground_truth(truth("test", captions + "e9\t\\frac\n"))
    assert inputs.read_ground_truth(truth("2014", captions)).made  # of that name, but not CROHME's
    md5 = hashlib.md5(captions.encode()).hexdigest()
    monkeypatch.setattr(inputs, "symlg_published", lambda *found: found == ("2014", md5))
    with pytest.raises(InputError, match=r"2014: has no symLg/ID.lg; add CROHME's"):
        inputs.read_ground_truth(truth("2014", captions))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_as_a_zip_or_jsonl_are_read_or_refused(tmp_path: Path, data: bytes):
    for name in ("any.zip", "any.jsonl"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError):
            inputs.read_predictions(tmp_path / name)


def test_score(tmp_path: Path, archive: Path, truth: Path):
    tex = tex_folder(tmp_path / "tex", {"e0": "a + b", "e1": "{ x } ^ 2", "e2": "{ a", "other": "q"})
    score = score_files(tex, f"{archive}:2014", set="tiny", search="joint10", select="2014")
    assert (score.n, score.exact, score.le1, score.structure) == (4, 2, 2, 2)
    assert (score.missing, score.unconverted, score.token_exact, score.token_exprate) == (1, 1, 1, 25.0)
    assert (
        score.signature
        == "ExpRate|set:tiny|n:4|metric:symlg|conv:1.4|pandoc:1.19|lgeval:0.3.5|search:joint10|select:2014|v:2"
    )
    assert score.by_length is not None
    assert score.by_length[0] == Bucket("(0,10]", n=4, exact=2, exprate=50.0)
    assert score.by_length[5] == Bucket("50+", n=0, exact=0, exprate=None)
    json.dumps(dataclasses.asdict(score))
    bare = score_files(tex, str(truth), workdir=tmp_path / "work")
    assert (bare.exact, bare.by_length, bare.token_exact, bare.token_exprate) == (2, None, None, None)
    assert "set:unknown" in bare.signature
    assert (tmp_path / "work/Results_pred_symlg/Summary.txt").exists()
    captions = {key: text.split() for key, text in TRUTH.items()}
    assert score_files(tex, str(truth), captions=captions).token_exact == 1
    with pytest.raises(InputError, match="cannot be part of a signature"):
        score_files(tex, str(truth), set="tiny|n:9000")
    with pytest.raises(InputError, match=r"\(--captions\) lack those of 3 of 4 expressions \(e1, \.\.\.\); add"):
        score_files(tex, str(truth), captions={"e0": ["a"]})


def test_windows_files_are_read(tmp_path: Path):
    mark = b"\xef\xbb\xbf"
    for name in ("tex", "FOLDER/2014/symLg"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tex/e0.txt").write_bytes(mark + b"%e0\r\n$a + b$\r\n")
    (tmp_path / "p.jsonl").write_bytes(mark + b'{"id": "e0", "tokens": ["a", "+", "b"]}\r\n')
    (tmp_path / "FOLDER/2014/caption.txt").write_bytes(mark + b"e0\ta + b\r\n")
    text = symlg.lg_text(symlg.from_latex("a + b"), "e0").replace("\n", "\r\n")
    (tmp_path / "FOLDER/2014/symLg/e0.lg").write_bytes(mark + text.encode())
    for name in ("tex", "p.jsonl"):
        score = score_files(tmp_path / name, f"{tmp_path}/FOLDER:2014")
        assert (score.n, score.exact, score.token_exact) == (1, 1, 1)


@pytest.mark.parametrize("workdir", [None, "work"])
def test_a_truth_that_did_not_convert_counts_as_wrong(tmp_path: Path, workdir: str | None):
    tex = tex_folder(tmp_path / "tex", TRUTH | {"odd": "{ a"})
    assert script("tex2symlg", "tex", "gt", cwd=tmp_path).returncode == 0
    score = score_files(tex, str(tmp_path / "gt"), workdir=tmp_path / workdir if workdir else None)
    assert (score.n, score.exact) == (5, 4)


def test_predictions_of_another_set_are_refused(tmp_path: Path, archive: Path):
    tex = tex_folder(tmp_path / "tex", {"q0": "a", "q1": "b"})
    with pytest.raises(InputError, match=r"none of its 2 ids \(q0, ...\) is in"):
        score_files(tex, f"{archive}:2014")


def test_lines_end_where_files_end_them():
    """Not at the separators that Unicode also counts as such, by which numbers of lines would be off."""
    assert inputs.parse_captions("a\tx\u2028y\r\nb\tz\x0c\n", "captions") == {"a": ["x", "y"], "b": ["z"]}
    graph = label_graph.read("N, 0, a\x1cb, 1.0\r\nN, 1, c, 1.0\n", "x.lg")
    assert graph.nodes.keys() == {"0", "1"}
