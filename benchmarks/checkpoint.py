"""Checkpoints: everything a run needs to go on bit for bit, in two files that change together.

`checkpoint.safetensors` holds every tensor (weights, buffers, averaged weights, optimizer state) and, in its header,
the plain state (epoch, position in the epoch, schedule, best score, configuration digest) with a checksum over it all.
Random numbers need no state: they are all keyed by (seed, epoch, sample) or (seed, step). Nothing is ever unpickled.
"""

import errno
import fcntl
import io
import json
import os
import socket
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.errors import UserError
from models.weights import CheckpointError, packed, unpacked

FORMAT = "hmerbench-checkpoint-2"


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the target, makes it durable, then replaces it: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def zipped(files: Mapping[str, str]) -> bytes:
    """A zip of text files by name: the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return packed.getvalue()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """While this lasts no other process trains in `folder`; raises UserError where one does.

    The lock is the open file's, so one that is killed lets go of it; where a file system has no locks, none is held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".training", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                file.seek(0)
                who = file.read() or "another process"
                raise UserError(
                    f"{folder}: {who} trains in it; wait until that ends, or choose another folder"
                ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def save_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Replaces the run's checkpoint; `state` (JSON-like) lies inside the same file, so the two cannot disagree."""
    write_atomically(folder / "checkpoint.safetensors", packed(tensors, {"format": FORMAT, "state": state}))
    write_atomically(folder / "checkpoint.json", json.dumps(state, indent=1) + "\n")


def load_checkpoint(folder: Path, digest: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The tensors and state of the run's checkpoint, or None where there is none.

    Raises UserError when the file is damaged or belongs to another configuration.
    """
    path = folder / "checkpoint.safetensors"
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


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's tensors, one name each: optimizer.<parameter number>.<key>."""
    entries = optimizer.state_dict()["state"].items()
    return {
        f"optimizer.{number}.{key}": torch.as_tensor(value)
        for number, values in entries
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
