"""Processes and their devices, with a faked GPU."""

import pytest
import torch
from torch import distributed

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.training import distributed as processes
from hmerbench.benchmarks.training.distributed import Team


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the second of two processes asks of torch on a machine with two GPUs."""
    asked: list = []
    monkeypatch.setattr(processes, "best_device", lambda number: torch.device("cuda", number))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(("set_device", device)))
    monkeypatch.setattr(
        distributed, "init_process_group", lambda backend, **more: asked.append((backend, more["device_id"]))
    )
    given = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return asked


def test_each_process_works_on_its_own_gpu(calls: list) -> None:
    """NCCL's barriers use the current device, which is the first GPU in all processes unless it is set."""
    second = torch.device("cuda:1")
    assert Team.gather() == Team(1, 2, second)
    assert calls == [("set_device", second), ("nccl", second)]


@pytest.mark.parametrize(
    "values", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "a", "MASTER_PORT": "1"}]
)
def test_variables_that_torchrun_did_not_set_are_an_error(values: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="not as torchrun sets them; start with torchrun, or unset them"):
        Team.gather()


def test_more_processes_than_gpus_are_an_error(calls: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match=r"starts more processes than there are GPUs \(2\); lower"):
        Team.gather()
    assert not calls
