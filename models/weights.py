"""Weights files: safetensors with the configuration and the digest of the vocabulary in the header."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from models.comer import CoMER
from models.config import CoMERConfig
from models.errors import CheckpointError
from models.vocab import Vocabulary

FORMAT = "hmerbench-weights-1"
FREE_KEYS = {"dropout", "encoder_dropout", "mask_padding"}  # may differ between file and configuration


def pack_weights(model: CoMER) -> bytes:
    """A weights file: the model's tensors, its configuration, and the digest of the vocabulary."""
    header = {"format": FORMAT, "config": asdict(model.config), "vocabulary": Vocabulary().digest}
    return pack_tensors(model.state_dict(), header)


def load_weights(path: Path, config: CoMERConfig | None = None) -> CoMER:
    """The model in a file of `pack_weights`, on the CPU.

    A given `config` must have the file's sizes and coverages; its dropout and padding treatment apply. Raises
    CheckpointError for a missing, damaged or foreign file, and for another configuration or vocabulary.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such weights file; train the model first or give another path")
    try:
        header, state = read_tensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remake it") from None
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a weights file of this suite; give one that training wrote")
    try:
        stored = CoMERConfig(**header["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: unknown configuration ({one_line(error)}); update this suite") from None
    config = config or stored
    wanted, found = asdict(config), asdict(stored)
    different = [key for key in wanted if wanted[key] != found[key] and key not in FREE_KEYS]
    if different:
        changes = ", ".join(f"{key} {found[key]} instead of {wanted[key]}" for key in different)
        raise CheckpointError(f"{path}: has {changes}; choose the recipe it was trained with")
    if header.get("vocabulary") != Vocabulary().digest:
        raise CheckpointError(f"{path}: trained with another vocabulary; restore models/dictionary.txt")
    return build(path, config, state)


def build(path: Path, config: CoMERConfig, state: Mapping[str, Tensor]) -> CoMER:
    """The network of `config` with the tensors read from `path`; CheckpointError unless names and shapes match and
    all numbers are finite."""
    model = CoMER(config)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = one_line(str(error).partition(":")[2])
        raise CheckpointError(f"{path}: weights do not fit the network ({reason}); give a file of this one") from None
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{path}: {name} holds numbers that are not finite; train this run again")
    return model


def pack_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """A safetensors file of `tensors`, with `header` (JSON-like) and a checksum over both in its metadata."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    complete = {**header, "sha256": _checksum(plain, header)}
    # a single entry: several are written in random order, and equal weights should give equal files
    return save(plain, {"hmerbench": json.dumps(complete, sort_keys=True)})


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of `pack_tensors`; files older than the checksum are not verified.

    Raises CheckpointError, whose message suggests no fix yet, if the file is damaged or not a safetensors file.
    """
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("hmerbench", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged, or not a safetensors file ({one_line(error)})") from None
    header = header if isinstance(header, dict) else {}
    stored = header.pop("sha256", None)
    if stored is not None and stored != _checksum(tensors, header):
        raise CheckpointError(f"{path}: damaged (its content does not match the checksum in its header)")
    return header, tensors


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    """SHA-256 of the header and of the names, types, shapes and bytes of contiguous tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def one_line(error: object) -> str:
    """The text of an error on one line of at most 200 characters, for use inside a message."""
    if isinstance(error, ValidationError):  # whose own text ends with an address
        first = error.errors()[0]
        error = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    return " ".join(str(error).split())[:200]
