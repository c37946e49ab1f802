"""The scripts of LgEval and convert2symLG, from files to files, and everything that can be wrong with these."""

import subprocess
import sys
from pathlib import Path

import pytest

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval import results_folder
from tests.helpers.commands import script
from tests.helpers.scored_files import BIN, TRUTH, lg_folder, one_line, started, tex_folder


def test_scripts_from_files_to_summary(tmp_path: Path, truth: Path):
    tex = tex_folder(tmp_path / "tex", TRUTH | {"e1": "x _ 2", "e2": "{ a", "stray": "q"})
    done = script("tex2symlg", tex, "pred_symlg", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "5 files, 4 converted to pred_symlg\n")
    assert done.stderr == "e2.txt: not converted: the expression ends too early\n"
    done = script("evaluate", "pred_symlg", truth, cwd=tmp_path)
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
    done = script("extract_exprate", 2, cwd=tmp_path)
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
    assert "INTRE" in one_line(script("evallg", "out/e0.lg", "gt/e0.lg", "m", "INTRE", cwd=tmp_path))
    assert "GTFIRST" in one_line(script("evallg", "batch", "pairs", "GTFIRST", cwd=tmp_path))


@pytest.mark.parametrize(
    "line",
    ["confHist gt gt 1 --edition mixed", "evaluate gt gt --reading pandoc-2.17", "evaluate gt gt --editon mixed"],
)
def test_an_option_that_a_script_does_not_have_shows_its_usage(tmp_path: Path, truth: Path, line: str):
    done = script(*line.split(), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("Usage: ") and not list(tmp_path.glob("Results*"))


def test_conf_hist(tmp_path: Path, truth: Path):
    lg_folder(tmp_path / "out", TRUTH | {"e0": "a - b"})
    done = script("confHist", "out", "gt", 2, cwd=tmp_path)
    assert done.stdout == "CH_out_vs_gt.html\n"
    page = (tmp_path / "CH_out_vs_gt.html").read_text()
    assert "2 incorrect targets, 2 errors" in page
    assert "1 errors: a -Right-&gt; +</th><td>1: a -Right-&gt; -" in page
    assert "SIZE must be" in one_line(script("confHist", "out", "gt", 9, cwd=tmp_path))


def test_lg2symlg_gives_paths_and_refuses_what_has_no_objects(tmp_path: Path):
    (tmp_path / "in").mkdir()
    texts = {
        "good": "# IUD, x\nO, a, a, 1.0, 0, 1\nO, b, 2, 1.0, 2\nR, a, b, Sup, 1.0, 0.5\n",
        "prose": "not a graph\n",
    }
    for name, text in (texts | {"strokes": "N, 0, a, 1.0\nN, 1, b, 1.0\nE, 0, 1, R, 1.0\n"}).items():
        (tmp_path / f"in/{name}.lg").write_text(text)
    done = script("lg2symlg", "in", "out", cwd=tmp_path)
    assert done.returncode == 1 and "3 files, 1 converted" in done.stdout
    assert "prose.lg: not converted: label graph, line 1: not a line of a label graph" in done.stderr
    assert "strokes.lg: not converted: has no objects" in done.stderr
    assert "O, b, 2, 1.0, OSup" in (tmp_path / "out/good.lg").read_text()


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
    results = tmp_path / "Results_gt"
    results.mkdir()
    (results / "thesis.tex").write_text("years of work")
    assert "is not a results folder" in one_line(script("evaluate", "gt", "gt", cwd=tmp_path))
    results.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/Metrics").mkdir()
    results.symlink_to("elsewhere")
    assert "is not a results folder" in one_line(script("evaluate", "gt", "gt", cwd=tmp_path))
    assert results.is_symlink() and (results / "thesis.tex").exists() and not list(tmp_path.glob("*.old*"))


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


def test_lists_and_graphs_may_begin_with_a_byte_order_mark(tmp_path: Path, truth: Path):
    (tmp_path / "list").write_text("gt/e0.lg gt/e0.lg\n", encoding="utf-8-sig")
    assert not script("evaluate", "list", cwd=tmp_path).stderr
    assert results_folder.read_summary(str(tmp_path / "Results_list/Summary.txt"))["exact"] == 1
    marked = tmp_path / "marked/e0.lg"
    marked.parent.mkdir()
    marked.write_text("O, a, a, 1.0, 0\nO, b, b, 1.0, 1\nR, a, b, Right, 1.0\n", encoding="utf-8-sig")
    script("lg2symlg", "marked", "paths", cwd=tmp_path)
    assert (tmp_path / "paths/e0.lg").read_text().startswith("O, a, a, 1.0, O\n")


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
