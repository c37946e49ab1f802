"""Engines: what they report of a job that ends, fails or is killed; and NVIDIA's service for processes
that share a GPU: started and ended where it works, left out where it does not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.jobs.engine import (
    CLIENTS,
    CONTROL,
    LOG,
    PIPE,
    RECOVERY,
    MultiProcessService,
    Placing,
    Processes,
)
from hmerbench.benchmarks.jobs.place import Bystander, Died, Here, Killed, Place
from tests.helpers.made_up_jobs import (
    asks_for_its_device,
    crashes,
    ends,
    fails,
    lacks_room,
    lacks_room_to_record,
    loses_a_process,
    loses_its_gpu,
    wait_for,
    waits,
    writes_its_device,
)
from tests.helpers.paths import ROOT
from tests.helpers.tiny import tiny_config

PROBE = "hmerbench.benchmarks.jobs.engine.PROBE"
QUIT = ["quit", "-t", "20"]  # at the latest: a server may hang


def test_processes_end_fail_or_are_killed(archive: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.RECOVERY", 0)
    processes = Processes(archive, tmp_path, tmp_path, 8)
    processes.start("one", ends, "written")
    processes.start("two", fails)
    processes.start("three", waits, "pid")
    processes.start("four", crashes)
    processes.start("five", loses_its_gpu)
    processes.start("six", lacks_room)
    processes.start("seven", loses_a_process)
    processes.start("eight", lacks_room_to_record)
    os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)
    ended: dict[str, Exception | None] = {}
    while len(ended) < 8:
        ended |= processes.ended(10)
    assert ended["one"] is None and (tmp_path / "written").read_text() == "foreign"
    assert isinstance(ended["two"], UserError) and str(ended["two"]) == "a fix"
    assert (tmp_path / "two.log").read_text() == "a line on stderr\n"
    assert isinstance(ended["three"], Killed) and "killed by SIGKILL" in str(ended["three"])
    assert str(ended["four"]) == f"KeyError: '2016'; {tmp_path}/four.log shows where"
    assert "in crashes" in (tmp_path / "four.log").read_text()
    assert type(ended["five"]) is Died  # so it is started again
    assert str(ended["five"]) == f"its GPU failed (CUDA error: unspecified launch failure); see {tmp_path}/five.log"
    assert type(ended["six"]) is Died and str(ended["six"]) == f"CUDA error: out of memory; see {tmp_path}/six.log"
    assert type(ended["eight"]) is Died  # which does no harm to others
    assert type(ended["seven"]) is Killed and str(ended["seven"]).startswith("a process that reads was lost; see")
    assert processes.ended(0) == {}


def test_jobs_here_fail_one_by_one_unless_their_gpu_does(archive: Path, tmp_path: Path) -> None:
    here = Here(Place(archive, tmp_path))
    for name, job in {"one": fails, "two": crashes, "three": ends}.items():
        here.start(name, job, *("no/such/folder",) * (job is ends))
    ended = here.ended(0)
    assert [type(error) for error in ended.values()] == [UserError, KeyError, FileNotFoundError]
    with pytest.raises(RuntimeError, match="CUDA error"):
        here.start("four", loses_its_gpu)


def test_a_job_gets_the_free_device(archive: Path, tmp_path: Path) -> None:
    processes = Processes(archive, tmp_path, tmp_path, 2)
    processes.devices = 2
    processes.start("one", writes_its_device, "first")
    processes.start("two", writes_its_device, "second")
    while "two" in processes.running:
        assert not any(processes.ended(10).values())
    processes.start("three", writes_its_device, "third")
    while processes.running:
        assert not any(processes.ended(10).values())
    assert [(tmp_path / name).read_text() for name in ("first", "second", "third")] == ["0", "1", "1"]


def test_a_job_whose_gpu_is_gone_is_started_again(archive: Path, tmp_path: Path, monkeypatch) -> None:
    """It went on with the processor, in silence: MPS lets nobody in until all that it failed have ended. Started again
    at once, it had used up all attempts in seconds."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    slept = list[float]()
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.time.sleep", slept.append)
    processes = Processes(archive, tmp_path, tmp_path, 1)
    processes.start("one", asks_for_its_device)
    processes.devices = 1
    processes.start("two", asks_for_its_device)
    ended: dict[str, Exception | None] = {}
    while len(ended) < 2:
        ended |= processes.ended(10)
    assert ended["one"] is None and isinstance(ended["two"], Died) and "its GPU failed" in str(ended["two"])
    assert slept == [RECOVERY]


@pytest.mark.parametrize(
    ("cores", "gib", "runs", "at_once"),
    [(16, [139.8], 15, 8), (16, [139.8], 5, 5), (16, [39.5], 15, 4), (16, [6.0], 15, 1), (64, [79.1, 79.1], 15, 15)],
)
def test_as_many_runs_at_a_time_as_have_cores_and_memory(
    cores: int, gib: list[float], runs: int, at_once: int, monkeypatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gib))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(total_memory=int(gib[gpu] * 2**30))
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert Placing().at_once(runs) == at_once and Placing(jobs=2).at_once(runs) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # of an old driver's, which NVIDIA's library counts
    monkeypatch.delattr(torch.cuda, "get_device_properties")
    assert Placing().at_once(runs) == 1


def test_a_process_ends_with_its_parent(archive: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from hmerbench.benchmarks.jobs import engine\n"
        "import tests.helpers.made_up_jobs as jobs\n"
        "engine.WORK = ()\n"  # this job needs none of it, which takes seconds to import
        "if __name__ == '__main__':\n"
        "    there = Path(sys.argv[2])\n"
        "    p = engine.Processes(Path(sys.argv[1]), there, there, 1)\n"
        "    p.start('one', jobs.waits, 'pid'); p.ended(600)\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), str(archive), str(tmp_path)]
    parent = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    child = Path("/proc") / wait_for(tmp_path / "pid")
    parent.kill()
    parent.wait()
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text():
        time.sleep(0.05)


def test_unavailable_engines_are_refused(archive: Path, tmp_path: Path, monkeypatch) -> None:
    tiny_config(archive)
    given = ["--preset", str(archive / "tiny.yaml"), "--crohme", str(archive), "--results", str(tmp_path)]

    def refused(message: str, *options: str) -> str:
        with pytest.raises(UserError, match=message) as error:
            cli.app(["reproduce", *given, *options], standalone_mode=False)
        return str(error.value)

    refused("no engine called 'slurm': choose local or ray", "--engine", "slurm")
    refused(r"--cpus and --gpus are for the engine ray", "--gpus", "1")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hmerbench.benchmarks.jobs.ray_cluster", raising=False)
    with pytest.raises(ModuleNotFoundError) as missing:  # of which `main` tells the extra
        cli.app(["reproduce", *given, "--engine", "ray"], standalone_mode=False)
    assert missing.value.name == "ray"


@pytest.fixture
def control(tmp_path: Path, monkeypatch) -> Path:
    """A program in the service's place that writes down how it is called, where it begins with the GPUs that it is to
    see; `said` has its words."""
    program, see = tmp_path / CONTROL, '[ "$1" != -d ] || set -- "$1" $CUDA_VISIBLE_DEVICES\n'
    program.write_text(f'#!/bin/sh\n{see}echo "$* $(cat -)" >> {tmp_path}/said\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.delenv(LOG, raising=False)
    return tmp_path / "said"


def test_it_is_started_for_the_processes_to_come_and_ended(control: Path, monkeypatch) -> None:
    monkeypatch.setattr(PROBE, "import os; assert os.path.isdir(os.environ['CUDA_MPS_PIPE_DIRECTORY'])")
    service = MultiProcessService()
    assert (folder := os.environ[PIPE]) == os.environ[LOG] and Path(folder).is_dir()
    service.stop()
    assert control.read_text().split() == ["-d", *QUIT] and PIPE not in os.environ and not Path(folder).exists()


@pytest.mark.parametrize("shared", [True, False])
def test_jobs_that_share_it_with_one_that_is_killed_are_stopped(
    shared: bool, control: Path, archive: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(PROBE, "" if shared else "raise SystemExit(1)")
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.RECOVERY", 0)
    processes = Processes(archive, tmp_path, tmp_path, 2)
    processes.service = MultiProcessService()
    processes.start("one", waits, "first")
    processes.start("two", waits, "second")
    processes.devices = 1
    other = processes.running["two"][0]
    os.kill(int(wait_for(tmp_path / "first")), signal.SIGKILL)
    wait_for(tmp_path / "second")
    ended = processes.ended(10)
    assert type(ended["one"]) is Killed and other.is_alive() is not shared
    assert shared is (str(ended.get("two")) == "stopped, as one, which shared its GPU, was killed")
    assert control.read_text().split() == ["-d", *QUIT, *["-d"] * shared]
    assert (PIPE in os.environ) is shared
    assert not shared or isinstance(ended["two"], Bystander)
    processes.stop()


@pytest.mark.parametrize(("works", "readers"), [(True, CLIENTS // 15 - 1), (False, 4)])
def test_it_has_room_for_all_processes_that_read(
    works: bool, readers: int, control: Path, archive: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(PROBE, "" if works else "raise SystemExit(1)")
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.usable_gpus", lambda: 1)
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.cores", lambda: 64)
    processes = Processes(archive, tmp_path, tmp_path, 15)
    assert processes.cores == readers
    processes.stop()


def test_one_that_no_process_can_use_is_ended_at_once(control: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(PROBE, "raise SystemExit(1)")
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
