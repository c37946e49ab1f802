"""Recorded steps: what is recorded and when, and that replays train exactly what eager steps do."""

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import hmerbench.benchmarks.training.learner as learning
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.environment import Execution, best_device
from hmerbench.benchmarks.errors import Lost, UserError
from hmerbench.benchmarks.performance.bench import with_torch_dropout
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runtime import CORES
from hmerbench.benchmarks.training.cuda_graphs import EAGER_STEPS, CudaRecord, Replays, own_stream
from hmerbench.benchmarks.training.distributed import Team, make_deterministic
from hmerbench.benchmarks.training.learner import Learner
from hmerbench.benchmarks.training.trainer import Trainer
from hmerbench.models.comer import Words
from tests.helpers.paths import ROOT
from tests.helpers.recording import GRAPHS, LACKING, rehearsed
from tests.helpers.tiny import tiny_config

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def recording(monkeypatch) -> Callable[[Callable], None]:
    """Makes trainings on a CPU record their steps, by a recorder of the test's."""

    def by(recorder: Callable) -> None:
        monkeypatch.setattr(learning, "CudaRecord", lambda: recorder)
        monkeypatch.setattr(Execution, "on", lambda *_, **__: Execution(0, graphs=True))

    return by


CPU = Team(0, 1, torch.device("cpu"))
TOLERANCE = 1e-4  # relative, of weights after nine steps


def inputs(width: int, steps: int = 2) -> Inputs:
    images = torch.randint(256, (1, 1, 4, width), dtype=torch.uint8)
    tokens = torch.randint(5, (2, steps))
    return Inputs(images, images[:, 0] > 128, Words(tokens, tokens + 1))


def test_what_is_recorded_and_when():
    weight, recorded = torch.ones((), requires_grad=True), []

    def step(batch: Inputs) -> Tensor:
        loss = weight * (batch.images.float().sum() + batch.targets[0].sum() + torch.rand(()))
        loss.backward()
        return loss.detach()

    def record(work):
        recorded.append(work)
        return rehearsed(work)

    replays, updates = Replays(record), []

    def check(batch: Inputs, seed: int) -> None:
        """Compares loss and gradient with those of the plain step."""

        def plain(step, batch: Inputs, seed: int) -> Tensor:
            torch.manual_seed(seed)
            return step(batch)

        results = []
        for run in (replays.micro_step, plain):
            weight.grad = torch.zeros(())
            results.append((run(step, batch, seed), weight.grad.clone()))
        assert results[0] == results[1]

    for seed in range(EAGER_STEPS):
        check(inputs(8), seed)
        replays.update(lambda: updates.append("eager"))
    assert not recorded and updates == ["eager"] * EAGER_STEPS
    for seed in range(3):
        check(inputs(8), seed)  # replays read other images of the same shape
    assert len(recorded) == 1
    check(inputs(12), 0)
    check(inputs(8, steps=3), 0)
    assert len(recorded) == 3
    for _ in range(2):
        replays.update(lambda: updates.append("recorded"))
    assert len(recorded) == 4 and updates[EAGER_STEPS:] == ["recorded"] * 2


def test_no_recording_without_free_memory(capsys):
    attempts = []
    replays = Replays(lambda work: attempts.append(work))
    for _ in range(EAGER_STEPS + 3):
        batch = inputs(8)
        assert replays.micro_step(lambda batch: batch.targets[0].sum(), batch, 0) == batch.targets[0].sum()
        replays.update(lambda: None)
    assert len(attempts) == 1
    replays.retry()
    replays.update(lambda: None)
    assert len(attempts) == 2
    replays.give_up()
    replays.retry()
    assert replays.full and replays.record(lambda: None) is None  # its recorder is gone, and what that kept
    assert len(attempts) == 2
    assert " ".join(capsys.readouterr().err.split()).count("no memory for more than 0 recorded steps") == 1


def trained(config: Config, archive: Path, folder: Path, team: Team) -> tuple[Learner, dict[str, Tensor]]:
    as_in_training(team)
    trainer = Trainer(RunFolder(folder, config), open_archive(archive), team)
    trainer.run()
    return trainer.learner, trainer.learner.model.state_dict()


def distance(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """|weights - others| / |others|, over all tensors together."""
    ours, theirs = (torch.cat([tensors[name].double().flatten() for name in others]) for tensors in (weights, others))
    return float((ours - theirs).norm() / theirs.norm())


def as_in_training(team: Team) -> None:
    """Without TF32 and nondeterministic kernels."""
    if team.device.type == "cuda":
        best_device()
    make_deterministic()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_replays_train_what_eager_steps_do(archive, tmp_path, recording, optimizer):
    """Up to rounding: recorded rates are float32 tensors, and AdamW makes much of gradients near zero."""
    training = GRAPHS["training"] | {"average": 0.9, "optimizer": {"name": optimizer, "clip": 1.0, "lr": 0.01}}
    config = tiny_config(archive, GRAPHS | {"training": training}).model_copy(update={"augmentation": None})
    eager, expected = trained(config, archive, tmp_path / "eager", CPU)
    assert eager.replays is None
    recording(rehearsed)
    learner, weights = trained(config, archive, tmp_path / "replayed", CPU)
    assert learner.replays is not None and learner.replays.updating and len(learner.replays.recorded) >= 2
    assert distance(weights, expected) < TOLERANCE
    assert distance(learner.average, eager.average) < TOLERANCE


def test_steps_are_recorded_anew_when_statistics_become_fixed(archive, tmp_path, monkeypatch, recording):
    """What was recorded before normalizes every batch by itself, and an update does not outlive the steps that were
    recorded beside it: torch frees the workspace of their products with them."""
    training = GRAPHS["training"] | {"epochs": 8, "recalibrate": 2, "fixed_statistics": 0.5}
    config = tiny_config(archive, GRAPHS | {"training": training}).model_copy(update={"augmentation": None})
    train, now, launched = Learner.train_mode, [False], list[bool]()

    def noted(self: Learner, fixed: bool) -> None:
        train(self, fixed)
        now[:] = [not self.norms[0].training]

    def recorder(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        (launch, loss), recorded = rehearsed(work), now[0]

        def checked() -> object:
            assert now[0] == recorded
            launched.append(recorded)
            return launch()

        return checked, loss

    monkeypatch.setattr(Learner, "train_mode", noted)
    recording(recorder)
    trained(config, archive, tmp_path, CPU)
    assert {True, False} == set(launched)


def test_every_epoch_tries_to_record_again(archive, tmp_path, recording):
    """Memory that others took may be free."""
    config, attempts = tiny_config(archive, GRAPHS), []
    recording(lambda work: attempts.append(work))
    trained(config, archive, tmp_path, CPU)
    assert len(attempts) == config.training.epochs > 1


def test_what_is_recorded_anew_keeps_to_the_limit_that_memory_set(archive, monkeypatch):
    recorders: list[object] = []
    monkeypatch.setattr(learning, "CudaRecord", lambda: recorders.append(1) or rehearsed)
    learner = Learner(tiny_config(archive, GRAPHS), CPU, graphs=True)
    assert learner.replays is not None
    learner.replays.full = True  # no memory for more
    learner.measure_statistics([])
    assert learner.replays.full and len(recorders) == 2


@needs_gpu
def test_steps_are_recorded_anew_on_a_gpu(archive):
    """With one pool for both, torch 2.11 fails: "use_count > 0 INTERNAL ASSERT FAILED"."""
    team = Team(0, 1, torch.device("cuda:0"))
    as_in_training(team)
    learner = Learner(tiny_config(archive, GRAPHS), team, graphs=True)
    weight = torch.ones(2, device=team.device)
    with own_stream(team.device):
        for factor in (2, 3):
            assert learner.replays is not None
            recorded = learner.replays.record(lambda factor=factor: (weight * factor).sum())
            assert recorded
            launch, loss = recorded
            launch()
            assert float(loss) == 2 * factor
            learner.replays.recorded[()] = (inputs(8), launch, loss)
            del recorded, launch, loss
            learner.measure_statistics([])


@pytest.mark.long
def test_a_training_frees_its_memory_at_once(archive, tmp_path, recording):
    """Python's collector comes late or, as the next training freezes all objects, never."""
    recording(lambda work: (lambda: None, torch.zeros(())))
    learner, _ = trained(tiny_config(archive, GRAPHS), archive, tmp_path, CPU)
    assert learner.replays is not None and learner.replays.recorded
    alive = weakref.ref(learner)
    gc.disable()
    try:
        del learner
        assert alive() is None
    finally:
        gc.enable()


def test_recordings_are_given_up_for_memory(archive, tmp_path, monkeypatch, recording, capsys):
    """A step that runs out of memory halfway is repeated without recordings, with the weights of an eager training."""
    config = tiny_config(archive, GRAPHS).model_copy(update={"augmentation": None})
    real, begun, failed = Learner._gradients, [], []
    _, expected = trained(config, archive, tmp_path / "eager", CPU)

    def scarce(self: Learner, *arguments, **options) -> Tensor:
        loss = real(self, *arguments, **options)
        begun.append(1)
        if not failed and self.replays is not None and len(self.replays.recorded) == 3 and len(begun) % 2 == 0:
            failed.append(len(begun))
            raise LACKING  # with half of the step's gradients already added
        return loss

    recording(rehearsed)
    monkeypatch.setattr(Learner, "_gradients", scarce)
    learner, weights = trained(config, archive, tmp_path / "scarce", CPU)
    assert failed and failed[0] > 1 and learner.replays is not None and not learner.replays.recorded
    assert distance(weights, expected) < TOLERANCE
    assert [part["graphs"] for part in RunFolder(tmp_path / "scarce").environments] == [True, False]
    said = " ".join(capsys.readouterr().err.split())
    assert "CUDA out of memory. Tried to allocate 2.00 GiB: 3 recorded steps are given up to free memory" in said


@pytest.mark.parametrize(
    ("error", "said"), [(LACKING, r"2\.00 GiB"), (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), "FAILED")]
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_batch_too_large_for_memory_names_the_settings(archive, tmp_path, monkeypatch, error, said, alone):
    def scarce(*_) -> Tensor:
        raise error

    monkeypatch.setattr(Learner, "_gradients", scarce)
    monkeypatch.delenv(CORES, raising=False) if alone else monkeypatch.setenv(CORES, "2")
    fewer = "" if alone else r"train fewer runs at a time \(JOBS=, --workers\), or "
    with pytest.raises(UserError, match=rf"{said}; {fewer}halve training\.batching\.pixels or size and double"):
        trained(tiny_config(archive, GRAPHS), archive, tmp_path, CPU)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=needs_gpu)])
def test_a_replay_equals_the_eager_step_on_new_inputs(archive, tmp_path, device, bf16):
    """Alternates two shapes, each time with new images, labels and dropout, and compares loss and gradients."""
    overrides = {"training": GRAPHS["training"] | {"bf16": bf16}, "select": "last"}
    team = Team(0, 1, torch.device(device))
    as_in_training(team)
    learner = Learner(tiny_config(archive, overrides), team)
    learner.model.train()
    record = rehearsed if device == "cpu" else CudaRecord()
    generator = torch.Generator().manual_seed(7)

    def random_batch(width: int, steps: int) -> Inputs:
        images = torch.randint(256, (4, 1, 32, width), dtype=torch.uint8, generator=generator)
        tokens = torch.randint(3, 8, (8, steps), generator=generator)
        mask = torch.zeros(4, 32, width, dtype=torch.bool)
        batch = Inputs(images, mask, Words(tokens, tokens.roll(1, 1)))
        return tree_map(lambda tensor: tensor.to(device), batch)

    def gradients(step: Callable[[], Tensor]) -> list[Tensor]:
        for parameter in learner.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        loss = step()
        return [loss, *(parameter.grad.clone() for parameter in learner.model.parameters())]  # type: ignore[union-attr]

    with own_stream(team.device):
        learner.replays = replays = Replays(record)
        replays.steps, results = EAGER_STEPS, []
        gradients(lambda: learner._gradients(learner.model, random_batch(32, 4)))  # so that all parameters have one
        for seed in range(8):
            for shape in ((32, 4), (64, 6)):
                batch = random_batch(*shape)
                step = partial(learner._gradients, learner.model)
                replayed = gradients(partial(replays.micro_step, step, batch, seed))

                def eager(batch=batch, seed=seed) -> Tensor:
                    torch.manual_seed(seed)
                    return learner._gradients(learner.model, batch)

                results.append((replayed, gradients(eager)))
    assert len(replays.recorded) == 2
    tolerance = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-2, "atol": 1e-3} if bf16 else {}
    for replayed, expected in results:
        torch.testing.assert_close(replayed, expected, **tolerance)  # type: ignore[arg-type]
    losses = [float(replayed[0]) for replayed, _ in results]
    assert len(set(losses)) == len(losses)  # no two batches were the same


def test_recording_keeps_the_allocators_cache(monkeypatch):
    """If it were emptied before every recording, later steps would have to ask the driver for memory again; it is where
    a recording would lack that memory."""
    calls: list[str] = []
    free, held, ending = 80, 30, ""

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            calls.append(f"begin {pool} {capture_error_mode}")

        def capture_end(self):
            calls.append("end")
            if ending:
                raise RuntimeError(ending)

        def replay(self):
            calls.append("replay")

    def emptied() -> None:
        nonlocal free, held
        calls.append("emptied")
        free, held = free + held - 25, 25

    fakes = {
        "CUDAGraph": Graph, "graph_pool_handle": lambda: "pool", "synchronize": lambda: None,
        "mem_get_info": lambda: (free, 100), "memory_reserved": lambda: held, "memory_allocated": lambda: 25,
        "empty_cache": emptied,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    record = CudaRecord()
    recorded = record(lambda: torch.tensor(3.0))
    assert recorded
    recorded[0]()
    assert calls == ["begin pool thread_local", "end", "replay"]

    def fails() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(UserError, match=r"cannot be recorded \(operation not permitted .*; add --no-graphs"):
        record(fails)
    assert calls[-1] == "end"  # otherwise nothing could run on this stream any more

    for lost in ("CUDA error: unspecified launch failure", "DataLoader worker (pid 7) is killed by signal: Killed."):

        def loses(lost: str = lost) -> Tensor:
            raise RuntimeError(lost)

        with pytest.raises(RuntimeError, match=re.escape(lost)):  # so that the run is started again
            record(loses)

    def scarce() -> Tensor:
        raise LACKING

    left_as_if_recording = False
    monkeypatch.setattr("hmerbench.benchmarks.training.cuda_graphs.still_recording", lambda: left_as_if_recording)
    assert record(scarce) is None
    ending = "the recording was invalidated"  # ending usually fails, too, after a shortage of memory
    assert record(scarce) is None
    ending = "CUDA error: out of memory\nmore"  # the driver's, for the graph
    assert record(lambda: torch.tensor(3.0)) is None
    assert len(record.failed) == 3  # destroyed, each would free what other graphs compute in
    left_as_if_recording = True
    with pytest.raises(Lost, match="CUDA error: out of memory, to record a training step; run the same command again"):
        record(lambda: torch.tensor(3.0))
    ending = ""
    free = 3  # plus 1 that the allocator holds: less than a twentieth of 100
    held = 26
    assert record(lambda: torch.tensor(3.0)) is None and "emptied" not in calls
    held = 60  # which a recording cannot use before it is given back
    assert record(lambda: torch.tensor(3.0)) and calls[-3:] == ["emptied", "begin pool thread_local", "end"]


class Operations(TorchDispatchMode):
    """Records the operations of forward and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        if func is torch.ops.aten.index.Tensor:
            assert all(index is None or index.dtype == torch.int64 for index in args[1]), "an index of bools is read"
        if func is torch.ops.aten.where.self:
            assert all(value.ndim for value in args[1:]), "where copies numbers to a device, and waits"
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_back(archive, tmp_path):
    """No operation of a step would make the host wait for a GPU."""
    training = GRAPHS["training"] | {"average": 0.9, "optimizer": {"name": "adamw", "clip": 1.0}}
    config = tiny_config(archive, {"training": training})
    trainer = Trainer(RunFolder(tmp_path, config), open_archive(archive), CPU)
    learner = trainer.learner
    with_torch_dropout(learner.model)  # as on a GPU; that for the CPU draws on the host
    batches = [trainer.training_set.prepare(0, indices) for indices in trainer.training_set.plan(0)[:2]]
    learner.model.train()
    with Operations() as operations:
        for k, batch in enumerate(batches):
            learner.micro_step(trainer.training_set.inputs(batch), k, 0)
        learner.update(0)
    assert {"convolution_backward", "_fused_adamw_"} <= operations.names
    waiting = {"_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "lift_fresh"}
    assert not waiting & operations.names


WITHOUT_MEMORY = """
import torch
from hmerbench.benchmarks.errors import Lost
from hmerbench.benchmarks.training.cuda_graphs import CudaRecord, own_stream
device = torch.device("cuda:0")
with own_stream(device):
    x = torch.ones(8, device=device)
    try:
        dropped = torch.nn.functional.dropout
        assert CudaRecord()(lambda: dropped(x).sum() + torch.empty(1 << 42, device=device)[0]) is None
    except Lost as lost:
        print(lost)
    else:
        dropped(x).sum().item()
"""


@needs_gpu
def test_a_recording_that_lacks_memory_on_a_gpu_leaves_torch_usable_or_says_so():
    """In a process of its own: torch 2.11 is of no more use after that."""
    subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], check=True, cwd=ROOT, timeout=120)


@needs_gpu
@pytest.mark.parametrize(("bf16", "fixed"), [(False, 0.0), (True, 0.0), (False, 0.5)])
def test_replays_on_a_gpu_train_what_eager_steps_do(archive, tmp_path, monkeypatch, bf16, fixed):
    config, team = tiny_config(archive, GRAPHS), Team(0, 1, torch.device("cuda:0"))
    config = config.changed({"training": {"bf16": bf16, "recalibrate": 2, "fixed_statistics": fixed}})
    config = config.model_copy(update={"augmentation": None})  # few shapes
    learner, weights = trained(config, archive, tmp_path / "replayed", team)
    assert learner.replays is not None and learner.replays.recorded
    monkeypatch.setenv("HMERBENCH_GRAPHS", "0")
    _, expected = trained(config, archive, tmp_path / "eager", team)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-2 if bf16 else 1e-4, atol=1e-3 if bf16 else 1e-5)
