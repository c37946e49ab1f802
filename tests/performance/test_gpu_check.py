"""The GPU check on the CPU: recordings are faked as in test_cuda_graphs.py, sizes are tiny."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

import hmerbench.benchmarks.training.learner as learning
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.execution import Execution
from hmerbench.benchmarks.performance import bench
from hmerbench.benchmarks.performance import gpu_check as check
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.trainer import train
from tests.helpers.made_up import put_score
from tests.helpers.tiny import tiny_archive, tiny_config
from tests.training.test_cuda_graphs import GRAPHS, LACKING, rehearsed

CPU = torch.device("cpu")
RUN_TESTS = check.tests


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An archive, and a results folder with a committed run on it."""
    archive, results = tiny_archive(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("results")
    run = results / "reproduced/comer-fusion/tiny-seed7"
    train(RunFolder(run, tiny_config(archive, {"training": {"epochs": 1}})), open_archive(archive))
    put_score(run, "2014", 4, 0, ci95=[0.0, 52.0])
    for name, body in (("passes", "pass"), ("fails", "assert False")):
        (results / f"test_{name}.py").write_text(f"def test_it(): {body}")
    return archive, results


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, place: tuple[Path, Path]) -> None:
    monkeypatch.setattr(learning, "make_recorder", lambda: rehearsed)
    monkeypatch.setattr(Execution, "on", lambda *_, **__: Execution(0, graphs=True, resident=True))
    set_tests(monkeypatch, place[1] / "test_passes.py", place[1] / "test_fails.py")
    passed = [("tests", "test_passes", "passed", 1, "tests")]
    monkeypatch.setattr(check, "tests", lambda archive: iter(passed))  # unless a test is about them


def set_tests(monkeypatch: pytest.MonkeyPatch, graphs: Path, on_device: Path) -> None:
    monkeypatch.setattr(check, "GRAPHS", str(graphs))
    monkeypatch.setattr(check, "ON_DEVICE", str(on_device))
    monkeypatch.setattr(check, "TESTS", (check.GRAPHS, check.ON_DEVICE))


def examined(place: tuple[Path, Path], results: Path) -> dict[tuple[str, str], list[str]]:
    """Values in gpu.csv by part and measure."""
    shutil.copytree(place[1], results, dirs_exist_ok=True)
    config = tiny_config(place[0], GRAPHS)
    check.examine(open_archive(place[0]), config, results, CPU)
    values: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader((results / "speed/gpu.csv").read_text().splitlines()):
        assert row["hardware"] and "torch" in row["versions"]
        values.setdefault((row["part"], row["measure"]), []).append(row["value"])
    return values


def test_all_parts_are_measured(place, tmp_path, bf16_unit, monkeypatch, capsys) -> None:
    monkeypatch.setattr(check, "SHAPES", 3)
    monkeypatch.setattr(check, "tests", RUN_TESTS)
    monkeypatch.setattr(bench, "revision", lambda: None)
    found = examined(place, tmp_path)
    for way in ("cold", "eager", "recorded", "replayed"):
        assert len(found["step", way]) == 3 + (way == "eager") and all(float(ms) > 0 for ms in found["step", way])
    assert found["step", "difference"] == ["0.0"] * 3  # the fake replays exactly what it recorded
    assert found["tests", "passed"] == ["1", "0"] and found["tests", "failed"] == ["1"]
    assert found["set", "resident"] == ["False"]  # because its test failed
    assert found["search", "ExpRate, committed"] == ["0.0"] and len(found["search", "ExpRate in bf16"]) == 1
    assert {measure for part, measure in found if part == "set"} >= {"graphs", "search.bf16"}
    assert all(float(f"{float(ms):.4g}") == float(ms) for ms in found["step", "eager"])
    assert "no revision\n" in (tmp_path / "speed/gpu.csv").read_text().replace('"', "")
    assert "test_fails: test_it" in " ".join(capsys.readouterr().out.split())


def test_without_a_unit_for_bf16_it_is_not_recommended(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(check, "SHAPES", 1)
    monkeypatch.setattr(check, "bf16_unit", lambda device: None)
    found = examined(place, tmp_path)
    assert ("search", "time in bf16") not in found and found["set", "search.bf16"] == ["False"]


def test_skipped_tests_recommend_nothing(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(check, "SHAPES", 1)
    monkeypatch.setattr(check, "tests", RUN_TESTS)
    files = [tmp_path / f"test_skips_{name}.py" for name in ("graphs", "on_device")]
    for path in files:
        path.write_text("import pytest\n\ndef test_runs(): pass\n\n@pytest.mark.skip\ndef test_cuda(): pass")
    set_tests(monkeypatch, *files)
    found = examined(place, tmp_path)
    assert found["tests", "passed"] == found["tests", "skipped"] == ["1", "1"]
    assert found["set", "graphs"] == ["False"] and found["set", "resident"] == ["False"]


def test_wrong_recordings_and_little_memory_turn_switches_off(place, tmp_path, monkeypatch, capsys) -> None:
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
    monkeypatch.setattr(learning, "make_recorder", lambda: wrong)
    found = examined(place, tmp_path)
    assert len(found["step", "replayed"]) >= 2 and all(float(share) > 0.5 for share in found["step", "difference"])
    assert found["set", "graphs"] == ["False"]
    assert found["set", "training.batching.pixels"] == [str(sorted({*sizes})[1])]
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
    assert ("step", "no memory") not in found and ("set", "training.batching.pixels") not in found


def test_steps_that_cannot_be_recorded_are_only_timed(place, tmp_path, monkeypatch, capsys) -> None:
    def refused(step):
        raise UserError("a training step cannot be recorded")

    monkeypatch.setattr(check, "SHAPES", 2)
    monkeypatch.setattr(learning, "make_recorder", lambda: refused)
    found = examined(place, tmp_path)
    assert found["step", "difference"] == ["nan"] and len(found["step", "eager"]) == 3
    assert found["set", "graphs"] == ["False"] and "cannot be recorded" in capsys.readouterr().err


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
