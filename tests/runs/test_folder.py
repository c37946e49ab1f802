"""A run folder gives back what was written into it, and never half of it."""

from pathlib import Path

import pytest

from benchmarks.errors import UserError
from benchmarks.runs.folder import RunFolder


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.history == [] and run.state is None
    lines = [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 1.25}]
    run.write("history.jsonl", lines)
    run.write("checkpoint.json", {"finished": False})
    run.write("scores/2014.json", {"n": 986})
    run.write("best.safetensors", b"\0\1")
    assert run.history == RunFolder(run.path).history == lines  # what it knew before is forgotten
    assert run.state == {"finished": False} and run.scores == {"2014": {"n": 986}}
    assert (run.path / "best.safetensors").read_bytes() == b"\0\1"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write("checkpoint.json", {"epoch": 1})
    with pytest.raises(TypeError):
        run.write("checkpoint.json", {"epoch": object()})
    assert run.state == {"epoch": 1} and [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]


def test_a_damaged_history_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"epoch": 1')
    with pytest.raises(UserError, match=r"history\.jsonl: damaged or incomplete; restore it"):
        _ = RunFolder(tmp_path).history


def test_runs_are_sorted_by_number(tmp_path: Path) -> None:
    names = ["a/laptop-seed7", "a/laptop-seed9", "a/laptop-seed10", "b/hour-seed7"]
    for name in reversed(names):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    assert [run.path for run in RunFolder.under(tmp_path)] == [tmp_path / name for name in names]
