"""Checkpoints: everything a run needs to go on bit for bit, in two files that change together.

`checkpoint.safetensors` holds every tensor (weights, buffers, averaged weights, optimizer state) and, in its header,
the plain state (epoch, position in the epoch, schedule, best score, configuration digest). Random numbers need no
state: they are all keyed by (seed, epoch, sample) or (seed, step). Nothing is ever unpickled.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from benchmarks.errors import UserError

FORMAT = "hmerbench-checkpoint-1"


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


def save_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Replaces the run's checkpoint; `state` (JSON-like) lies inside the same file, so the two cannot disagree."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "state": json.dumps(state)}
    write_atomically(folder / "checkpoint.safetensors", save(plain, header))
    write_atomically(folder / "checkpoint.json", json.dumps(state, indent=1) + "\n")


def load_checkpoint(folder: Path, digest: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The tensors and state of the run's checkpoint, or None where there is none.

    Raises UserError when the file is damaged or belongs to another configuration.
    """
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            state = json.loads(header.get("state", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error}); delete it to train this run from the start") from None
    if header.get("format") != FORMAT:
        raise UserError(f"{path}: not a training checkpoint of this suite; delete it to train this run from the start")
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
    """Gives `flatten_optimizer`'s tensors back. The learning rate is the schedule's and set every step."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
