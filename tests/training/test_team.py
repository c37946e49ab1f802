"""Processes and their devices, with a faked GPU."""

import pytest
import torch
from torch import distributed

from benchmarks.errors import UserError
from benchmarks.training import team
from benchmarks.training.team import Team


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list:
    """What the second of two processes asks of torch on a machine with two GPUs."""
    asked: list = []
    monkeypatch.setattr(team, "best_device", lambda number: torch.device("cuda", number))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(("set_device", device)))
    monkeypatch.setattr(
        distributed, "init_process_group", lambda backend, **more: asked.append((backend, more["device_id"]))
    )
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return asked


def test_each_process_works_on_its_own_gpu(calls: list) -> None:
    """NCCL's barriers use the current device, which is the first GPU in all processes unless it is set."""
    second = torch.device("cuda:1")
    assert Team.gather() == Team(1, 2, second)
    assert calls == [("set_device", second), ("nccl", second)]


def test_more_processes_than_gpus_are_an_error(calls: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match=r"starts more processes than there are GPUs \(2\); lower"):
        Team.gather()
    assert not calls
