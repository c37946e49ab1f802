"""The commands that score, compare and explain files of predictions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmerbench.evaluation import symlg
from tests.helpers.commands import hmerbench
from tests.helpers.scored_files import BIN, TRUTH, lg_folder, tex_folder


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
        ("compare a b --ground-truth data.zip:2014", "A - B = +0.00 points"),
        ("compare a b --ground-truth data.zip:2014 --json", '"only_a": 1'),
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
        ("score data.zip", 1, "data.zip: is no run folder; give a file of predictions as --predictions, with --ground"),
        ("score data.zip --ground-truth data.zip:2014", 1, "give a file of predictions as --predictions"),
        ("no-such-command", 2, "Usage: "),
        ("score", 2, "Usage: "),
    ],
)
def test_commands_that_are_refused(place: Path, line: str, status: int, says: str):
    done = hmerbench(*line.split(), cwd=place)
    assert (done.returncode, done.stdout, says in done.stderr) == (status, "", True), done
    assert status == 2 or done.stderr.count("\n") == 1


def test_captions_of_another_set_are_refused(place: Path):
    lg_folder(place / "gt", TRUTH)
    (place / "captions.txt").write_text("e0\ta + b\n")
    for truth, says in (
        ("gt", "lack those of 3 of 4 expressions (e1, ...); add their lines\n"),
        (
            "data.zip:2014",
            "data.zip:2014: has captions of its own; leave out --captions, which is for a folder of .lg\n",
        ),
    ):
        done = hmerbench(*f"score --predictions a --ground-truth {truth} --captions captions.txt".split(), cwd=place)
        assert done.returncode == 1 and done.stderr.endswith(says)


def test_a_reader_that_has_seen_enough_is_no_error(place: Path):
    words = [sys.executable, "-m", "hmerbench", "errors", *OF_A.split(), "--out", "tables"]
    env = os.environ | {"PYTHONPATH": str(BIN.parents[1])}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, cwd=place, env=env, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


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
