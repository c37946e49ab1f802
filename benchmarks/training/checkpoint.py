"""Checkpoints: everything a run needs to go on bit for bit, in two files that change together.

`checkpoint.safetensors` holds every tensor (weights, buffers, averaged weights, optimizer state) and, in its header,
the plain state (epoch, position in the epoch, schedule, best score, configuration digest) with a checksum over it all.
Random numbers need no state: they are all keyed by (seed, epoch, sample) or (seed, step). Nothing is ever unpickled.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.config import Config
from benchmarks.errors import UserError
from benchmarks.runs.folder import RunFolder
from models.errors import CheckpointError
from models.weights import packed, unpacked

FORMAT = "hmerbench-checkpoint-3"


def save_checkpoint(run: RunFolder, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Replaces the run's checkpoint; `state` (JSON-like) lies inside the same file, so the two cannot disagree."""
    run.write("checkpoint.safetensors", packed(tensors, {"format": FORMAT, "state": state}))
    run.write("checkpoint.json", state)


def load_checkpoint(run: RunFolder) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The tensors and state of the run's checkpoint, or None where there is none.

    Raises UserError when the file is damaged or belongs to another configuration.
    """
    path, digest = run.path / "checkpoint.safetensors", run.settings.digest
    if not path.exists():
        return None
    try:
        header, tensors = unpacked(path)
    except CheckpointError as error:
        raise UserError(f"{error}; delete it to train this run from the start") from None
    if header.get("format") != FORMAT:
        raise UserError(f"{path}: no training checkpoint of this version; delete it to train this run from the start")
    state = header["state"]
    if state["digest"] != digest:
        raise UserError(
            f"{path}: belongs to configuration {state['digest']}, not {digest}; choose another folder or delete it"
        )
    return tensors, state


def take_over(run: RunFolder) -> Path | None:
    """Leaves in a new folder the finished training of a run beside it that differs in its search alone, and returns
    that run's path.

    None, and nothing is left, where there is no such run or it is damaged, where the folder has a history, even an
    empty one, and where the search has a say in which epoch is kept.
    """
    if run.settings.select != "last" or (run.path / "history.jsonl").exists():
        return None
    for path in sorted(run.path.parent.glob("*/checkpoint.json")):
        other = RunFolder(path.parent)
        with suppress(UserError, CheckpointError, OSError):
            searched_otherwise = other.settings.search != run.settings.search
            alike = searched_otherwise and _trained_by(other.settings) == _trained_by(run.settings)
            if alike and other.trained and (found := load_checkpoint(other)):
                unpacked(other.weights)  # raises for damaged ones
                weights, environment, history = other.weights.read_bytes(), other.environment, other.history
                break
    else:
        return None
    run.write("config.yaml", run.settings.to_yaml())
    run.write("environment.json", environment | {"trained_in": other.path.name})
    run.write("best.safetensors", weights)
    save_checkpoint(run, found[0], found[1] | {"digest": run.settings.digest})
    run.write("history.jsonl", history)  # the last: without it, a copy that was cut short is made again
    return other.path


def _trained_by(config: Config) -> dict[str, Any]:
    """All that its weights depend on."""
    return config.model_dump(mode="json", exclude={"search", "preset"})


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's tensors, one name each: optimizer.<parameter number>.<key>."""
    return {
        f"optimizer.{number}.{key}": torch.as_tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Gives `flatten_optimizer`'s tensors back. The learning rate is the schedule's and set every step.

    Moments lie in memory as their parameter does: fused optimizers walk over both side by side, whatever their strides.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            parameter = parameters[int(number)]
            if tensor.shape == parameter.shape:
                tensor = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
