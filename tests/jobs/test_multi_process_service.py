"""NVIDIA's service for several processes on one GPU: started and ended where it works, left out where it does not."""

import os
from pathlib import Path

import pytest

from hmerbench.benchmarks.jobs import processes as module
from hmerbench.benchmarks.jobs.processes import CONTROL, LOG, PIPE, MultiProcessService


@pytest.fixture
def control(tmp_path: Path, monkeypatch) -> Path:
    """A program in the service's place that writes down how it is called; `said` has its words."""
    program = tmp_path / CONTROL
    program.write_text(f'#!/bin/sh\necho "$* $(cat -)" >> {tmp_path}/said\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.delenv(LOG, raising=False)
    return tmp_path / "said"


def test_it_is_started_for_the_processes_to_come_and_ended(control: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "PROBE", "import os; assert os.path.isdir(os.environ['CUDA_MPS_PIPE_DIRECTORY'])")
    service = MultiProcessService()
    assert (folder := os.environ[PIPE]) == os.environ[LOG] and Path(folder).is_dir()
    service.stop()
    assert control.read_text().split() == ["-d", "quit"] and PIPE not in os.environ and not Path(folder).exists()


def test_one_that_no_process_can_use_is_ended_at_once(control: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "PROBE", "raise SystemExit(1)")
    MultiProcessService()
    assert "quit" in control.read_text() and PIPE not in os.environ
    assert "runs take turns on the GPU" in " ".join(capsys.readouterr().err.split())


def test_a_users_own_is_left_alone(control: Path, monkeypatch) -> None:
    monkeypatch.setenv(PIPE, "/somewhere")
    MultiProcessService().stop()
    assert not control.exists() and os.environ[PIPE] == "/somewhere"


def test_without_it_runs_take_turns(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(PIPE, raising=False)
    MultiProcessService().stop()
    assert f"without {CONTROL}, runs take turns on the GPU" in " ".join(capsys.readouterr().err.split())
