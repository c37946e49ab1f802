"""What is printed where the output is not UTF-8: other characters, never an error."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmerbench.benchmarks.cli.main import main
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.printing import TrainingProgress
from hmerbench.benchmarks.runtime import configure_output
from hmerbench.evaluation.scoring.inputs import tsv
from tests.helpers.made_up import put_expressions
from tests.helpers.paths import ROOT
from tests.helpers.runs import put_run
from tests.helpers.tiny import tiny_archive


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("latin-1", b"37-41 <= 1, \xb12.0, a->b...? \xe9\xff?"),
        ("ascii", b"37-41 <= 1, +-2.0, a->b...? ?\xff?"),
        ("cp1252", b"37\x9641 <= 1, \xb12.0, a->b\x85? \xe9\xff?"),
        ("utf-8", "37–41 ≤ 1, ±2.0, a→b…∥ é".encode() + b"\xff?"),
    ],
)
def test_every_text_can_be_printed(encoding: str, printed: bytes) -> None:
    """Also names of files that are not UTF-8, whose bytes stay, and halves of pairs, as JSON may hold."""
    configure_output()
    assert "37–41 ≤ 1, ±2.0, a→b…∥ é\udcff\ud800".encode(encoding, "plain") == printed


WITHOUT_LOCKS = (
    "import sys; sys.modules['fcntl'] = None; from hmerbench.benchmarks.cli.main import main; sys.exit(main())"
)


@pytest.mark.parametrize(
    ("program", "closed"),
    [("-m hmerbench", ">&-"), ("-m hmerbench", "2>&-"), (f'-c "{WITHOUT_LOCKS}"', "")],
    ids=["stdout", "stderr", "Windows"],
)
def test_what_a_command_writes_needs_no_output_and_no_locks(tmp_path: Path, program: str, closed: str) -> None:
    (tmp_path / "p.tsv").write_text("id\ttokens\na\tx\n")
    (tmp_path / "data/t").mkdir(parents=True)
    (tmp_path / "data/t/caption.txt").write_text("a\tx\n")
    options = "--predictions p.tsv --ground-truth data:t --per-expression each.csv"
    command = f"{sys.executable} {program} score {options} {closed}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "Error" not in done.stderr and (tmp_path / "each.csv").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_command_prints_its_table_in_any_encoding(encoding: str) -> None:
    command = [sys.executable, "-m", "hmerbench", "ls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0 and not done.stderr
    assert ("18–41 core-minutes" if encoding == "utf-8" else "18-41 core-minutes") in done.stdout.decode(encoding)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, two systems that read it, and the runs of two rows."""
    folder = tmp_path_factory.mktemp("output")
    captions = open_archive(tiny_archive(folder / "data–é", train=4, test=30)).captions("2014")
    worse = {id_: tokens if number % 3 else ["x"] for number, (id_, tokens) in enumerate(captions.items())}
    (folder / "a→.tsv").write_text(tsv(captions))
    (folder / "b→.tsv").write_text(tsv(worse))
    for recipe in ("bttr", "comer-fusion"):
        put_expressions(put_run(folder / "results", recipe), "2014", [0] * 100 + [1] * 886)
    (folder / "results/runs").rename(folder / "results/reproduced")
    return folder


A, TRUTH = ("--predictions", "a→.tsv"), ("--ground-truth", "data–é:2014")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("score", *A, *TRUTH), " 100.00 %  (88.6-100.0)"),
        (("compare", "a→.tsv", "b→.tsv", *TRUTH), "a->.tsv"),
        (("editions", *A, *TRUTH), "crohme2019"),
        (("errors", *A, *TRUTH, "--out", "tables→"), "tables->/symbols.csv: "),
        (("data", "--crohme", "data–é"), "foreign archive (4/30)"),
        (("tables", "--results", "results"), "results/table1.csv"),
        (("compare", "results/reproduced"), "BTTR -> CoMER (Fusion)  +0.00"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_print_in_any_encoding(
    place: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, command: tuple[str, ...], says: str
) -> None:
    printed = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["hmerbench", *command])
    monkeypatch.setattr(sys, "stdout", printed)
    assert main() == 0
    text = printed.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert says in text and not set("–→≤") & set(text)


def test_one_process_of_a_team_prints_its_epochs(capfd: pytest.CaptureFixture[str]) -> None:
    for quiet, lines in ((True, 0), (False, 1)):
        with TrainingProgress("comer/tiny-seed7", 2, 0, quiet) as report:
            report.line({"epoch": 1, "loss": 2.5, "images_per_s": 40.0})
        assert capfd.readouterr().err.count("epoch 1/2 loss 2.5000, 40 images/s") == lines
