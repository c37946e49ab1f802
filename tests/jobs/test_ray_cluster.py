"""Jobs on a Ray cluster: what travels to a node and back, and what happens when a node dies."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.environment import Execution
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import zipped
from hmerbench.benchmarks.jobs import ray_cluster
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runtime import GRAPHS, WORKERS
from hmerbench.benchmarks.training.trainer import train
from hmerbench.benchmarks.tuning.space import pose
from hmerbench.benchmarks.tuning.study import tune
from tests.helpers.reproducing import reproduce
from tests.helpers.tiny import tiny_config

pytestmark = pytest.mark.services


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


def test_a_cluster_that_cannot_be_used_is_told(archive: Path, tmp_path: Path, monkeypatch, capfd) -> None:
    tiny_config(archive)

    def refused(message: str) -> str:
        with pytest.raises(UserError, match=message) as error:
            reproduce(["bttr"], str(archive / "tiny.yaml"), [7], archive, tmp_path, placing=Placing("ray"))
        return str(error.value)

    secret = "user:s3cr3t@127.0.0.1:1"
    monkeypatch.setenv("RAY_ADDRESS", secret)
    said = refused("no Ray cluster at RAY_ADDRESS")
    assert "s3cr3t" not in said + "".join(capfd.readouterr())

    def refuses(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1")

    monkeypatch.setattr(ray_cluster.ray, "init", refuses)  # as Ray does after half a minute, for a wrong token as well
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        refused(r"RAY_ADDRESS=127\.0\.0\.1:\d+: something answers .*RAY_AUTH_TOKEN")
    refused(r"no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:\d+: Failed to connect")


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """A head that takes no runs, and two nodes of one CPU each: separate processes, like separate machines. Their
    workers do not wait for other tests, and a node is known to be dead after a second, not after 15."""
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

    def watch(*_, **__) -> None:  # called when the driver mirrors a run; waits until both have trained
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
