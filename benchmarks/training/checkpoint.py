"""Checkpoints: everything needed to resume a run bit for bit, and a readable copy of the plain state.

`checkpoint.safetensors` holds every tensor (weights, buffers, averaged weights, optimizer state) and, in its header,
the plain state (epoch, position in the epoch, schedule, best score, configuration digest) and a checksum over both;
`checkpoint.json` repeats the plain state. Random numbers need no state: all are keyed by (seed, epoch, sample) or
(seed, step). Nothing is ever unpickled.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun
from hmerbench.models.files import CheckpointError
from hmerbench.models.weights import pack_tensors, read_tensors

FORMAT = "hmerbench-checkpoint-3"


def save_checkpoint(run: RunFolder, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Replace the run's checkpoint; tensors and `state` (JSON-like) share one file, so they cannot disagree."""
    run.write("checkpoint.safetensors", pack_tensors(tensors, {"format": FORMAT, "state": state}))
    run.write("checkpoint.json", state)


def load_checkpoint(run: AnyRun, written_as: str = FORMAT) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The tensors and state of the checkpoint in a run's folder, or None without one.

    Raises UserError if the file is damaged, has another format or belongs to another configuration.
    """
    path, digest = run.path / "checkpoint.safetensors", run.settings.digest
    if not path.exists():
        return None
    try:
        header, tensors = read_tensors(path)
    except CheckpointError as error:
        raise UserError(f"{error}; delete it to train this run from the start") from None
    if header.get("format") != written_as:
        raise UserError(f"{path}: no training checkpoint of this version; delete it to train this run from the start")
    state = header["state"]
    if state["digest"] != digest:
        raise UserError(
            f"{path}: belongs to configuration {state['digest']}, not {digest}; choose another folder or delete it"
        )
    return tensors, state


def resumed_in(path: Path, began: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """The environment.json of a training in `path`: `began` (`here` for a new one), with `here` added to `resumed` if
    it goes on elsewhere. Another number of threads is reported, if they compute.

    Raises UserError if a GPU trained it, and the processor would go on with it without having been asked for.
    """
    last = [began, *began.get("resumed", ())][-1]
    if last.get("gpu") and not here.get("gpu") and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        gone = f"trained on {last.get('device', 'a GPU')} so far, and no GPU can be used"
        raise UserError(f"{path}: {gone}; CUDA_VISIBLE_DEVICES= (to nothing) goes on with the processor")
    if here["threads"] != (before := last.get("threads", here["threads"])) and not here.get("gpu"):
        message = f"resumed with {counted(here['threads'], 'thread')} instead of {before}: sums are rounded otherwise"
        err_console.print(f"{path}: {message}, so weights will not be bit for bit the same")
    if not began or all(last.get(key) == here[key] for key in here if key != "started"):
        return {**(began or here)}
    return {**began, "resumed": [*began.get("resumed", ()), here]}


def adopt_training(run: RunFolder) -> Path | None:
    """Copy the finished training of a sibling run that differs only in its search into `run`, and return its path.

    Returns None, and writes nothing, if there is no such run or it is damaged, if the training of `run` has begun (an
    empty history is enough), or if the search takes part in selecting the epoch. Raises UserError if another process
    trains in that folder.
    """
    begun = (run.path / "checkpoint.json").exists() or ((run.path / "history.jsonl").exists() and not run.history)
    if run.settings.select != "last" or begun:
        return None
    for path in sorted(run.path.parent.glob("*/checkpoint.json")):
        other = RunFolder(path.parent)
        with suppress(UserError, CheckpointError, OSError):
            ours, theirs = (
                config.model_dump(mode="json", exclude={"search", "preset"})  # what the weights depend on
                for config in (run.settings, other.settings)
            )
            if ours != theirs or other.settings.search == run.settings.search or not other.trained_here:
                continue
            if checkpoint := load_checkpoint(other):
                read_tensors(other.weights_file)  # raises CheckpointError if damaged
                weights, environment, history = other.weights_file.read_bytes(), other.environment, other.history
                break
    else:
        return None
    with locked(run.path):
        run.write("config.yaml", run.settings.to_yaml())
        run.write("environment.json", environment | {"trained_in": other.path.name})
        run.write("best.safetensors", weights)
        run.write("history.jsonl", history)
        tensors, state = checkpoint
        save_checkpoint(run, tensors, state | {"digest": run.settings.digest})  # an interrupted copy is made again
    err_console.print(f"{run.path}: differs from {other.path} only in its search, so that run's weights are used")
    return other.path


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's tensors, named optimizer.<parameter number>.<key>."""
    return {
        f"optimizer.{number}.{key}": torch.as_tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Restore what `flatten_optimizer` returned. The learning rate is not part of it: the schedule sets it every step.

    Moments get the memory layout of their parameter, as fused optimizers walk over both and ignore strides.
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
