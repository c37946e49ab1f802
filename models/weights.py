"""Weights files: safetensors with the network, its settings and its words in the header."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from hmerbench.models.files import CheckpointError, one_line, parse_json
from hmerbench.models.network import Network, build
from hmerbench.models.settings import NetworkSettings, of_its_network, without_former
from hmerbench.models.vocab import CROHME, SPECIAL, Vocabulary

FORMAT = "hmerbench-weights-1"
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def pack_weights(model: Network) -> bytes:
    """A weights file: the model's tensors, its settings, which name the network, and its words."""
    words = {"vocabulary": model.vocabulary.digest, "words": model.vocabulary.words}
    return pack_tensors(model.state_dict(), {"format": FORMAT, "config": asdict(model.settings), **words})


def load_weights(path: Path, settings: NetworkSettings | None = None) -> Network:
    """The model in a file of `pack_weights`, on the CPU. Files that name no network are older than the others: CoMER's.

    Its words are those in the file. Given `settings` must be those in the file, too. Raises CheckpointError for a
    missing, damaged or foreign file, and for another network or other settings.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such weights file; train the model first or give another path")
    try:
        header, state = read_tensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; make it again") from None
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: this is not a weights file of this suite; give one that training wrote")
    try:
        stored = of_its_network(without_former(dict(header["config"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its configuration is unknown ({one_line(error)}); update this suite") from None
    settings = settings or stored
    if settings.network != stored.network:
        raise CheckpointError(
            f"{path}: these are weights of the network {stored.network}, not {settings.network}; choose the "
            "recipe that they were trained with"
        )
    wanted, found = asdict(settings), asdict(stored)
    different = [key for key in wanted if wanted[key] != found[key]]
    if different:
        changes = ", ".join(f"{key} {found[key]} instead of {wanted[key]}" for key in different)
        raise CheckpointError(f"{path}: has {changes}; choose the recipe it was trained with")
    vocabulary = _words(path, header)
    return with_weights(path, lambda: build(settings, vocabulary), state)


def _words(path: Path, header: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a weights file, which travels with it; the oldest files have CROHME's, by its digest alone."""
    words = header.get("words", CROHME)
    if not isinstance(words, list | tuple) or [*words[:3]] != [*SPECIAL] or {*map(type, words)} != {str}:
        raise CheckpointError(f"{path}: its words are damaged; restore the file")
    vocabulary = Vocabulary(words)
    if header.get("vocabulary") != vocabulary.digest or len(vocabulary.ids) != len(vocabulary):
        raise CheckpointError(f"{path}: its words are not those that it was trained with; restore the file")
    return vocabulary


def with_weights(path: Path, make: Callable[[], AnyModule], state: Mapping[str, Tensor]) -> AnyModule:
    """The network that `make` gives, with the tensors read from `path`; CheckpointError unless names and shapes match
    and all numbers are finite.

    However large its settings are, the network is made no further than the file reaches.
    """
    numbers, modules = sum(tensor.numel() for tensor in state.values()), 100 + 10 * len(state)

    def count(_module: nn.Module, _name: str, part: object) -> None:
        nonlocal numbers, modules
        numbers -= part.numel() if isinstance(part, Tensor) else 0
        modules -= isinstance(part, nn.Module)
        if min(numbers, modules) < 0:
            raise MemoryError

    try:
        with register_module_parameter_registration_hook(count), register_module_module_registration_hook(count):
            model = make()
        model.load_state_dict(state)
    except (RuntimeError, MemoryError, TypeError, ValueError, OverflowError) as error:  # also of impossible sizes
        reason = one_line(
            str(error).partition("state_dict")[2].partition(":")[2] or "its settings describe a larger one"
        )
        raise CheckpointError(f"{path}: they do not fit the network ({reason}); give weights of this one") from None
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
            header = parse_json((file.metadata() or {}).get("hmerbench", "{}"))
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
