"""The GPU check on the CPU: recordings are faked as in test_cuda_graphs.py, sizes are tiny."""

import csv
from pathlib import Path

import pytest
import torch

import hmerbench.benchmarks.training.learner as learning
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.environment import Execution
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import bench
from hmerbench.benchmarks.performance import training_check as check
from tests.helpers.recording import GRAPHS, LACKING, rehearsed
from tests.helpers.tiny import tiny_archive, tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_archive(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "CudaRecord", lambda: rehearsed)
    monkeypatch.setattr(Execution, "on", lambda *_, **__: Execution(0, graphs=True))


def examined(place: Path, results: Path) -> dict[tuple[str, str], list[str]]:
    """Values in gpu.csv by part and measure."""
    check.examine(open_archive(place), tiny_config(place, GRAPHS), results, CPU)
    values: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader((results / "speed/gpu.csv").read_text().splitlines()):
        assert row["hardware"] and "torch" in row["versions"]
        values.setdefault((row["part"], row["measure"]), []).append(row["value"])
    return values


def test_steps_are_timed_at_several_shapes(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(check, "SHAPES", 3)
    monkeypatch.setattr(bench, "revision", lambda: None)
    found = examined(place, tmp_path)
    for way in ("cold", "eager", "recorded", "replayed"):
        assert len(found["step", way]) == 3 + (way == "eager") and all(float(ms) > 0 for ms in found["step", way])
    assert found["step", "difference"] == ["0.0"] * 3  # the fake replays exactly what it recorded
    assert all(float(f"{float(ms):.4g}") == float(ms) for ms in found["step", "eager"])
    assert "no revision\n" in (tmp_path / "speed/gpu.csv").read_text().replace('"', "")


def test_wrong_recordings_and_little_memory_are_told(place, tmp_path, monkeypatch, capsys) -> None:
    real, sizes = learning.Learner._gradients, []

    def scarce(self, model, inputs) -> torch.Tensor:
        sizes.append(inputs.images.numel())
        if len({*sizes}) == 3:
            raise LACKING
        return real(self, model, inputs)

    def wrong(step):
        launch, loss = rehearsed(step)
        return lambda: (launch(), launch()), loss

    monkeypatch.setattr(learning.Learner, "_gradients", scarce)
    monkeypatch.setattr(learning, "CudaRecord", lambda: wrong)
    found = examined(place, tmp_path)
    assert len(found["step", "replayed"]) >= 2 and all(float(share) > 0.5 for share in found["step", "difference"])
    assert max(map(int, found["step", "pixels"])) == sorted({*sizes})[1] and len(found["step", "no memory"]) == 1
    assert "2.00 GiB" in capsys.readouterr().err


def test_recordings_make_way_for_larger_shapes(place, tmp_path, monkeypatch) -> None:
    """As in training: a shape that fits without recorded steps limits no batches."""
    real = learning.Learner._gradients

    def scarce(self, model, inputs) -> torch.Tensor:
        if self.replays.recorded:
            raise LACKING
        return real(self, model, inputs)

    monkeypatch.setattr(check, "SHAPES", 2)
    monkeypatch.setattr(learning.Learner, "_gradients", scarce)
    found = examined(place, tmp_path)
    assert len(found["step", "eager"]) == 2 + 1  # and the optimizer
    assert ("step", "no memory") not in found


def test_steps_that_cannot_be_recorded_are_only_timed(place, tmp_path, monkeypatch, capsys) -> None:
    def refused(step):
        raise UserError("a training step cannot be recorded")

    monkeypatch.setattr(check, "SHAPES", 2)
    monkeypatch.setattr(learning, "CudaRecord", lambda: refused)
    found = examined(place, tmp_path)
    assert found["step", "difference"] == ["nan"] and len(found["step", "eager"]) == 3
    assert "cannot be recorded" in capsys.readouterr().err


def test_rows_of_other_gpus_are_kept(place, tmp_path, monkeypatch) -> None:
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed/gpu.csv").write_text(",".join(check.COLUMNS) + "\nstep,c,cold,1.5,ms,another GPU,torch 2\n")
    monkeypatch.setattr(check, "SHAPES", 1)
    times = examined(place, tmp_path)["step", "cold"]
    assert len(times) == 2 and "1.5" in times and "another GPU" in (tmp_path / "speed/gpu.csv").read_text()


def test_a_missing_gpu_is_an_error(tmp_path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"^gpu-check needs a GPU: Torch not compiled with CUDA enabled; "):
        check.gpu_check(None, tmp_path)
