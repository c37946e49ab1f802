"""Files of plain data: whatever is damaged is one line with the reason, wherever it is read."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from hmerbench.benchmarks import strict_files
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.regression_gate import baseline
from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.strict_files import read_plain, read_table
from hmerbench.evaluation.scoring.inputs import MAX_FILES
from hmerbench.evaluation.scoring.score import Expression
from hmerbench.models.files import parse_json
from tests.helpers.paths import MEDIUM

DEEP = "[" * 100_000
TWICE = '{"a": 1, "a": 2}'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.json", TWICE, "the key 'a' occurs twice"),
        ("x.json", '[{"b": {"a": 1, "a": 2}}]', "the key 'a' occurs twice"),
        ("x.json", DEEP, "nested too deeply"),
        ("x.json", "[NaN]", "NaN is not a finite number"),
        ("x.json", "[-1e999]", "-1e999 is not a finite number"),
        ("x.json", "", "Expecting value"),
        ("x.jsonl", f"{{}}\n{TWICE}\n", "line 2: the key 'a' occurs twice"),
        ("x.jsonl", f"{{}}\n{DEEP}", "line 2: nested too deeply"),
        ("x.csv", "a,b,a\n1,2,3\n", "its column a occurs twice"),
        ("x.csv", "a,b\n1,2\n1,2,3\n", "line 3: 3 fields under 2 columns"),
        ("x.csv", 'a,b\n1,"2\n', "line 2: not a table .unexpected end of data"),
        ("x.csv", "a\n" + "x" * 4_200_000, "line 2: not a table .field larger than field limit"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_plain(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("x.json", '\ufeff{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("x.jsonl", '{"a": "\u2028\x85\x0c"}\r\n{"b": 1}\n'.replace("\x0c", ""), [{"a": "\u2028\x85"}, {"b": 1}]),
        ("x.jsonl", "", []),
        ("x.csv", 'a,b\r\n"1\n\u2028",\r\n\r\n3,4\r\n', [{"a": "1\n\u2028", "b": None}, {"a": "3", "b": "4"}]),
        ("x.csv", "", []),
        ("x.csv", "\n\r\na\n\n1\n", [{"a": "1"}]),
    ],
)
def test_what_is_read(tmp_path: Path, name: str, text: str, value: object) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_plain(tmp_path / name) == value


def test_a_file_larger_than_its_kind_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of JSON would take up to 27 GB of memory."""
    monkeypatch.setitem(strict_files.LIMITS, ".jsonl", 1000)
    (tmp_path / "history.jsonl").write_text('{"a": [[],[],[],[]]}\n' * 100)
    with pytest.raises(UserError, match=r"history\.jsonl: damaged .*\(2,100 bytes, more than 1,000\); restore it"):
        _ = RunFolder(tmp_path).history


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MEDIUM, tmp_path / "run", ignore=shutil.ignore_patterns("*.safetensors")))


RUN: dict[str, Callable[[RunFolder], object]] = {
    "environment.json": lambda run: run.environment,
    "history.jsonl": lambda run: run.history,
    "checkpoint.json": lambda run: run.state,
    "sources.json": lambda run: run.sources,
    "scores/2014.json": lambda run: run.scores,
    "errors/2014.json": lambda run: run.errors,
}


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize(("text", "words"), [(TWICE, "the key 'a' occurs twice"), (DEEP, "nested too deeply")])
def test_a_run_folder_says_what_is_damaged(run: Path, name: str, text: str, words: str) -> None:
    (run / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}: damaged or incomplete \((line 1: )?{words}\); ") as caught:
        RUN[name](RunFolder(run))
    assert "\n" not in str(caught.value)


def test_values_that_take_more_memory_than_a_file_of_the_suite_needs_are_refused(tmp_path: Path) -> None:
    contents = {
        "x.json": "[" + "[]," * 1_000_000 + "0]",
        "x.jsonl": "[]\n" + "[{}]\n" * 600_000,
        "x.csv": "a\n" * 2_200_000,
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=r"^[\d,]+ values, more than [12],\d{3},\d{3}$"):
            read_plain(tmp_path / name)


def test_the_largest_set_that_is_scored_has_a_table_that_is_read(tmp_path: Path) -> None:
    columns = len(fields(Expression))
    assert MAX_FILES * columns <= strict_files.VALUES[".csv"][1] and strict_files.LIMITS[".csv"] > MAX_FILES * 60 * 5


@pytest.mark.parametrize("text", ["[" + "[]," * 1_000_000 + "0]", b"[" + b"0," * 1_100_000 + b"0]"])
def test_a_header_of_many_values_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="more than 1,048,576 values"):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "words"), [("a,a\n1,2\n", "its column a occurs twice"), ("a\n1,2\n", "line 2: 2 fields under 1 columns")]
)
def test_a_table_of_results_says_what_is_damaged(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "cpu.csv").write_text(text)
    with pytest.raises(UserError, match=rf"cpu\.csv: damaged \(the table[,:] {words}.*\); restore it, or make"):
        read_table(tmp_path / "cpu.csv")


def test_columns_that_occur_twice_are_no_scores(run: Path) -> None:
    path = run / "scores/2014.csv"
    path.write_text(path.read_text().replace("id,", "id,exact,", 1))
    with pytest.raises(UserError, match=r"2014\.csv: damaged or incomplete .*its column exact occurs twice"):
        RunFolder(run).expressions("2014")


@pytest.mark.parametrize("text", [DEEP, TWICE, '{"test_perplexity": NaN, "test_words": 3, "valid_perplexity": 1}'])
def test_damaged_scores_of_a_language_model_leave_the_listing_whole(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "runs/lm/text-seed7"
    folder.mkdir(parents=True)
    (folder / "language.yaml").write_text("recipe: lm\n")
    (folder / "scores.json").write_text(text)
    with pytest.raises(UserError, match=r"scores\.json: damaged "):
        _ = LanguageRun(folder).scores
    assert [run["status"] for run in listing.runs(tmp_path, LanguageRun)] == ["damaged"]


OTHERS: dict[str, Callable[[Path], object]] = {
    "baseline.json": baseline.read,
    "data/EMBEDDED.json": lambda path: open_archive(path.parents[1], trains=False).mark,
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("text", [DEEP, TWICE, "[NaN]", '{"id": "a", "nbest": [{"tokens": "x", "score": 1e999}]}'])
def test_other_files_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "data/mine/img").mkdir(parents=True)
    (tmp_path / "data/mine/caption.txt").write_text("a\tx\n")
    (tmp_path / "data/mine/img/a.png").write_bytes(b"")
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{Path(name).name}(, line 1)?(:| is)"):
        OTHERS[name](tmp_path / name)
