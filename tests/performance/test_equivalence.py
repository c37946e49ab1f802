"""The comparison of ways to compute a training: it sees a way that computes another one."""

import pytest
import torch

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.batching import TrainingSet
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import equivalence as module
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.benchmarks.training.distributed import Team
from tests.helpers.tiny import tiny_config


@pytest.fixture
def compared(archive, tmp_path, monkeypatch):
    """The rows by way, for a tiny training."""
    monkeypatch.setattr(module, "resolve", lambda *_: tiny_config(archive, {"select": "last", "training": TINY}))

    def compare() -> dict[str, dict]:
        rows = module.equivalence(open_archive(archive), tmp_path, "comer-fusion", "tiny", 40)
        written = read_table(tmp_path / "speed/equivalence.csv")
        assert [row["way"] for row in written] == [row["way"] for row in rows]
        return {row["way"]: row for row in rows}

    return compare


TINY = {"schedule": {"name": "cosine"}, "batching": {"order": "shape"}}


def test_workers_compute_the_same_and_rounding_does_not(compared):
    rows = compared()
    assert rows["workers"]["weights_difference"] == rows["workers"]["loss_difference"] == 0
    assert 0 < rows["disturbed"]["weights_difference"] < 1e-2 and rows["plain"]["steps"] > 2


def test_another_training_is_seen(compared, monkeypatch):
    prepare = TrainingSet.prepare

    def elsewhere(self, epoch, indices):  # a process that makes batches of another epoch
        return prepare(self, epoch + bool(torch.utils.data.get_worker_info()), indices)

    monkeypatch.setattr(TrainingSet, "prepare", elsewhere)
    with pytest.raises(UserError, match=r"plain computes: workers \([\d.e-]+ of the weights, by rounding [\d.e-]+\)"):
        compared()


@pytest.mark.parametrize("recipe", ["comer-fusion", "densewap-td"])
def test_a_gpu_is_compared_with_the_processor_too(recipe):
    """In float32 and without dropout: each device draws masks of its own."""
    config = resolve(recipe, "large", 7)
    (_, same, ways), (_, alike, devices) = module.trainings(config, Team(0, 1, torch.device("cuda", 0)))
    assert same == config and list(ways) == ["plain", "workers", "recorded", "disturbed"]
    assert {way for way, (execution, _) in ways.items() if execution.graphs} == {"recorded"}
    assert {way: team.device.type for way, (_, team) in devices.items()} == {
        "plain": "cuda", "cpu": "cpu", "disturbed": "cuda",
    }  # fmt: skip
    assert vars(alike.model)["dropout"] == 0 and not alike.training.bf16 and alike.data == config.data
