"""Training: resumable bit for bit, the same on several processes, with clear errors."""

import fcntl
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked, remove_partial
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import forget_trainings
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.benchmarks.runtime import WORKERS
from hmerbench.benchmarks.training import trainer
from hmerbench.benchmarks.training.checkpoint import adopt_training, load_checkpoint, resumed_in, save_checkpoint
from hmerbench.benchmarks.training.distributed import Team
from hmerbench.benchmarks.training.learner import Learner
from hmerbench.benchmarks.training.trainer import Trainer, train
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.models.files import CheckpointError
from tests.helpers.made_up_jobs import wait_for
from tests.helpers.paths import ROOT
from tests.helpers.tiny import start, tiny_config


def trained(archive: Path, folder: Path, overrides: dict | None = None) -> RunFolder:
    """Train the tiny network in a folder, or go on with its training there."""
    run = RunFolder(folder, tiny_config(archive, overrides))
    train(run, open_archive(archive))
    return run


@pytest.fixture(scope="module")
def straight(archive, tmp_path_factory) -> Path:
    """A run trained without interruption."""
    return trained(archive, tmp_path_factory.mktemp("straight")).path


@pytest.fixture
def copy(straight, archive, tmp_path) -> RunFolder:
    """A copy of that run, to change."""
    return RunFolder(shutil.copytree(straight, tmp_path / "run"), tiny_config(archive))


def checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    found = load_checkpoint(RunFolder(folder))
    assert found
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint(folder)[0]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_writes_what_later_stages_read(straight, archive):
    history = [json.loads(line) for line in (straight / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in history] == [1, 2, 3]
    assert {"loss", "lr", "seconds", "images_per_s", "val_token_exprate"} <= history[0].keys()
    assert history[-1]["loss"] < history[0]["loss"]
    assert json.loads((straight / "checkpoint.json").read_text())["finished"]
    assert json.loads((straight / "environment.json").read_text())["versions"]["torch"]
    predict(RunFolder(straight), open_archive(archive), ["2014"])
    rows = [json.loads(line) for line in (straight / "predictions" / "2014.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows} == set(open_archive(archive).captions("2014"))
    assert all(row["nbest"][0]["tokens"] == row["tokens"] for row in rows)
    from_table, from_lists = (read_predictions(straight / f"predictions/2014.{suffix}") for suffix in ("tsv", "jsonl"))
    assert from_table == from_lists


def kill_after(
    steps: int, seconds: float, archive: Path, folder: Path, overrides: dict, environment: dict[str, str] | None = None
) -> dict:
    """Kill a training of three steps per epoch after `steps` steps; returns the state of its checkpoint."""
    killed = start(archive, folder, overrides, (steps, seconds), environment)
    killed.join(600)
    assert killed.exitcode == -signal.SIGKILL
    state = json.loads((folder / "checkpoint.json").read_text())
    assert not state["finished"]
    return state


def recorded(folder: Path) -> list[dict]:
    """The history without measurements of time."""
    timed = ("seconds", "val_seconds", "images_per_s")
    lines = RunFolder(folder).history
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


# steps 1, 4 and 7 are in the first, second and last epoch
@pytest.mark.parametrize(("steps", "execution"), [(1, {}), (4, {}), (7, {}), (4, {WORKERS: "2"})], ids=str)
def test_killed_and_resumed_is_bit_equal(archive, straight, tmp_path, monkeypatch, steps, execution):
    """kill -9 within an optimizer step, with a checkpoint after every step, so also in mid-epoch.

    Batches made by other processes give the same training."""
    for name, value in execution.items():
        monkeypatch.setenv(name, value)
    assert kill_after(steps, 0, archive, tmp_path, {}, execution)["step"] == steps
    began = RunFolder(tmp_path).environment
    assert began and trained(archive, tmp_path).environment == began
    assert same(weights(tmp_path), weights(straight))
    assert (tmp_path / "best.safetensors").read_bytes() == (straight / "best.safetensors").read_bytes()
    assert recorded(tmp_path) == recorded(straight)


@pytest.fixture
def set_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("optimizer", "threads"),
    [
        ({"name": "sgd"}, 1),
        ({"name": "adamw", "lr": 0.003, "clip": 1.0}, 1),
        ({"name": "muon", "lr": 0.003}, 2),  # it multiplies matrices of its own, by all threads
    ],
    ids=str,
)
def test_bf16_is_resumed_bit_for_bit(archive, tmp_path, bf16_unit, set_threads, optimizer, threads):
    """Killed within the first epoch, after a checkpoint in mid-epoch, and again at the end of the second.

    A bf16 network is channels last in memory, a checkpoint's tensors are not."""
    settings = {"bf16": True, "average": 0.9, "recalibrate": 2, "optimizer": optimizer}
    overrides = {"training": settings | {"batching": {"order": "shape"}}, "search": {"bf16": True}}
    cut, whole, environment = tmp_path / "cut", tmp_path / "whole", {"OMP_NUM_THREADS": str(threads)}
    state = kill_after(1, 0, archive, cut, overrides, environment)
    assert (state["epoch"], state["position"]) == (0, 1) and state["epoch_seconds"] > 0.02
    state = kill_after(5, 1e9, archive, cut, overrides, environment)
    assert (state["epoch"], state["position"]) == (2, 0)
    assert RunFolder(cut).seconds[-1] == pytest.approx(state["seconds"], abs=0.01)  # also before the kill
    for folder in (cut, whole):
        predict(trained(archive, folder, overrides), open_archive(archive), ["2014"])
    assert same(weights(cut), weights(whole))
    assert recorded(cut) == recorded(whole)
    for name in ("best.safetensors", "predictions/2014.jsonl", "predictions/2014.tsv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


def test_bf16_stands_for_float32_without_a_unit(archive, tmp_path, bf16_unit, monkeypatch):
    """Emulated, it would take three times as long. Training (with Muon's own products) and reading follow."""

    def done(name: str, bf16: bool) -> tuple[dict[str, torch.Tensor], list[str]]:
        optimizer, schedule = {"name": "muon", "lr": 0.003}, {"name": "cosine"}
        settings = {"epochs": 1, "bf16": bf16, "optimizer": optimizer, "schedule": schedule}
        overrides = {"training": settings, "search": {"bf16": bf16}, "select": "last"}
        run = trained(archive, tmp_path / name, overrides)
        predict(run, open_archive(archive), ["2014"])
        scores = (run.path / "predictions/2014.jsonl").read_text().splitlines()
        return weights(run.path), scores

    emulated, float32 = done("emulated", True), done("float32", False)
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)
    replaced = done("replaced", True)
    assert same(replaced[0], float32[0]) and replaced[1] == float32[1]
    assert not same(emulated[0], float32[0])
    assert RunFolder(tmp_path / "replaced").environment.get("bf16_unit", "") is None


FIXED = {
    "training": {"average": 0.9, "recalibrate": 2, "fixed_statistics": 0.7, "schedule": {"name": "cosine"}},
    "select": "last",
}


@pytest.fixture(scope="module")
def fixed(archive, tmp_path_factory) -> Path:
    """A run with fixed statistics, trained without interruption."""
    return trained(archive, tmp_path_factory.mktemp("fixed"), FIXED).path


# with three epochs of three steps, statistics are fixed from step 3 on
@pytest.mark.parametrize("steps", [2, 3, 4, 6])
def test_fixed_statistics_are_resumed_bit_for_bit(archive, fixed, tmp_path, steps):
    """Killed before they are measured, just then, after that and in the epoch that goes on with them."""
    kill_after(steps, 0, archive, tmp_path, FIXED)
    trained(archive, tmp_path, FIXED)
    assert same(weights(tmp_path), weights(fixed)) and recorded(tmp_path) == recorded(fixed)
    assert (tmp_path / "best.safetensors").read_bytes() == (fixed / "best.safetensors").read_bytes()


def test_fixed_statistics_are_measured_once_and_read_with(archive, tmp_path, monkeypatch):
    """From the second of three epochs on they are what recalibration measures there, in training and in the weights."""
    seen: list[dict[str, torch.Tensor]] = []
    end_epoch = Trainer._end_epoch

    def running(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in state.items() if "running" in name}

    def measured_now(self: Trainer) -> dict[str, torch.Tensor]:
        """By the current weights, not the averaged ones."""
        with monkeypatch.context() as patch:
            patch.setattr(self.learner, "average", {})
            return self.learner.inference_model(self._statistics_batches()).state_dict()

    def ended(self: Trainer, *arguments: Any) -> None:
        if self.state.epoch == 1:  # before they are fixed
            seen.append(running(measured_now(self)))
        seen.append(running(self.learner.model.state_dict()))
        end_epoch(self, *arguments)

    monkeypatch.setattr(Trainer, "_end_epoch", ended)
    run = trained(archive, tmp_path, FIXED)
    measured, moving, second, third = seen
    assert same(second, measured) and same(third, measured) and not same(moving, measured)
    assert same(running(load_file(run.weights_file)), measured)


@pytest.mark.parametrize("name", ["checkpoint.json", "checkpoint.safetensors"])
def test_a_kill_between_two_files_of_a_checkpoint(archive, straight, copy, monkeypatch, name):
    """Killed at the end after writing the first file, or in --force before deleting the second: the run stays done."""
    if name == "checkpoint.json":
        copy.write(name, (copy.state or {}) | {"finished": False})
    else:

        def killed(path: Path, missing_ok: bool = False) -> None:
            if path.name == name:
                raise KeyboardInterrupt
            os.unlink(path)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "unlink", killed)
            forget_trainings([copy])
    assert not copy.trained_here
    train(copy, open_archive(archive))
    assert copy.trained_here and recorded(copy.path) == recorded(straight)
    assert same(weights(copy.path), weights(straight))


@pytest.mark.parametrize("gpu", [False, True])
def test_another_environment_is_recorded_beside_the_first(archive, tmp_path, monkeypatch, capsys, gpu):
    run, environments = RunFolder(tmp_path, tiny_config(archive)), iter([1, 1, 4])

    def environment(_: object) -> dict:
        return {"started": time.ctime(), "threads": next(environments), "gpu": gpu}

    def interrupt(_: dict) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "environment", environment)
    for resumed in ([], [], [4]):
        with pytest.raises(KeyboardInterrupt):
            train(run, open_archive(archive), interrupt)
        found = json.loads((tmp_path / "environment.json").read_text())
        assert [found["threads"], *(later["threads"] for later in found.get("resumed", []))] == [1, *resumed]
        warned = "resumed with 4 threads instead of 1" in " ".join(capsys.readouterr().err.split())
        # sums are rounded otherwise, so weights are not the same bit for bit; those of a GPU are
        assert warned == (bool(resumed) and not gpu)


def test_a_training_does_not_leave_its_gpu_unasked(tmp_path, monkeypatch):
    began, here = ({"device": name, "gpu": name == "H200", "threads": 1} for name in ("H200", "Xeon"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match=r"trained on H200 so far, and no GPU can be used; CUDA_VISIBLE_DEVICES= "):
        resumed_in(tmp_path, began, here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    moved = resumed_in(tmp_path, began, here)
    assert moved == began | {"resumed": [here]} and resumed_in(tmp_path, moved, here) == moved


def test_files_that_a_killed_process_was_writing_are_deleted(archive, copy):
    for name in (".best.safetensors.123.part", "predictions/.2014.tsv.123.part"):
        copy.write(name, "half")
    train(copy, open_archive(archive))
    assert not list(copy.path.rglob("*.part"))


def test_a_finished_run_is_left_alone(archive, straight):
    before = (straight / "checkpoint.safetensors").stat().st_mtime_ns
    kept = sorted(straight.glob("predictions/*"))
    trained(archive, straight)
    assert (straight / "checkpoint.safetensors").stat().st_mtime_ns == before
    assert sorted(straight.glob("predictions/*")) == kept


def test_results_of_earlier_weights_end_with_them(archive, tmp_path):
    """A forced training keeps them until it is over, when they would stand beside the new ones, but as no scores."""
    run = RunFolder(tmp_path, tiny_config(archive, {"training": {"epochs": 1}}))
    for name in ("predictions/2014.tsv", "scores/2014.json", "errors/2014.json", "symlg/2014.zip"):
        run.write(name, "")
    seen = []
    assert run.sets("scores/*.json") == ["2014"]
    forget_trainings([run])
    assert run.sets("scores/*.json") == []  # also if it then diverges
    train(run, open_archive(archive), lambda _: seen.append((run.sets("scores/*.json"), [*run.path.glob("scores/*")])))
    assert seen == [([], [tmp_path / "scores/2014.json"])] and not list(tmp_path.rglob("2014.*"))


def train_together(archive: Path, folder: Path, overrides: dict, *dies: tuple[int, float]) -> list[int | None]:
    """Train in a gloo process per tuple, which says when it dies; returns their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(len(dies)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"CUDA_VISIBLE_DEVICES": ""}  # gloo, also beside a GPU
    ranks = [common | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(len(dies))]
    team = [start(archive, folder, overrides, when, rank) for when, rank in zip(dies, ranks, strict=True)]
    for process in team:
        process.join(600)
    return [process.exitcode for process in team]


def test_two_processes_train_what_one_does(archive, tmp_path):
    """They average gradients over the same micro-batches with the same dropout, agree on checkpoints though only one
    finds it time for them, and resume within an epoch with the same loss; also if a part of the network is not used."""
    overrides = {"model": {"num_decoder_layers": 1}}
    always, never = 0, 1e9  # seconds between checkpoints
    assert -signal.SIGKILL in train_together(archive, tmp_path / "two", overrides, (5, always), (5, never))
    state = json.loads((tmp_path / "two/checkpoint.json").read_text())
    assert (state["epoch"], state["position"]) == (1, 2)
    assert train_together(archive, tmp_path / "two", overrides, (99, always), (99, never)) == [0, 0]
    trained(archive, tmp_path / "one", overrides)
    ours, theirs = weights(tmp_path / "two"), weights(tmp_path / "one")
    for name, tensor in theirs.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(ours[name], tensor, rtol=2e-3, atol=2e-4, msg=name)
    first, second = ([line["loss"] for line in recorded(tmp_path / folder)] for folder in ("two", "one"))
    assert first == pytest.approx(second, rel=1e-4)
    two, one = (RunFolder(tmp_path / folder).environment.get("threads", 0) for folder in ("two", "one"))
    assert two == 2 * one > 0  # core-minutes count both


@pytest.mark.long
def test_four_processes_resume_bit_for_bit(archive, tmp_path):
    """Sums over more than two processes are rounded by their order, which must not depend on when training began."""
    overrides, always, never = {"training": {"batching": {"micro_batches": 4}}}, 0, 1e9
    whole = [(99, always), *[(99, never)] * 3]
    assert -signal.SIGKILL in train_together(archive, tmp_path / "cut", overrides, (5, always), *[(5, never)] * 3)
    for folder in ("cut", "whole"):
        assert train_together(archive, tmp_path / folder, overrides, *whole) == [0, 0, 0, 0]
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_a_repeated_epoch_replaces_its_line(archive, tmp_path):
    """A kill between the line of an epoch and its checkpoint."""
    run = RunFolder(tmp_path, tiny_config(archive))

    def stop(line):
        (tmp_path / "history.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line | {"epoch": 2}) + "\n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, open_archive(archive), stop)
    train(run, open_archive(archive))
    assert [line["epoch"] for line in recorded(tmp_path)] == [1, 2, 3]


def test_the_process_that_fails_says_why(archive, tmp_path):
    """The other one only loses its connection, which is no fault of the program."""
    config = tiny_config(archive)
    data = ["--preset", str(archive / "tiny.yaml"), "--crohme", str(archive), "--results", str(tmp_path)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--log-dir", str(tmp_path / "logs")]
    command += ["--redirects=2", "-m", "hmerbench", "train", "--recipe", "comer-fusion", *data]
    with locked(workspace(open_archive(archive), tmp_path) / "runs" / config.run_name):
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        assert subprocess.run(command, cwd=ROOT, capture_output=True, env=environment).returncode
    first, second = (next((tmp_path / "logs").rglob(f"{rank}/stderr.log")).read_text() for rank in (0, 1))
    assert "is working in it; wait" in first and "bug" not in first
    assert "bug" not in second and ("another process of this training" in second or "stopped" in second)


def test_processes_must_share_the_micro_batches_evenly(archive, tmp_path):
    with pytest.raises(UserError, match="micro-batches per step, 2, must be a multiple of the 3 processes"):
        Trainer(RunFolder(tmp_path, tiny_config(archive)), open_archive(archive), Team(0, 3, torch.device("cpu")))


@pytest.mark.parametrize("select", ["heldout", "last"])
def test_other_selections_with_the_options_of_fast_presets(archive, tmp_path, bf16_unit, select):
    overrides = {
        "select": select,
        "training": {
            "bf16": True,
            "average": 0.9,
            "recalibrate": 3,
            "label_smoothing": 0.1,
            "batching": {"order": "shape"},
            "optimizer": {"name": "adamw", "lr": 0.002, "clip": 1.0},
            "schedule": {"name": "cosine", "warmup": 0.2},
        },
        "augmentation": {"rotation": 3.0, "elastic": 1.0, "thickness": 0.5},
    }
    history = trained(archive, tmp_path, overrides).history
    assert ("val_token_exprate" in history[-1]) == (select == "heldout")
    assert history[-1]["lr"] < history[0]["lr"]
    best = load_file(tmp_path / "best.safetensors")
    last = weights(tmp_path)
    norm = "encoder.model.norm1"
    assert torch.equal(best["decoder.proj.weight"], last["average.decoder.proj.weight"]) or select == "heldout"
    assert not torch.equal(best[f"{norm}.running_mean"], last[f"model.{norm}.running_mean"])


def test_early_stop(archive, tmp_path):
    run = trained(archive, tmp_path, {"training": {"epochs": 50, "early_stop": 2, "optimizer": {"lr": 1e-9}}})
    assert len(run.history) == 3  # the first, then two without improvement


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(archive, tmp_path):
    config = tiny_config(archive)
    optimizer = config.training.optimizer.model_copy(update={"lr": 1e30})  # beyond what settings allow
    config = config.model_copy(update={"training": config.training.model_copy(update={"optimizer": optimizer})})
    with pytest.raises(UserError, match=r"no longer finite in epoch 1.*lower training\.optimizer\.lr"):
        train(RunFolder(tmp_path, config), open_archive(archive))
    assert not (tmp_path / "best.safetensors").exists()


def test_weights_that_are_not_finite_replace_no_checkpoint(archive, straight, tmp_path, monkeypatch):
    """A gradient that overflows in the last step of an epoch leaves its loss finite."""
    update = Learner.update

    def overflows(self: Learner, step: int) -> None:
        if step == 5:  # the last of the second epoch of three steps
            parameter = next(self.model.parameters())
            parameter.grad = torch.full_like(parameter, math.inf)
        update(self, step)

    run = RunFolder(tmp_path, tiny_config(archive))
    with monkeypatch.context() as patch, pytest.raises(UserError, match="the weights are no longer finite in epoch 2"):
        patch.setattr(Learner, "update", overflows)
        train(run, open_archive(archive))
    train(run, open_archive(archive))
    assert same(weights(tmp_path), weights(straight))


def test_the_best_weights_are_of_an_epoch_with_a_checkpoint(archive, straight, copy):
    """Those of an epoch that was validated, but not yet saved when the training was killed, are of a lost epoch."""
    copy.write("candidate-7.safetensors", b"of a lost epoch")
    tensors, state = checkpoint(copy.path)
    save_checkpoint(copy, tensors, state | {"finished": False})
    train(copy, open_archive(archive))
    assert copy.weights_file.read_bytes() == (straight / "best.safetensors").read_bytes()
    assert not list(copy.path.glob("candidate-*"))


def test_a_training_with_another_dictionary_is_not_resumed(archive, copy):
    tensors, state = checkpoint(copy.path)
    save_checkpoint(copy, tensors, state | {"vocabulary": "of another", "finished": False})
    with pytest.raises(UserError, match="trained with other words; restore its data or models/dictionary"):
        train(copy, open_archive(archive))


def test_files_that_others_write_are_not_removed(tmp_path):
    """`train` cleans up after killed processes, while `predict` may be writing in the same folder."""
    (tmp_path / ".left.json.0123456789abcdef.part").write_text("of a killed process")
    with open(tmp_path / ".2014.tsv.0123456789abcdef.part", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_partial(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".2014.tsv.0123456789abcdef.part"]
    remove_partial(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_recipe_is_refused(archive, straight):
    with pytest.raises(UserError, match=r"belongs to configuration .* not "):
        load_checkpoint(RunFolder(straight, tiny_config(archive, recipe="bttr")))


@pytest.mark.parametrize("damage", ["cut", "garbage", "foreign"])
def test_a_damaged_checkpoint_is_refused(archive, straight, tmp_path, damage):
    whole = (straight / "checkpoint.safetensors").read_bytes()
    content = {"cut": whole[: len(whole) // 2], "garbage": b"\x80\x04nonsense" * 20}.get(damage)
    if content is None:
        content = (straight / "best.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors.*delete it to train this run from the start"):
        trained(archive, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == content


@pytest.mark.parametrize("name", ["checkpoint", "best"])
@pytest.mark.parametrize("where", ["tensors", "header"])
def test_flipped_bytes_are_noticed(archive, copy, name, where):
    """64 bytes among the tensors, or one digit of a number in the header, which stays well-formed."""
    path = copy.path / f"{name}.safetensors"
    content = bytearray(path.read_bytes())
    if where == "tensors":
        start = len(content) // 2
        content[start : start + 64] = (255 - byte for byte in content[start : start + 64])
    else:
        number = {"checkpoint": b'epoch\\": 3', "best": b'd_model\\": 16'}[name]
        content[content.index(number) + len(number) - 1] += 1
    path.write_bytes(content)
    with pytest.raises((UserError, CheckpointError)) as error:
        if name == "checkpoint":
            train(copy, open_archive(archive))
        else:
            predict(copy, open_archive(archive), ["2014"])
    said = str(error.value)
    assert said.startswith(f"{path}: damaged") and "checksum" in said and "\n" not in said
    assert path.read_bytes() == content


@pytest.fixture(scope="module")
def last_epoch(archive, tmp_path_factory) -> RunFolder:
    """A run that keeps the weights of its last epoch, whatever its search."""
    settings = {"select": "last", "training": {"schedule": {"name": "cosine"}}}
    return trained(archive, tmp_path_factory.mktemp("runs") / "last", settings)


@pytest.mark.parametrize("change", [{"search.beam_size": 3}, {"search.scales": [1.0, 1.3], "preset": "mine"}], ids=str)
def test_another_search_adopts_the_same_training(archive, last_epoch, capsys, change):
    data = open_archive(archive)
    other = RunFolder(last_epoch.path.parent / "other", last_epoch.settings.changed(change))
    assert adopt_training(other) == last_epoch.path
    assert "only in its search" in " ".join(capsys.readouterr().err.split())
    train(other, data)  # nothing is left to do
    assert same(weights(other.path), weights(last_epoch.path)) and other.history == last_epoch.history
    assert other.trained_here and RunFolder(other.path).settings == other.settings != last_epoch.settings
    assert other.weights_file.read_bytes() == last_epoch.weights_file.read_bytes()
    forget_trainings([other])  # so that it is trained, not copied
    assert adopt_training(other) is None
    train(other, data)
    assert recorded(other.path) == recorded(last_epoch.path) and other.history != last_epoch.history
    shutil.rmtree(other.path)


@pytest.mark.parametrize("change", [{"seed": 8}, {"training.epochs": 2}, {"model.dc": 3}, {"select": "2014"}], ids=str)
def test_another_training_is_not_adopted(last_epoch, change):
    config = last_epoch.settings.changed({"search.beam_size": 3} | change)
    other = RunFolder(last_epoch.path.parent / "other", config)
    assert adopt_training(other) is None and not other.path.exists()


@pytest.mark.parametrize("damaged", ["history.jsonl", "best.safetensors", "checkpoint.safetensors", "unfinished"])
def test_damaged_or_unfinished_runs_are_not_adopted(last_epoch, tmp_path, damaged):
    first = RunFolder(tmp_path / "first")
    shutil.copytree(last_epoch.path, first.path)
    if damaged == "unfinished":
        first.write("checkpoint.json", (first.state or {}) | {"finished": False})
    else:
        content = (first.path / damaged).read_bytes()
        (first.path / damaged).write_bytes(content[: len(content) // 2])
    other = RunFolder(tmp_path / "other", last_epoch.settings.changed({"search.beam_size": 3}))
    assert adopt_training(other) is None and not other.path.exists()


@pytest.mark.parametrize("written", range(6))
def test_an_interrupted_adoption_is_repeated(last_epoch, tmp_path, monkeypatch, written):
    """The disk is full after `written` files."""
    shutil.copytree(last_epoch.path, tmp_path / "first")
    other = RunFolder(tmp_path / "other", last_epoch.settings.changed({"search.beam_size": 3}))
    real, names = RunFolder.write, []

    def full(run, name, content):
        if len(names) == written:
            raise OSError(28, "No space left on device")
        names.append(name)
        real(run, name, content)

    monkeypatch.setattr(RunFolder, "write", full)
    with pytest.raises(OSError, match="No space"):
        adopt_training(other)
    monkeypatch.undo()
    assert not other.trained_here
    assert adopt_training(other) == tmp_path / "first" and other.trained_here
    assert other.environment.get("trained_in") == "first" and other.history == last_epoch.history


def test_nothing_is_adopted_if_the_search_selects_the_epoch(copy):
    config = copy.settings.changed({"search.beam_size": 3})
    assert adopt_training(RunFolder(copy.path.parent / "other", config)) is None


def test_one_training_in_a_folder_at_a_time(archive, straight, tmp_path):
    """A second one is refused and changes nothing; a killed one leaves no lock behind."""
    overrides = {"training": {"epochs": 500}}
    first = start(archive, tmp_path, overrides)
    wait_for(tmp_path / "checkpoint.json", 600)
    config = tiny_config(archive, overrides)
    for attempt in (
        lambda: train(RunFolder(tmp_path, config), open_archive(archive)),
        lambda: forget_trainings([RunFolder(tmp_path)]),
    ):
        with pytest.raises(UserError, match=rf"process {first.pid} on .* is working in it; wait until it ends"):
            attempt()
    assert (tmp_path / "checkpoint.safetensors").exists()
    first.kill()
    first.join(600)
    forget_trainings([RunFolder(tmp_path)])
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_full_disk_keeps_the_last_checkpoint(archive, straight, tmp_path, monkeypatch):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"the last one")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hmerbench.benchmarks.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(RunFolder(tmp_path), {}, {})
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"the last one"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]


CORE = "torch numpy opencv-python-headless pyyaml safetensors rich typer pydantic defusedxml pillow"
BARE = """
import re, shlex, sys
from importlib import metadata
from importlib.machinery import PathFinder

def key(name):
    return re.match(r"[\\w.-]+", name)[0].lower().replace("_", "-").replace(".", "-")

allowed, todo = {"hmerbench"}, sys.argv.pop(1).split()
while todo:
    if (name := key(todo.pop())) not in allowed:
        allowed.add(name)
        try:
            todo += [needed for needed in metadata.requires(name) or () if "extra ==" not in needed]
        except metadata.PackageNotFoundError:  # for another system
            pass
owners = metadata.packages_distributions()

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        its = owners.get(name.partition(".")[0])
        return None if its and not {key(owner) for owner in its} & allowed else super().find_spec(name, path, target)

sys.meta_path = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
from hmerbench.benchmarks.cli.main import main
for line in sys.argv.pop(1).splitlines():
    sys.argv[1:] = shlex.split(line)
    print("now", sys.argv[1], main())
"""


def test_a_bare_machine_trains_recognizes_and_scores(archive, tmp_path):
    """With the packages that docs/running.md names, and their dependencies: every other import fails."""
    run = workspace(open_archive(archive), tmp_path) / "runs"
    run /= tiny_config(archive, {"training": {"epochs": 1}}, "bttr").run_name
    data = f"--crohme {archive} --results {tmp_path}"
    preset = f"--preset {archive}/tiny.yaml {data}"
    lines = f"train --recipe bttr {preset}\npredict {run} {data}\nscore {run} {data}\nreproduce --recipes bttr {preset}"
    done = subprocess.run([sys.executable, "-c", BARE, CORE, lines], cwd=ROOT, capture_output=True, text=True)
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("now ")]
    assert ended == [["train", "0"], ["predict", "0"], ["score", "0"], ["reproduce", "1"]], done.stderr
    assert "ExpRate|set:foreign2014|n:5" in done.stdout
    assert "pandas" in done.stderr and "already done" not in done.stdout  # for the tables, and said before the work
    assert f"pip install {CORE}`" in (ROOT / "docs/running.md").read_text()
