"""Recorded steps: what is recorded when, and that a replay trains what the plain step does."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import benchmarks.training.trainer as training
from benchmarks.config import Config
from benchmarks.data.archive import open_archive
from benchmarks.data.batching import Inputs
from benchmarks.errors import UserError
from benchmarks.performance.bench import with_torch_dropout
from benchmarks.runs.folder import RunFolder
from benchmarks.training.cuda_graphs import EAGER, CudaRecord, Replays, own_stream
from benchmarks.training.optimizer import update_average
from benchmarks.training.team import Team
from benchmarks.training.trainer import Trainer
from tests.helpers.tiny import tiny_archive, tiny_config

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GRAPHS = {
    "training": {
        "epochs": 4,
        "batching": {"order": "shape", "size": 4, "micro_batches": 2},
        "schedule": {"name": "cosine"},
        "optimizer": {"clip": 1.0},
        "graphs": 8,
    },
    "select": "last",
}


def rehearsed(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """As CudaRecord, it does not run the step, and a replay reads and writes the same tensors each time."""
    loss = torch.empty(())
    return lambda: loss.copy_(step()), loss


LACKING = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which 1.20 GiB is free."
)


def inputs(width: int, steps: int = 2) -> Inputs:
    images = torch.randint(256, (1, 1, 4, width), dtype=torch.uint8)
    tokens = torch.randint(5, (2, steps))
    return Inputs(images, images[:, 0] > 128, tokens, tokens + 1)


def test_what_is_recorded_and_when():
    weight, recorded = torch.ones((), requires_grad=True), []

    def step(batch: Inputs, first: bool) -> Tensor:
        loss = weight * (batch.images.float().sum() + batch.tokens.sum() + torch.rand(()) + 1000 * first)
        loss.backward()
        return loss.detach()

    def record(step):
        recorded.append(step)
        return rehearsed(step)

    replays = Replays(step, record, limit=2)

    def both(batch: Inputs, first: bool, seed: int) -> None:
        """The replay, or what stands for it, against the plain step: loss and gradient."""
        results = []
        for way in (replays, lambda batch, first, seed: (torch.manual_seed(seed), step(batch, first))[1]):
            weight.grad = torch.zeros(())
            results.append((way(batch, first, seed), weight.grad.clone()))
        assert results[0] == results[1]

    for seed in range(EAGER):
        both(inputs(8), True, seed)
    assert not recorded
    for seed in range(3):
        both(inputs(8), True, seed)
    assert len(recorded) == 1  # other images of the same shape were read
    for seed in range(EAGER + 1):
        both(inputs(8), False, seed)  # other statistics are another recording
    assert len(recorded) == 2
    for seed in range(EAGER + 2):
        both(inputs(12), True, seed)  # no room for a third
    both(inputs(8, steps=3), True, 0)
    assert len(recorded) == 2


def test_a_full_device_records_no_more(capsys):
    asked = []
    replays = Replays(lambda batch, first: batch.tokens.sum(), lambda step: asked.append(step), limit=5)
    for _ in range(EAGER + 3):
        batch = inputs(8)
        assert replays(batch, True, 0) == batch.tokens.sum()
    assert len(asked) == 1
    assert "no memory for more than 0 recorded steps" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    return tiny_archive(tmp_path_factory.mktemp("tiny"))


def weights(config: Config, archive: Path, folder: Path, team: Team) -> tuple[Trainer, dict[str, Tensor]]:
    trainer = Trainer(RunFolder(folder, config), open_archive(archive), team)
    trainer.run()
    return trainer, trainer.model.state_dict()


def test_replays_train_what_steps_do(archive, tmp_path, monkeypatch):
    config = tiny_config(archive, GRAPHS).model_copy(update={"augmentation": None})  # few shapes
    team = Team(0, 1, torch.device("cpu"))
    eager, expected = weights(config, archive, tmp_path / "eager", team)
    assert eager.replays is None
    monkeypatch.setattr(training, "recorder", lambda team: rehearsed)
    trainer, found = weights(config, archive, tmp_path / "replayed", team)
    assert trainer.replays is not None
    assert sum(trainer.replays.seen[key] - EAGER for key in trainer.replays.replays) > 8
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_recordings_make_room_for_a_step(archive, tmp_path, monkeypatch, capsys):
    """A step that runs out of memory halfway is done again without recordings, to the weights of a plain training."""
    config = tiny_config(archive, GRAPHS).model_copy(update={"augmentation": None})
    team, real, made = Team(0, 1, torch.device("cpu")), Trainer._gradients, []
    _, expected = weights(config, archive, tmp_path / "eager", team)

    def scarce(self: Trainer, batch: Inputs, first: bool) -> Tensor:
        loss = real(self, batch, first)
        if not made and self.replays is not None and len(self.replays.replays) == 3 and not first:
            made.append(self.state.step)
            raise LACKING  # with half of the step's gradients added
        return loss

    monkeypatch.setattr(training, "recorder", lambda team: rehearsed)
    monkeypatch.setattr(Trainer, "_gradients", scarce)
    trainer, found = weights(config, archive, tmp_path / "scarce", team)
    assert made and made[0] > 0 and trainer.replays is not None and not trainer.replays.replays
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    said = " ".join(capsys.readouterr().err.split())
    assert "CUDA out of memory. Tried to allocate 2.00 GiB: 3 recorded steps are given up for it" in said


def test_a_batch_too_large_names_the_setting(archive, tmp_path, monkeypatch):
    def scarce(*_) -> Tensor:
        raise LACKING

    monkeypatch.setattr(Trainer, "_gradients", scarce)
    with pytest.raises(UserError, match=r"2\.00 GiB; with training\.batching\.pixels or size halved"):
        weights(tiny_config(archive, GRAPHS), archive, tmp_path, Team(0, 1, torch.device("cpu")))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=needs_gpu)])
def test_a_replay_is_the_step_on_other_inputs(archive, tmp_path, device, bf16):
    """Two shapes by turns, each with new images, labels, dropout: loss and gradients against the plain step's."""
    ways = {"training": GRAPHS["training"] | {"bf16": bf16}, "select": "last"}
    team = Team(0, 1, torch.device(device))
    trainer = Trainer(RunFolder(tmp_path, tiny_config(archive, ways)), open_archive(archive), team)
    trainer.model.train()
    record = rehearsed if device == "cpu" else CudaRecord()
    draw = torch.Generator().manual_seed(7)

    def drawn(width: int, steps: int) -> Inputs:
        images = torch.randint(256, (4, 1, 32, width), dtype=torch.uint8, generator=draw)
        tokens = torch.randint(3, 8, (8, steps), generator=draw)
        mask = torch.zeros(4, 32, width, dtype=torch.bool)
        return Inputs(*(tensor.to(device) for tensor in (images, mask, tokens, tokens.roll(1, 1))))

    def gradients(way: Callable[[], Tensor]) -> list[Tensor]:
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        loss = way()
        return [loss, *(parameter.grad.clone() for parameter in trainer.model.parameters())]  # type: ignore[union-attr]

    with own_stream(team.device):
        trainer.replays = replays = Replays(trainer._gradients, record, limit=8)
        results = []
        for seed in range(8):
            for shape in ((32, 4), (64, 6)):
                batch = drawn(*shape)
                found = gradients(lambda batch=batch, seed=seed: replays(batch, True, seed))

                def plain(batch=batch, seed=seed) -> Tensor:
                    torch.manual_seed(seed)
                    return trainer._gradients(batch, True)

                results.append((found, gradients(plain)))
    assert len(replays.replays) == 2 and min(replays.seen.values()) == 8 > EAGER + 4
    near = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-2, "atol": 1e-3} if bf16 else {}
    for found, expected in results:
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **near)  # type: ignore[arg-type]
    losses = [float(found[0]) for found, _ in results]
    assert len(set(losses)) == len(losses)  # every batch was another


def test_recording_leaves_the_allocator_alone(monkeypatch):
    """Emptying its cache before every recording has each step after it ask the driver for memory again."""
    done: list[str] = []
    free, ends = 80, True

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            done.append(f"begin {pool} {capture_error_mode}")

        def capture_end(self):
            done.append("end")
            if not ends:
                raise RuntimeError("the recording was invalidated")

        def replay(self):
            done.append("replay")

    known = {
        "CUDAGraph": Graph, "graph_pool_handle": lambda: "pool", "synchronize": lambda: None,
        "mem_get_info": lambda: (free, 100), "memory_reserved": lambda: 30, "memory_allocated": lambda: 25,
        "empty_cache": lambda: done.append("emptied"),
    }  # fmt: skip
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, value)
    record = CudaRecord()
    recorded = record(lambda: torch.tensor(3.0))
    assert recorded
    recorded[0]()
    assert done == ["begin pool thread_local", "end", "replay"]

    def fails() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(UserError, match=r"cannot be recorded \(operation not permitted .*; set training\.graphs: 0"):
        record(fails)
    assert done[-1] == "end"  # or nothing could run on this stream any more

    def scarce() -> Tensor:
        raise LACKING

    assert record(scarce) is None
    ends = False  # as is common after it
    assert record(scarce) is None
    free = 19  # and 5 that the allocator holds: less than a quarter
    assert record(lambda: torch.tensor(3.0)) is None


class Operations(TorchDispatchMode):
    """Notes what is called, forwards and backwards."""

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


@pytest.mark.parametrize("mask_padding", [False, True])
def test_a_step_reads_nothing_back(archive, tmp_path, mask_padding):
    """On a GPU any of these would make the host wait for it."""
    ways = {"training": {"resident": True, "average": 0.9, "batching": {"order": "shape"}}}
    ways |= {"model": {"mask_padding": mask_padding}, "augmentation": {"elastic": 1.0, "thickness": 0.5}}
    ways["training"] |= {"optimizer": {"name": "adamw", "clip": 1.0}, "schedule": {"name": "cosine"}}
    config = tiny_config(archive, ways)
    trainer = Trainer(RunFolder(tmp_path, config), open_archive(archive), Team(0, 1, torch.device("cpu")))
    with_torch_dropout(trainer.model)  # as a GPU has it; the CPU's own draws on the host
    drawn = [trainer.set.prepare(0, indices) for indices in trainer.set.plan(0)[:2]]
    trainer.model.train()
    with Operations() as operations:
        for k, batch in enumerate(drawn):
            trainer.micro_step(batch, k)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        update_average(trainer.average, trainer.model, 0.9, trainer.state.step)
    assert {"convolution_backward", "index", "_fused_adamw_"} <= operations.names
    waiting = {"_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "lift_fresh"}
    assert not waiting & operations.names


@needs_gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gpu_replays_what_it_does(archive, tmp_path, monkeypatch, bf16):
    config, team = tiny_config(archive, GRAPHS), Team(0, 1, torch.device("cuda:0"))
    config = config.changed({"training.bf16": bf16})
    trainer, found = weights(config, archive, tmp_path / "replayed", team)
    assert trainer.replays is not None
    assert trainer.replays.replays
    monkeypatch.setattr(training, "recorder", lambda team: None)
    _, expected = weights(config, archive, tmp_path / "eager", team)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-2 if bf16 else 1e-4, atol=1e-3 if bf16 else 1e-5)
