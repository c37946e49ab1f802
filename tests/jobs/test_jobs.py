"""Engines: what they report of a job that ends, fails, is killed, or loses its node; and NVIDIA's service for processes
that share a GPU: started and ended where it works, left out where it does not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.environment import Execution
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import zipped
from hmerbench.benchmarks.jobs import ray_cluster
from hmerbench.benchmarks.jobs.engine import CONTROL, LOG, PIPE, MultiProcessService, Placing, Processes
from hmerbench.benchmarks.jobs.place import Died, Here, Place
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runtime import GRAPHS, WORKERS
from hmerbench.benchmarks.training.trainer import train
from hmerbench.benchmarks.tuning.space import pose
from hmerbench.benchmarks.tuning.study import tune
from tests.helpers.made_up_jobs import (
    asks_for_its_device,
    crashes,
    ends,
    fails,
    lacks_room,
    loses_its_gpu,
    wait_for,
    waits,
    writes_its_device,
)
from tests.helpers.paths import ROOT
from tests.helpers.reproducing import reproduce
from tests.helpers.tiny import tiny_config

PROBE = "hmerbench.benchmarks.jobs.engine.PROBE"


def test_processes_end_fail_or_are_killed(archive: Path, tmp_path: Path) -> None:
    processes = Processes(archive, tmp_path, tmp_path, 6)
    processes.start("one", ends, "written")
    processes.start("two", fails)
    processes.start("three", waits, "pid")
    processes.start("four", crashes)
    processes.start("five", loses_its_gpu)
    processes.start("six", lacks_room)
    os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)
    ended: dict[str, Exception | None] = {}
    while len(ended) < 6:
        ended |= processes.ended(10)
    assert ended["one"] is None and (tmp_path / "written").read_text() == "foreign"
    assert isinstance(ended["two"], UserError) and str(ended["two"]) == "a fix"
    assert (tmp_path / "two.log").read_text() == "a line on stderr\n"
    assert isinstance(ended["three"], Died) and "killed by SIGKILL" in str(ended["three"])
    assert str(ended["four"]) == f"KeyError: '2016'; {tmp_path}/four.log shows where"
    assert "in crashes" in (tmp_path / "four.log").read_text()
    assert isinstance(ended["five"], Died)  # so it is started again
    assert str(ended["five"]) == f"its GPU failed (CUDA error: unspecified launch failure); see {tmp_path}/five.log"
    assert isinstance(ended["six"], Died) and str(ended["six"]) == f"CUDA error: out of memory; see {tmp_path}/six.log"
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
    """It went on with the processor, in silence: MPS lets nobody in until all that it failed have ended."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    processes = Processes(archive, tmp_path, tmp_path, 1)
    processes.start("one", asks_for_its_device)
    processes.devices = 1
    processes.start("two", asks_for_its_device)
    ended: dict[str, Exception | None] = {}
    while len(ended) < 2:
        ended |= processes.ended(10)
    assert ended["one"] is None and isinstance(ended["two"], Died) and "its GPU failed" in str(ended["two"])


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


def test_pen_strokes_travel_with_their_archive(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, strokes = tmp_path / "driver/data.zip", tmp_path / "driver/inkml/train.zip"
    strokes.parent.mkdir(parents=True)
    files = (path for path in (archive / "data").rglob("*") if path.is_file())
    packed.write_bytes(zipped({str(path.relative_to(archive)): path.read_bytes() for path in files}))
    strokes.write_bytes(zipped({"a.inkml": "<ink/>"}))
    sent = ray_cluster.sent_files(packed)
    monkeypatch.setattr(ray_cluster.ray, "get", lambda name: sent[name])
    place = ray_cluster.NodePlace(packed, {name: name for name in sent}, None)
    place.workspace = tmp_path / "node"
    assert place.archive().inkml_digest == open_archive(packed).inkml_digest
    assert ray_cluster.sent_files(archive) == {}  # unpacked: a path that all nodes have


def test_a_folder_of_texts_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "driver/ptb"
    texts.mkdir(parents=True)
    for name in ("train", "valid", "test", "readme"):
        (texts / f"{name}.txt").write_text(name)
    sent = ray_cluster.sent_files(texts)
    monkeypatch.setattr(ray_cluster.ray, "get", lambda name: sent[name])
    place = ray_cluster.NodePlace(texts, {name: name for name in sent}, None)
    place.workspace = tmp_path / "node"
    assert place.data() == tmp_path / "node/ptb" and (place.data() / "valid.txt").read_text() == "valid"
    assert sorted(path.name for path in place.data().iterdir()) == ["test.txt", "train.txt", "valid.txt"]


def test_how_runs_are_computed_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {WORKERS: "2", GRAPHS: "0"}.items():
        monkeypatch.setenv(name, value)
    place, seen = ray_cluster.NodePlace(tmp_path, {}, None), list[Execution]()
    for name in (WORKERS, GRAPHS):
        monkeypatch.delenv(name)
    ray_cluster._task(place, lambda _: seen.append(Execution.on(torch.device("cuda"))))
    assert seen == [Execution(workers=2, graphs=False)]


def test_files_of_a_node_stay_inside_the_workspace(tmp_path: Path) -> None:
    ray_cluster._put(tmp_path / "run", {"scores/2014.json": (b"{}", 10**18)})
    assert ray_cluster._files(tmp_path, {}) == {"run/scores/2014.json": (b"{}", 10**18)}
    assert ray_cluster._files(tmp_path, {"run/scores/2014.json": 10**18}) == {}
    with pytest.raises(UserError, match="not a path inside"):
        ray_cluster._put(tmp_path / "run", {"../../other": (b"", 0)})


def test_unavailable_engines_are_refused(archive: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    tiny_config(archive)
    given = ["--preset", str(archive / "tiny.yaml"), "--crohme", str(archive), "--results", str(tmp_path)]

    def refused(message: str, *options: str) -> str:
        with pytest.raises(UserError, match=message) as error:
            cli.app(["reproduce", *given, *options], standalone_mode=False)
        return str(error.value)

    refused("no engine called 'slurm': choose local or ray", "--engine", "slurm")
    refused(r"--cpus and --gpus are for the engine ray", "--gpus", "1")
    secret = "user:s3cr3t@127.0.0.1:1"
    monkeypatch.setenv("RAY_ADDRESS", secret)
    said = refused("no Ray cluster at RAY_ADDRESS", "--engine", "ray")
    assert "s3cr3t" not in said + "".join(capfd.readouterr())

    def refuses(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1")

    monkeypatch.setattr(ray_cluster.ray, "init", refuses)  # as Ray does after half a minute, for a wrong token as well
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        refused(r"RAY_ADDRESS=127\.0\.0\.1:\d+: something answers .*RAY_AUTH_TOKEN", "--engine", "ray")
    refused(r"no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:\d+: Failed to connect", "--engine", "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hmerbench.benchmarks.jobs.ray_cluster")
    refused(r"needs Ray: pip install '\.\[ray\]' in the checkout", "--engine", "ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """A head that takes no runs, and two nodes of one CPU each: separate processes, like separate machines. Their
    workers do not wait for other tests, and a node is known to be dead after a second, not after 15."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    memory = 80 << 20
    soon = {"worker_niceness": 0, "health_check_period_ms": 200, "health_check_initial_delay_ms": 200}
    head = {"num_cpus": 0, "object_store_memory": memory, "include_dashboard": False, "include_log_monitor": False}
    head["_system_config"] = soon
    nodes = Cluster(initialize_head=True, head_node_args=head)
    first, second = (nodes.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2))
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes, (first, second)
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.long
def test_runs_resume_when_a_node_dies(cluster, archive: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    nodes, (first, _) = cluster
    config = tiny_config(archive, {"training": {"epochs": 12, "validate_every": 12}})
    monkeypatch.setattr("hmerbench.benchmarks.reproduce.MIRROR_SECONDS", 0.2)
    killed: list[int] = []

    def watch(*_, **__) -> None:  # called when the driver mirrors a run; waits wait_for both have trained
        epochs = [len(path.read_text().splitlines()) for path in tmp_path.glob("local/*/runs/*/*/history.jsonl")]
        if not killed and len(epochs) == 2 and min(epochs) >= 3:
            killed.append(max(epochs))
            nodes.remove_node(first, allow_graceful=False)

    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", watch)
    preset, rows = str(archive / "tiny.yaml"), ["comer-fusion", "bttr"]
    reproduce(rows, preset, [7], archive, tmp_path, placing=Placing("ray"))
    assert killed and killed[0] < 12, "no node died during the runs"
    printed = capsys.readouterr().out
    assert printed.count("restarting it") == 1 and printed.count(": done") == 2
    (space,) = tmp_path.glob("local/foreign-*")
    assert len((space / "table2.csv").read_text().splitlines()) == 3
    for folder in (space / "runs").glob("*/*"):
        assert json.loads((folder / "scores/2014.json").read_text())["n"] == 5
        assert [json.loads(line)["epoch"] for line in (folder / "history.jsonl").open()] == list(range(1, 13))
    train(RunFolder(tmp_path / "straight", config), open_archive(archive))
    ours = load_file(space / "runs" / config.run_name / "best.safetensors")
    for name, tensor in load_file(tmp_path / "straight/best.safetensors").items():
        assert tensor.equal(ours[name]), name
    with pytest.raises(UserError, match="no node of the Ray cluster has 64 CPUs"):
        reproduce(rows, preset, [8], archive, tmp_path, placing=Placing("ray", cpus=64))


def test_tuning_on_a_cluster(cluster, archive: Path, tmp_path: Path, monkeypatch) -> None:
    """On the remaining node, which shares a database with the driver, but no folder."""
    tiny_config(archive, {"select": "last", "training": {"epochs": 2, "schedule": {"name": "cosine"}}})
    space = {"budget": {"heldout": 0.3}, "parameters": {"training.optimizer.lr": {"low": 0.001, "high": 0.1}}}
    (tmp_path / "space.yaml").write_text(json.dumps(space))
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)
    opened, preset = open_archive(archive), str(archive / "tiny.yaml")
    problem = pose("comer-fusion", preset, 7, opened, str(tmp_path / "space.yaml"))
    folder = tune(problem, opened, tmp_path, 2, Placing("ray"), f"sqlite:///{tmp_path}/study.db")
    rows = (folder / "trials.csv").read_text().splitlines()
    assert len(rows) == 3 and all(",complete," in row for row in rows[1:])
    assert len(list(folder.glob("tiny-seed7-*/history.jsonl"))) == 2 and (folder / "best.yaml").exists()


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
    monkeypatch.setattr(PROBE, "import os; assert os.path.isdir(os.environ['CUDA_MPS_PIPE_DIRECTORY'])")
    service = MultiProcessService()
    assert (folder := os.environ[PIPE]) == os.environ[LOG] and Path(folder).is_dir()
    service.stop()
    assert control.read_text().split() == ["-d", "quit"] and PIPE not in os.environ and not Path(folder).exists()


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
