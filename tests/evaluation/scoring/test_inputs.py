"""Scoring from files: the scripts, the sources of predictions and truth, and everything that can be wrong with them."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmerbench.evaluation import InputError, symlg
from hmerbench.evaluation.lgeval import label_graph, results_folder
from hmerbench.evaluation.scoring import inputs, outcome
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.evaluation.scoring.metrics import Bucket
from hmerbench.evaluation.scoring.score import NO_FIELDS, Score, evaluate
from hmerbench.evaluation.symlg import Unconverted
from hmerbench.evaluation.symlg.formula import prediction_file
from hmerbench.evaluation.symlg.mathml import from_mathml
from tests.helpers.commands import hmerbench, script
from tests.helpers.graphs import content
from tests.helpers.yardstick import loops

BIN = outcome.OWN_SCRIPTS
TRUTH = {"e0": "a + b", "e1": "x ^ 2", "e2": r"\frac { a } { b }", "e3": r"\sqrt { a b }"}


def started(script: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    command = [sys.executable, str(BIN / script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line that a failed script writes to stderr."""
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def tex_folder(folder: Path, expressions: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for key, text in expressions.items():
        (folder / f"{key}.txt").write_text(prediction_file(key, text.split()), encoding="utf-8")
    return folder


def lg_folder(folder: Path, expressions: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for key, text in expressions.items():
        (folder / f"{key}.lg").write_text(symlg.lg_text(symlg.from_latex(text), key), encoding="utf-8")
    return folder


def score_files(predictions: Path, truth: str, workdir: Path | None = None, **given: Any) -> Score:
    captions, rules = given.pop("captions", None), given.pop("rules", symlg.PAPER)
    return evaluate(predictions, truth, NO_FIELDS | given, workdir, captions, rules).score


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    return lg_folder(tmp_path / "gt", TRUTH)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A zip in the layout of CROHME's with the splits 2014 and train."""
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        for split in ("2014", "train"):
            file.writestr(f"data/{split}/caption.txt", "".join(f"{k}\t{t}\n" for k, t in TRUTH.items()))
            for key, text in TRUTH.items():
                file.writestr(f"data/{split}/symLg/{key}.lg", symlg.lg_text(symlg.from_latex(text), key))
    return path


# --- scripts ----------------------------------------------------------------------------------------------


def test_scripts_from_files_to_summary(tmp_path: Path, truth: Path):
    tex = tex_folder(tmp_path / "tex", TRUTH | {"e1": "x _ 2", "e2": "{ a", "stray": "q"})
    done = started("tex2symlg", tex, "pred_symlg", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "5 files, 4 converted to pred_symlg\n")
    assert done.stderr == "e2.txt: not converted: the expression ends too early\n"
    done = started("evaluate", "pred_symlg", truth, cwd=tmp_path)
    assert done.returncode == 0
    assert "1 of them have no output file" in done.stderr
    assert "1 output files have no ground truth" in done.stderr
    folder = tmp_path / "Results_pred_symlg"
    assert results_folder.read_summary(str(folder / "Summary.txt")) == {
        "n": 4, "exact": 2, "le1": 2, "le2": 2, "le3": 2, "structure": 2,
    }  # fmt: skip
    assert (folder / "Metrics/e1.diff").exists() and not (folder / "Metrics/e0.diff").exists()
    assert not (folder / "00_NoErrors").exists()
    rows = (folder / "FileMetrics.csv").read_text().splitlines()
    assert rows[1].startswith("pred_symlg/e0.lg, Correct,0,0,0,")
    assert rows[3].startswith("pred_symlg/e2.lg, Incorrect,5,3,2,")
    matrices = (folder / "ConfusionMatrices.csv").read_text()
    assert "I. Node Label Confusion Matrix: 5 unique labels" in matrices
    assert "Output:,'*','Above','Below','Sub','Sup','_'" in matrices
    assert (folder / "ConfusionMatrices.html").read_text().count("<table>") == 3
    labels = (folder / "labelsGT.txt").read_text()
    assert labels == "NODE LABELS:\n+\n-\n2\n\\sqrt\na\nb\nx\n\nEDGE LABELS:\nAbove\nBelow\nInside\nRight\nSup\n"
    assert "\nq\n" in (folder / "labelsOutput.txt").read_text()
    done = started("extract_exprate", 2, cwd=tmp_path)
    assert done.stdout == "Struct Rate: 50.0\nExprate 0 tolerated: 50.000\nExprate 1 tolerated: 50.000\n"
    assert not list(tmp_path.glob("*.part*"))


def test_evaluate_replaces_stale_results(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", TRUTH | {"e0": "a"})
    (tmp_path / "out/._e0.lg").write_bytes(b"\x00\x05\x16\x07\xff")  # macOS leaves such files beside others
    assert script("evaluate", "out", truth, cwd=tmp_path).returncode == 0
    (tmp_path / "out/e0.lg").write_text((truth / "e0.lg").read_text())
    assert script("evaluate", "out", truth, cwd=tmp_path).returncode == 0
    assert results_folder.read_summary(str(tmp_path / "Results_out/Summary.txt"))["exact"] == 4
    assert (tmp_path / "Results_out/00_NoErrors").exists()
    assert not list((tmp_path / "Results_out/Metrics").glob("*.diff"))


def test_evaluate_on_a_list_of_pairs(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", {"one": "a + b", "two": "x"})
    (tmp_path / "list").write_text("out/one.lg gt/e0.lg\nout/two.lg gt/e1.lg\nout/none.lg gt/e2.lg\n")
    assert script("evaluate", "list", cwd=tmp_path).returncode == 0
    assert (tmp_path / "Results_list/Summary.txt").read_text().splitlines()[3] == "List File: list"
    assert results_folder.read_summary(str(tmp_path / "Results_list/Summary.txt"))["n"] == 3
    (tmp_path / "list").write_text("out/one.lg gt/e0.lg\nout/two.lg gt/e0.lg\n")
    assert "two targets are called e0;" in one_line(script("evaluate", "list", cwd=tmp_path))
    (tmp_path / "gt/e0.other").write_text((truth / "e0.lg").read_text())
    (tmp_path / "list").write_text("out/one.lg gt/e0.lg\nout/two.lg gt/e0.other\n")
    assert "two targets are called e0;" in one_line(script("evaluate", "list", cwd=tmp_path))
    (tmp_path / "list").write_text("out/one.lg\n")
    assert "every line must name" in one_line(script("evaluate", "list", cwd=tmp_path))


def test_a_truth_that_does_not_convert_stays_in_the_denominator(tmp_path: Path):
    tex_folder(tmp_path / "gt_tex", TRUTH | {"bad": "{ a"})
    tex_folder(tmp_path / "tex", TRUTH | {"bad": "{ a"})
    assert script("tex2symlg", "gt_tex", "gt", cwd=tmp_path).returncode == 0
    assert script("tex2symlg", "tex", "out", cwd=tmp_path).returncode == 0
    done = script("evaluate", "out", "gt", cwd=tmp_path)
    assert "1 ground truths did not convert and count as wrong" in done.stderr
    counts = results_folder.read_summary(str(tmp_path / "Results_out/Summary.txt"))
    assert (counts["n"], counts["exact"], counts["le3"]) == (5, 4, 4)


def test_a_bad_file_drops_no_others_and_leaves_no_stale_lg(tmp_path: Path):
    tex = tex_folder(tmp_path / "tex", TRUTH)
    assert script("tex2symlg", tex, "out", cwd=tmp_path).returncode == 0
    (tex / "e1.txt").write_bytes(b"%e1\n$x \xff$")
    (tex / "e2.txt").write_text("%e2\n$\\mathrm { a }$")
    (tex / "e0.txt").unlink()
    done = script("tex2symlg", tex, "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "e1.txt: not converted: is not UTF-8 text" in done.stderr
    assert "e2.txt: not converted: nothing is left" in done.stderr
    assert "also holds 1 .lg of other names" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.lg")) == ["e0.lg", "e3.lg"]
    assert (tmp_path / "out/unconverted.txt").read_text().startswith("e1\tis not UTF-8")


def test_evallg(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", TRUTH | {"e0": "a - b"})
    done = script("evallg", "out/e0.lg", "gt/e0.lg", "m", "INTER", cwd=tmp_path)
    assert done.stdout.startswith("D_B,1,D_C,1,D_L,0,") and done.stdout.count("\n") == 1
    done = script("evallg", "out/e0.lg", "gt/e0.lg", "diff", "INTER", cwd=tmp_path)
    assert done.stdout == "*N,OR,-,1.0,:vs:,+,1.0\n"
    assert script("evallg", "out/e0.lg", "gt/e0.lg", cwd=tmp_path).stdout.count("\n") == 2
    (tmp_path / "pairs").write_text("gt/e0.lg,out/e0.lg\n")
    assert script("evallg", "batch", "pairs", "GT-FIRST", "MATOBJ", "INTER", cwd=tmp_path).returncode == 0
    assert (tmp_path / "pairs.m").read_text().startswith("*M,out/e0.lg,gt/e0.lg\nD_B,1,")
    assert (tmp_path / "pairs.diff").read_text() == "DIFF,out/e0.lg,gt/e0.lg\n*N,OR,-,1.0,:vs:,+,1.0\n"
    assert (tmp_path / "pairs.html").exists()
    for name in ("diff", "INTER", "MATRIX"):  # files, not options
        (tmp_path / name).write_text((truth / "e0.lg").read_text())
        assert script("evallg", "out/e0.lg", name, cwd=tmp_path).stdout.count("\n") == 2
    assert "MATRIX" in one_line(script("evallg", "out/e0.lg", "gt/e0.lg", "MATRIX", "x", cwd=tmp_path))
    for unused in ("confHist out gt 1 --edition current", "evaluate out gt --reading pandoc-2.17"):
        done = script(*unused.split(), cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("Usage: ")
    assert "INTRE" in one_line(script("evallg", "out/e0.lg", "gt/e0.lg", "m", "INTRE", cwd=tmp_path))
    assert "GTFIRST" in one_line(script("evallg", "batch", "pairs", "GTFIRST", cwd=tmp_path))


def test_conf_hist(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", TRUTH | {"e0": "a - b"})
    done = script("confHist", "out", "gt", 2, cwd=tmp_path)
    assert done.stdout == "CH_out_vs_gt.html\n"
    page = (tmp_path / "CH_out_vs_gt.html").read_text()
    assert "2 incorrect targets, 2 errors" in page
    assert "1 errors: a -Right-&gt; +</th><td>1: a -Right-&gt; -" in page
    assert "SIZE must be" in one_line(script("confHist", "out", "gt", 9, cwd=tmp_path))


def test_lg2symlg_gives_paths(tmp_path: Path):
    (tmp_path / "in").mkdir()
    text = "# IUD, x\nO, a, a, 1.0, 0, 1\nO, b, 2, 1.0, 2\nR, a, b, Sup, 1.0\n"
    (tmp_path / "in/x.lg").write_text(text)
    assert script("lg2symlg", "in", "out", cwd=tmp_path).returncode == 0
    assert "O, b, 2, 1.0, OSup" in (tmp_path / "out/x.lg").read_text()


def test_lg2symlg_refuses_what_has_no_objects(tmp_path: Path):
    (tmp_path / "in").mkdir()
    texts = {"good": "O, a, a, 1.0, 0\nO, b, 2, 1.0, 2\nR, a, b, Sup, 1.0, 0.5\n", "prose": "not a graph\n"}
    for name, text in (texts | {"strokes": "N, 0, a, 1.0\nN, 1, b, 1.0\nE, 0, 1, R, 1.0\n"}).items():
        (tmp_path / f"in/{name}.lg").write_text(text)
    done = script("lg2symlg", "in", "out", cwd=tmp_path)
    assert done.returncode == 1 and "3 files, 1 converted" in done.stdout
    assert "prose.lg: not converted: label graph, line 1: not a line of a label graph" in done.stderr
    assert "strokes.lg: not converted: has no objects" in done.stderr
    assert "O, b, 2, 1.0, OSup" in (tmp_path / "out/good.lg").read_text()


MATH = "<html><math xmlns='http://www.w3.org/1998/Math/MathML'>{}</math></html>"


@pytest.mark.parametrize(
    ("body", "latex"),
    [
        ("<mi>x</mi><mo>&minus;</mo><mn>1</mn>", "x - 1"),
        ("<semantics><msup><mi>x</mi><mn>2</mn></msup><annotation>x^2</annotation></semantics>", "x ^ 2"),
        ("<msqrt><mi>a</mi><mi>b</mi></msqrt>", r"\sqrt { a b }"),
        ("<mroot><mi>a</mi><mi>n</mi></mroot>", r"\sqrt [ n ] { a }"),
        ("<mrow><mfrac><mi>a</mi><mrow><mi>b</mi><mo>&lt;</mo><mi>c</mi></mrow></mfrac></mrow>", r"\frac a { b < c }"),
        ("<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>", r"\sum \limits _ i ^ n"),
        ("<mrow><mtext>if</mtext><mi>lim</mi></mrow>", r"\lim"),
        ("<mrow></mrow>", "{ }"),
        ("<mi>a</mi><mi>b</mi>", "a b"),
        ("<msqrt></msqrt><mi>b</mi>", r"\sqrt { } b"),
        ("<mroot><mrow><mi>a</mi><mi>b</mi></mrow><mi>n</mi></mroot>", r"\sqrt [ n ] { a b }"),
        *((f"<{tag}>1<mi>2</mi></{tag}>", "12") for tag in ("mi", "mo", "mn")),
        ("<!-- a --><?b c?><MI>x</MI>", "x"),
        ("<mi>a</mi>" * 9_999, "a " * 9_999),
    ],
)  # fmt: skip
def test_mathml(body: str, latex: str):
    assert content(from_mathml(MATH.format(body))) == content(symlg.from_latex(latex))


@pytest.mark.parametrize(
    "text",
    [
        "no math here",
        MATH.format("<mi>x</mi"),
        MATH.format("<mtext>a</mtext>"),
        MATH.format("<semantics><mstyle><mi>a</mi></mstyle><annotation>a</annotation></semantics>"),
        MATH.format("&bomb;"),
        MATH.format("<mi>\ud800</mi>"),
        MATH.format(""),
        MATH.format("<mi>a</mi>" * 10_001),
        "<math>" + "<mrow>" * 50_000 + "</mrow>" * 50_000 + "</math>",
        "<math><!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><mi>&b;</mi></math>",
        "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><math><mi>&a;</mi></math>",
    ],
    ids=range(11),
)
def test_hostile_mathml_is_refused_with_a_reason(text: str):
    with pytest.raises(Unconverted) as caught:
        from_mathml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["<mtr><mi>a</mi></mtr>", "<mtable><mi>a</mi></mtable>", "<mtable></mtable>"])
def test_broken_matrices_convert(body: str):
    assert from_mathml(MATH.format(body)).objects


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        ("<mi>a\n  b</mi>", {"a b"}),
        ("<mn>1,234,567</mn>", {"1COMMA234COMMA567"}),
        ("<mo>&LT;</mo>", {r"\lt"}),
        ("<mi>a</mi><mo>&amp;</mo><mi>b</mi>", {"a"}),  # the official tool reads nothing from the ampersand on
    ],
)
def test_labels_of_mathml_fit_in_a_line(body: str, labels: set[str]):
    graph = from_mathml(MATH.format(body))
    assert graph.nodes == {"O": labels}
    again = label_graph.read(symlg.lg_text(graph, "id"))
    assert (again.nodes, again.edges) == (graph.nodes, graph.edges)


def test_unfinished_mathml_is_searched_once():
    def search():
        with pytest.raises(Unconverted, match="no <math>"):
            from_mathml("<math>" * 300_000)

    assert loops(search) < 200  # below one; searching anew from every place would take thousands


def test_mml2symlg(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.mml").write_text(MATH.format("<mi>x</mi>"))
    (tmp_path / "in/b.mml").write_text("<math>")
    done = script("mml2symlg", "in", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 files, 1 converted to out\n")
    assert "O, x_1, x, 1.0, O" in (tmp_path / "out/a.lg").read_text()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tex2symlg", ["nowhere", "out"]),
        ("tex2symlg", ["empty", "out"]),
        ("evaluate", ["out", "empty"]),
        ("evaluate", ["out", "broken"]),
        ("evaluate", ["nowhere", "gt"]),
        ("evallg", ["out/e0.lg", "nowhere.lg"]),
        ("confHist", ["out", "gt", "many"]),
        ("extract_exprate", ["1"]),
    ],
)
def test_scripts_refuse_bad_arguments_in_one_line(tmp_path: Path, truth: Path, name: str, arguments: list[str]):
    lg_folder(tmp_path / "out", TRUTH)
    lg_folder(tmp_path / "broken", TRUTH)
    (tmp_path / "broken/e1.lg").write_text("O, x\n")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    one_line(script(name, *arguments, cwd=tmp_path))
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written


def test_malformed_prediction_lg_leaves_earlier_results(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", TRUTH)
    assert script("evaluate", "out", "gt", cwd=tmp_path).returncode == 0
    before = (tmp_path / "Results_out/Summary.txt").read_text()
    (tmp_path / "out/e0.lg").write_bytes(b"\xff\xfe")
    assert "out/e0.lg: is not UTF-8" in one_line(script("evaluate", "out", "gt", cwd=tmp_path))
    assert (tmp_path / "Results_out/Summary.txt").read_text() == before


def test_only_a_results_folder_is_replaced(tmp_path: Path, truth: Path):
    (tmp_path / "Results_gt").mkdir()
    (tmp_path / "Results_gt/thesis.tex").write_text("years of work")
    assert "is not a results folder" in one_line(script("evaluate", "gt", "gt", cwd=tmp_path))
    assert (tmp_path / "Results_gt/thesis.tex").exists()


def test_results_behind_a_link_are_left_alone(tmp_path: Path, truth: Path):
    (tmp_path / "elsewhere/Metrics").mkdir(parents=True)
    (tmp_path / "Results_gt").symlink_to("elsewhere")
    assert "is not a results folder" in one_line(script("evaluate", "gt", "gt", cwd=tmp_path))
    assert (tmp_path / "Results_gt").is_symlink() and not list(tmp_path.glob("*.old*"))


def test_a_list_of_unconverted_files_cannot_name_other_folders(tmp_path: Path, truth: Path):
    for line in (b"../../e9\ta reason\n", b"\xff\ta reason\n"):
        (truth / "unconverted.txt").write_bytes(line)
        assert "was not written by tex2symlg" in one_line(script("evaluate", "gt", "gt", cwd=tmp_path))


def test_converting_in_place(tmp_path: Path):
    tex_folder(tmp_path / "mix", TRUTH | {"bad": "{ a"})
    for _ in range(2):  # the second time, unconverted.txt is among the sources
        assert script("tex2symlg", "mix", "mix", cwd=tmp_path).stdout == "5 files, 4 converted to mix\n"
    before = sorted(path.read_bytes() for path in (tmp_path / "mix").iterdir())
    assert "would be overwritten" in one_line(script("lg2symlg", "mix", "mix", cwd=tmp_path))
    assert sorted(path.read_bytes() for path in (tmp_path / "mix").iterdir()) == before


def test_converting_into_the_current_folder_or_through_a_link(tmp_path: Path):
    tex_folder(tmp_path / "tex", TRUTH)
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    for folder, name in (("here", "."), (".", "link")):
        done = script("tex2symlg", tmp_path / "tex", name, cwd=tmp_path / folder)
        assert done.stdout == f"4 files, 4 converted to {name}\n", done.stderr
        assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [f"{key}.lg" for key in TRUTH]
    assert (tmp_path / "link").is_symlink()


def test_a_mistyped_option_is_refused(tmp_path: Path, truth: Path):
    done = script("evaluate", "gt", "gt", "--editon", "mixed", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("Usage: evaluate") and not list(tmp_path.glob("Results*"))


def test_lists_and_graphs_may_begin_with_a_byte_order_mark(tmp_path: Path, truth: Path):
    (tmp_path / "list").write_text("gt/e0.lg gt/e0.lg\n", encoding="utf-8-sig")
    assert not script("evaluate", "list", cwd=tmp_path).stderr
    assert results_folder.read_summary(str(tmp_path / "Results_list/Summary.txt"))["exact"] == 1
    marked = tmp_path / "marked/e0.lg"
    marked.parent.mkdir()
    marked.write_text("O, a, a, 1.0, 0\nO, b, b, 1.0, 1\nR, a, b, Right, 1.0\n", encoding="utf-8-sig")
    script("lg2symlg", "marked", "paths", cwd=tmp_path)
    assert (tmp_path / "paths/e0.lg").read_text().startswith("O, a, a, 1.0, O\n")


def test_graphs_of_too_many_pairs_are_refused():
    text = "O, a, a, 1.0, " + ", ".join(map(str, range(1_100)))
    with pytest.raises(InputError, match="line 1: more than 1,000,000 pairs of primitives"):
        label_graph.read(text)


def test_digits_count_one_by_one_where_an_edition_splits_them():
    digits = "1" * 10_001
    assert symlg.from_latex(digits).objects
    with pytest.raises(Unconverted, match="more than 10000 symbols"):
        symlg.from_latex(digits, symlg.rules(edition="current"))


def test_a_zip_with_a_damaged_directory_is_refused(tmp_path: Path, archive: Path):
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 255  # the version needed to unpack
    archive.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a zip"):
        inputs.read_ground_truth(f"{archive}:2014")


@pytest.mark.parametrize("name", [b"\xff.txt", b"a\nb.txt", b"a\tb.txt"])
def test_an_unprintable_file_name_is_refused(tmp_path: Path, name: bytes):
    folder = tex_folder(tmp_path / "tex", TRUTH)
    Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text("%a\n$x$")
    assert "is not printable" in one_line(script("tex2symlg", "tex", "out", cwd=tmp_path))
    with pytest.raises(InputError, match="cannot be the id"):
        inputs.read_predictions(folder)


def test_a_full_disk_on_stdout_is_one_error_line(tmp_path: Path, truth: Path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    for words in ([BIN / "evallg", "gt/e0.lg", "gt/e1.lg"], ["-m", "hmerbench", "doctor", "--scorer"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, *map(str, words)],
                cwd=tmp_path,
                env=environment | {"PYTHONPATH": str(BIN.parents[1])},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 1 and done.stderr.startswith("error: output: No space left on device")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        " Structure     50.00         4         2         2\n",
        " Structure     50.00         4         two       2\nCum. Files 1 1 1 1 1 1 4\n",
        " Structure    100.00         0         0         0\nCum. Files 0 0 0 0 0 0 0\n",
    ],
)
def test_an_incomplete_summary_is_refused(tmp_path: Path, text: str):
    (tmp_path / "Summary.txt").write_text(text)
    with pytest.raises(InputError, match="not a complete LgEval summary"):
        results_folder.read_summary(str(tmp_path / "Summary.txt"))
    assert "error: " in one_line(script("extract_exprate", "²", "Summary.txt", cwd=tmp_path))


def test_metrics_that_are_not_numbers_are_refused(tmp_path: Path):
    (tmp_path / "Metrics").mkdir()
    for value in (b"x", b"\xff", b"nan", b"1,more,1"):
        (tmp_path / "Metrics/e0.csv").write_bytes(b",".join(b"D_B," + value for _ in range(28)))
        with pytest.raises(InputError, match=r"e0\.csv: the scorer left no metrics"):
            results_folder.read_metrics(str(tmp_path))


def test_too_few_arguments_show_the_usage(tmp_path: Path):
    for name in sorted(path.name for path in BIN.iterdir()):
        done = started(name, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("Usage: "), name
    for name, *arguments in (("evaluate", "."), ("confHist", ".", ".")):  # a list file would be enough
        done = started(name, *arguments, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("Usage: "), name
    assert started(name, "-h", cwd=tmp_path).returncode == 0


def test_scripts_need_only_the_standard_library(tmp_path: Path, truth: Path):
    """So that they start fast, and on any Python."""
    code = "import sys; from hmerbench.evaluation.lgeval import confusions, scripts; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=BIN.parents[1], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "scipy", "pandas", "pydantic", "typer", "rich", "torch", "defusedxml"}


# --- predictions and ground truth -------------------------------------------------------------------------


def test_three_forms_of_predictions_are_equivalent(tmp_path: Path):
    folder = tex_folder(tmp_path / "tex", TRUTH)
    with zipfile.ZipFile(tmp_path / "result.zip", "w") as file:
        for path in folder.iterdir():
            file.write(path, f"some/folder/{path.name}")
        file.writestr("__MACOSX/e0.txt", "junk")
        file.writestr("some/folder/._e0.txt", b"\xff")
        file.writestr("README.md", "junk")
    lines = [json.dumps({"id": key, "tokens": text.split(), "score": 1}) for key, text in TRUTH.items()]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "._e0.txt").write_bytes(b"\xff")  # macOS leaves such files beside others
    forms = [inputs.read_predictions(tmp_path / name) for name in ("tex", "result.zip", "p.jsonl")]
    assert forms[0] == forms[1] == forms[2]
    (tmp_path / "text.jsonl").write_text(json.dumps({"id": "e0", "tokens": "a + b"}))
    assert inputs.read_predictions(tmp_path / "text.jsonl") == {"e0": "%e0\n$a + b$"}


def test_three_forms_of_truth_are_equivalent(tmp_path: Path, archive: Path, truth: Path):
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "unpacked")
    from_zip = inputs.read_ground_truth(f"{archive}:2014")
    assert from_zip == inputs.read_ground_truth(f"{tmp_path}/unpacked:2014")
    assert from_zip == inputs.read_ground_truth(f"{tmp_path}/unpacked/data:2014")
    assert from_zip.captions == {key: text.split() for key, text in TRUTH.items()}
    alone = inputs.read_ground_truth(str(truth))
    assert (alone.symlg, alone.captions) == (from_zip.symlg, None)


def bad_predictions(folder: Path) -> dict[str, Path]:
    """Bad predictions of every kind, by what the message must say."""
    made: dict[str, Path] = {"no such file": folder / "nowhere"}

    def file(says: str, name: str, data: bytes) -> None:
        (folder / name).write_bytes(data)
        made[says] = folder / name

    def archive(says: str, name: str, entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(folder / name, "w", compression) as zipped:
            for entry, data in entries:
                zipped.writestr(entry, data)
        made[says] = folder / name

    file("must be a folder", "p.md", b"a,b")
    file("line 1: not a JSON object with id", "a.jsonl", b"[1]\n")
    file("line 2: not a JSON object with id", "b.jsonl", b'{"id": "a", "tokens": []}\n{"id": "b"}\n')
    file("line 3: id must be", "c.jsonl", b'\n\n{"id": 3, "tokens": ["x"]}\n')
    file("the id e0 occurs twice", "d.jsonl", b'{"id": "e0", "tokens": []}\n' * 2)
    file("cannot be the id", "e.jsonl", b'{"id": "../e0", "tokens": []}\n')
    file("f.jsonl: is not UTF-8", "f.jsonl", b'{"id": "\xff"}')
    file("g.jsonl: holds no predictions", "g.jsonl", b"")
    file("line 1: not a JSON", "h.jsonl", b"[" * 100_000)
    file("'\\x1b[0m' cannot be the id", "i.jsonl", b'{"id": "\\u001b[0m", "tokens": []}')
    file("tokens a text or a list of strings", "j.jsonl", b'{"id": "a", "tokens": ["\\ud800"]}')
    file("cannot be read as a zip", "cut.zip", b"PK\x03\x04")
    archive("leads outside", "climb.zip", [("../../e0.txt", b"x")])
    archive("leads outside the archive", "root.zip", [("/etc/e0.txt", b"x")])
    archive("the id e1 occurs twice", "twice.zip", [("a/e1.txt", b"x"), ("b/e1.txt", b"x")])
    archive("larger than", "bomb.zip", [("e0.txt", b"0" * (inputs.MAX_BYTES + 1))], zipfile.ZIP_DEFLATED)
    archive("e2.txt: is not UTF-8", "bytes.zip", [("e2.txt", b"\xff")])
    archive("empty.zip: holds no predictions", "empty.zip", [])
    archive("damaged", "damaged.zip", [("e0.txt", os.urandom(2000))], zipfile.ZIP_DEFLATED)
    data = bytearray((folder / "damaged.zip").read_bytes())
    data[60:900] = b"\xff" * 840
    (folder / "damaged.zip").write_bytes(data)
    (folder / "void").mkdir()
    made["void: holds no predictions"] = folder / "void"
    (folder / "latin").mkdir()
    (folder / "latin/e0.txt").write_bytes(b"\xe9")
    made["e0.txt: is not UTF-8 text"] = folder / "latin"
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe/e0.txt")
    made["e0.txt: is not a regular file"] = folder / "pipe"
    return made


def test_bad_predictions_are_refused_in_one_line(tmp_path: Path):
    for says, path in bad_predictions(tmp_path).items():
        with pytest.raises(InputError) as caught:
            inputs.read_predictions(path)
        text = str(caught.value)
        assert "\n" not in text and path.name in text
        assert says in text, text


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere", "must be ARCHIVE.zip:SPLIT"),
        ("nowhere.zip:2014", "no such archive"),
        ("data.zip:2019", "has no split 2019; it has 2014, train"),
        ("gt:2014", "has no split"),
        ("junk:2014", "cannot be read as a zip"),
        ("void", "holds no .lg files"),
        ("short.zip:2014", "expressions without a symLG: 1 (e9); add their .lg"),
        ("more.zip:2014", "expressions without a caption: 1 (e9); add their lines"),
        ("caption.zip:2014", "line 1: must be ID<TAB>tokens"),
        ("double.zip:2014", "line 2: the id e0 occurs twice"),
        ("twice.zip:2014", "twice.zip:2014: the id e0 occurs twice; keep one"),
    ],
)
def test_bad_ground_truth_is_refused_in_one_line(
    tmp_path: Path, archive: Path, truth: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
):
    monkeypatch.chdir(tmp_path)
    Path("junk").write_bytes(b"junk")
    Path("void").mkdir()
    for name, caption, ids in (
        ("short.zip", "e0\ta\ne9\tb\n", ["e0"]),
        ("more.zip", "e0\ta\n", ["e0", "e9"]),
        ("caption.zip", "e0 a\n", ["e0"]),
        ("double.zip", "e0\ta\ne0\ta\n", ["e0"]),
        ("twice.zip", "e0\ta\n", ["e0", "e0"]),
    ):
        with zipfile.ZipFile(name, "w") as file:
            file.writestr("data/2014/caption.txt", caption)
            for key in ids:
                file.writestr(f"data/2014/symLg/{key}.lg", "")
    with pytest.raises(InputError) as caught:
        inputs.read_ground_truth(spec)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("year", "exact"), [("2014", 895), ("2016", 1124), ("2019", 1182)])
def test_what_a_perfect_reader_of_captions_gets(tmp_path: Path, crohme: Path, year: str, exact: int):
    truth = inputs.read_ground_truth(f"{crohme}:{year}")
    (tmp_path / "captions.tsv").write_text(tsv(truth.captions or {}))
    score = evaluate(tmp_path / "captions.tsv", truth, NO_FIELDS).score
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
    assert (
        len(inputs.parse_captions(inputs.read_text(tmp_path / "mine/caption.txt", inputs.MAX_CAPTIONS), "c")) == 100_000
    )
    with pytest.raises(InputError, match="is larger than 4 MB"):
        inputs.read_text(tmp_path / "mine/caption.txt")


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
    result = evaluate(tmp_path / "p.tsv", truth("test", captions), NO_FIELDS)
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


# --- score ------------------------------------------------------------------------------------------------


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


def test_a_workdir_keeps_what_is_not_its_own(tmp_path: Path, truth: Path):
    tex = tex_folder(tmp_path / "work/result", TRUTH | {"stray": "q"})
    for others in (False, True):  # the predictions themselves; then another folder of the same name
        if others:
            (tmp_path / "work/thesis.tex").touch()
        with pytest.raises(InputError, match="its result would be replaced"):
            score_files(tex_folder(tmp_path / "tex", TRUTH) if others else tex, str(truth), workdir=tmp_path / "work")
    assert (tex / "stray.txt").exists()
    for _ in range(2):  # its own results are replaced
        assert score_files(tmp_path / "tex", str(truth), workdir=tmp_path / "new").exact == 4


@pytest.mark.parametrize("renames", range(7))  # of eight: four folders, each put aside and replaced
def test_a_workdir_is_usable_after_a_kill(tmp_path: Path, truth: Path, monkeypatch: pytest.MonkeyPatch, renames: int):
    tex, real, done = tex_folder(tmp_path / "tex", TRUTH), Path.rename, []

    def rename(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return real(path, target)

    score_files(tex, str(truth), workdir=tmp_path / "work")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", rename)
        score_files(tex, str(truth), workdir=tmp_path / "work")
    assert score_files(tex, str(truth), workdir=tmp_path / "work").exact == 4


def test_a_workdir_of_something_else_is_refused(tmp_path: Path, truth: Path):
    """Its only folder is called as one of ours, but we have not scored there."""
    tex_folder(tmp_path / "work/result", {"x": "a"})
    with pytest.raises(InputError, match="its result would be replaced"):
        score_files(tex_folder(tmp_path / "tex", TRUTH), str(truth), workdir=tmp_path / "work")
    assert (tmp_path / "work/result/x.txt").exists()


def test_two_scorings_in_one_workdir_are_kept_apart(tmp_path: Path, truth: Path, monkeypatch: pytest.MonkeyPatch):
    """The second begins and ends between the two scripts of the first."""
    right, wrong = tex_folder(tmp_path / "right", TRUTH), tex_folder(tmp_path / "wrong", dict.fromkeys(TRUTH, "z"))
    real, found = outcome.run_script, []

    def between(name: str, *arguments: Any) -> str:
        if name == "evaluate" and not found:
            found.append(None)
            found.append(score_files(right, str(truth), workdir=tmp_path / "work").exact)
        return real(name, *arguments)

    monkeypatch.setattr(outcome, "run_script", between)
    assert score_files(wrong, str(truth), workdir=tmp_path / "work").exact == 0 and found == [None, 4]
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == sorted(outcome.FOLDERS)


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


def other_scripts(folder: Path, tex2symlg: str, evaluate: str) -> None:
    """Another set of scripts: ours, each followed by a line of shell."""
    folder.mkdir()
    for name, more in (("tex2symlg", tex2symlg), ("evaluate", evaluate)):
        script = folder / name
        script.write_text(f'#!/bin/sh\n"{sys.executable}" "{BIN / name}" "$@"\n{more}\n')
        script.chmod(0o755)


@pytest.mark.parametrize(
    ("tex2symlg", "evaluate", "says"),
    [
        ("", "", None),
        ("rm pred_symlg/e1.lg; echo crash >&2", "", "tex2symlg lost 1 of 4 files (e1, ...); it said: crash"),
        ("rm -r pred_symlg", "", "tex2symlg lost 4 of 4"),
        ("", "rm -r Results_pred_symlg", "the scorer wrote no summary"),
        ("", "rm Results_pred_symlg/Metrics/e0.csv", "evaluate scored 4 of 4 expressions"),
        ("", ": > Results_pred_symlg/Metrics/e0.csv", "left no metrics for this file"),
        ("", "sed -i 's/D_B,0/D_B,1/' Results_pred_symlg/Metrics/e0.csv", "Summary.txt and the metrics"),
        (
            "",
            "head -5 Results_pred_symlg/Summary.txt > s; mv s Results_pred_symlg/Summary.txt",
            "not a complete LgEval",
        ),
        ("", "rm gt_symlg/e0.lg; cd Results_pred_symlg; sed -i 's/ 4$/ 3/' Summary.txt", "evaluate scored 3 of 4"),
    ],
)
def test_another_scorer_instead_of_ours(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, tex2symlg: str, evaluate: str, says: str | None
):
    other_scripts(tmp_path / "other", tex2symlg, evaluate)
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "other"))
    tex = tex_folder(tmp_path / "tex", TRUTH)
    if says is None:
        found = score_files(tex, f"{archive}:2014")
        assert found.exact == 4 and "|metric:symlg|scorer:LGEVAL_BIN|search" in found.signature
        with pytest.raises(InputError, match=r"LGEVAL_BIN=.*leave out reading and edition"):
            score_files(tex, f"{archive}:2014", rules=symlg.rules(edition="current"))
        assert outcome.self_check() == [] and outcome.scripts() == str(tmp_path / "other")
    else:
        with pytest.raises(InputError) as caught:
            score_files(tex, f"{archive}:2014")
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_scorer_that_is_wrong_or_missing_fails_the_self_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other_scripts(tmp_path / "lax", "for f in $2/*.lg; do sed -i s/OSub/OSup/ $f; done", "")
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "lax"))
    assert any("x _ 2" in failure for failure in outcome.self_check())
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "nowhere"))
    assert outcome.self_check() == [f"LGEVAL_BIN={tmp_path}/nowhere: holds no executable tex2symlg"]


# --- command line -----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, archive: Path) -> Path:
    """Two systems on data.zip, and one expression that is right under the truth's own edition alone."""
    tex_folder(tmp_path / "a", TRUTH | {"e0": "a"})
    tex_folder(tmp_path / "b", TRUTH | {"e1": "x"})
    tex_folder(tmp_path / "roots", {"r": r"\sqrt { a b }"})
    (tmp_path / "newer").mkdir()
    newer = symlg.from_latex(r"\sqrt { a b }", symlg.rules(edition="current"))
    (tmp_path / "newer/r.lg").write_text(symlg.lg_text(newer, "r"))
    return tmp_path


OF_A, OF_B = (f"--predictions {system} --ground-truth data.zip:2014" for system in "ab")
ROOTS = "--predictions roots --ground-truth newer"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"score {OF_A}", "exact     3 of 4      75.00 %  (30.1–95.4)"),
        (f"score {OF_A}", "set:2014|"),
        (f"score {OF_A} --json", '"ci95": [30.06, 95.44]'),
        (f"score {ROOTS}", "0 of 1"),
        (f"score {ROOTS} --edition current", "exact     1 of 1"),
        (f"editions {ROOTS}", "crohme2019"),
        (f"editions {ROOTS}", "the truth: one-child Inside (convert2symLG 1.5)"),
        ("compare a b --ground-truth data.zip:2014", "A - B = +0.00 points"),
        ("compare a b --ground-truth data.zip:2014 --json", '"only_a": 1'),
        (f"errors {OF_A} --out tables", "symbols.csv"),
        ("doctor --scorer", "ten known cases scored correctly"),
    ],
)
def test_commands(place: Path, line: str, says: str):
    done = hmerbench(*line.split(), cwd=place)
    assert (done.returncode, says in done.stdout) == (0, True), done


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        (f"score --predictions a {OF_B}", 1, "error: 2 --predictions, but 1 --ground-truth: give one for each\n"),
        (f"score {OF_A} {OF_A} --workdir w", 1, "for one set at a time"),
        (
            "score --predictions nowhere --ground-truth data.zip:2014",
            1,
            "error: nowhere: there is no such file or folder",
        ),
        (f"score {OF_A} --per-expression no/such/rows.csv", 1, "there is no folder no/such; make it\n"),
        (f"score {OF_A} --per-expression b", 1, "b: exists and is not a file; choose another name"),
        ("no-such-command", 2, "Usage: "),
        ("score", 2, "Usage: "),
    ],
)
def test_commands_that_are_refused(place: Path, line: str, status: int, says: str):
    done = hmerbench(*line.split(), cwd=place)
    assert (done.returncode, done.stdout, says in done.stderr) == (status, "", True), done
    assert status == 2 or done.stderr.count("\n") == 1


def test_captions_of_another_set_are_refused(place: Path):
    (place / "captions.txt").write_text("e0\ta + b\n")
    done = hmerbench(*f"score {OF_A} --captions captions.txt".split(), cwd=place)
    assert done.returncode == 1 and "lack those of 3 of 4 expressions (e1, ...); add their lines" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(place: Path):
    words = [sys.executable, "-m", "hmerbench", "errors", *OF_A.split(), "--out", "tables"]
    env = os.environ | {"PYTHONPATH": str(BIN.parents[1])}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, cwd=place, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_lines_end_where_files_end_them():
    """Not at the separators that Unicode also counts as such, by which numbers of lines would be off."""
    assert inputs.parse_captions("a\tx\u2028y\r\nb\tz\x0c\n", "captions") == {"a": ["x", "y"], "b": ["z"]}
    graph = label_graph.read("N, 0, a\x1cb, 1.0\r\nN, 1, c, 1.0\n", "x.lg")
    assert graph.nodes.keys() == {"0", "1"}


def test_several_sets_are_scored_one_after_another(place: Path):
    one, two = (hmerbench("score", *sets.split(), cwd=place).stdout for sets in (OF_A, f"{OF_A} {OF_B}"))
    assert two.startswith(one) and two.count("ExpRate|") == 2


def test_a_truth_of_another_edition_is_noticed(place: Path):
    said = hmerbench("score", *ROOTS.split(), cwd=place).stderr
    assert "0 expressions are right; under the truth's convention 1 would be" in said
    assert not hmerbench("score", *ROOTS.split(), "--edition", "current", cwd=place).stderr
    *table, truth = hmerbench("editions", *ROOTS.split(), cwd=place).stdout.splitlines()[2:]
    assert truth.startswith("the truth: one-child Inside (convert2symLG 1.5) (1 roots: one-child")
    assert [line.split()[0] for line in table] == ["crohme2019"] * 2 + ["mixed"] * 2 + ["current"] * 2


def test_files_that_commands_write(place: Path):
    hmerbench("score", *OF_A.split(), "--per-expression", "rows.csv", cwd=place)
    hmerbench("compare", "a", "b", "--ground-truth", "data.zip:2014", "--changed", "changed.csv", cwd=place)
    hmerbench("errors", *OF_A.split(), "--out", "tables", cwd=place)
    assert (place / "rows.csv").read_text().splitlines()[1] == 'e0,converted,4,2,2,False,False,False,3,"(0,10]"'
    assert [line[:2] for line in (place / "changed.csv").read_text().splitlines()[1:]] == ["e0", "e1"]
    tables = ["length", "relations", "structure", "symbol_recall", "symbols"]
    assert sorted(path.stem for path in (place / "tables").iterdir()) == tables
