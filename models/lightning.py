"""The authors' Lightning checkpoints, read without running any code that they hold."""

import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.comer import CoMERConfig
from models.vocab import Vocabulary
from models.weights import CheckpointError, check_names, one_line


def import_lightning(ckpt: Path) -> tuple[CoMERConfig, dict[str, Tensor]]:
    """Configuration and state dict from the authors' Lightning checkpoint (names with `comer_model.`).

    Sizes come from tensor shapes; what these do not tell (dropout, which one of the coverages, heads without
    coverage) from the stored hyperparameters. Nothing the file contains is executed. Raises CheckpointError
    for unreadable files and for missing, unexpected or mis-shaped tensors.
    """
    content = _read_checkpoint(ckpt)
    tensors = content.get("state_dict") if isinstance(content, Mapping) else None
    prefix = "comer_model."
    state = {
        name.removeprefix(prefix): tensor.detach().clone()
        for name, tensor in (tensors.items() if isinstance(tensors, Mapping) else ())
        if isinstance(name, str) and name.startswith(prefix) and isinstance(tensor, Tensor)
    }
    if not state:
        raise CheckpointError(f"{ckpt}: no tensors named {prefix}*; give a checkpoint of the authors' CoMER")
    hyperparameters = content.get("hyper_parameters")
    try:
        config = _infer_config(state, hyperparameters if isinstance(hyperparameters, Mapping) else {})
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{ckpt}: no CoMER network, sizes cannot be told ({one_line(error)})") from None
    if config.vocab_size != len(Vocabulary()):
        raise CheckpointError(f"{ckpt}: {config.vocab_size} classes, the dictionary has {len(Vocabulary())}")
    check_names(ckpt, config, state)
    return config, state


def recipe_of(config: CoMERConfig) -> str:
    """The row of the paper's tables whose network this is; the two of BTTR differ in their training only."""
    names = {
        (False, False): "bttr or bttr-baseline",
        (False, True): "comer-self",
        (True, False): "comer-cross",
        (True, True): "comer-fusion",
    }
    return names[config.cross_coverage, config.self_coverage]


def _infer_config(state: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> CoMERConfig:
    def count(pattern: str) -> int:
        return len({match[0] for name in state if (match := re.match(pattern, name))})

    told = {
        field.name: hyperparameters[field.name]
        for field in fields(CoMERConfig)
        if isinstance(hyperparameters.get(field.name), bool | int | float)
    }
    layers = tuple(count(rf"encoder\.model\.dense{block}\.\d+\.") for block in (1, 2, 3))
    told |= {
        "d_model": state["encoder.feature_proj.weight"].shape[0],
        "growth_rate": state["encoder.model.dense1.0.conv2.weight"].shape[0],
        "num_layers": layers[0] if len(set(layers)) == 1 else layers,
        "num_decoder_layers": count(r"decoder\.model\.layers\.\d+\."),
        "dim_feedforward": state["decoder.model.layers.0.linear1.weight"].shape[0],
        "vocab_size": state["decoder.proj.weight"].shape[0],
        "mask_padding": False,
    }
    conv = state.get("decoder.model.arm.conv.weight")
    if conv is None:
        return CoMERConfig(**told | {"cross_coverage": False, "self_coverage": False})
    told["dc"], told["nhead"] = conv.shape[0], state["decoder.model.arm.proj.weight"].shape[0]
    if conv.shape[1] == 2 * told["nhead"]:
        told["cross_coverage"] = told["self_coverage"] = True
    elif told.get("cross_coverage") == told.get("self_coverage"):
        raise ValueError("one coverage, and no hyperparameter says which")
    return CoMERConfig(**told)


class StandIn:
    """Stands for any class or function a checkpoint names: it does nothing, and keeps the items of dict-like ones."""

    def __new__(cls, *_: object) -> OrderedDict[Any, Any]:
        return OrderedDict()


def _read_checkpoint(ckpt: Path) -> Any:
    """Content of a file of torch.save: plain containers, tensors, and `StandIn` for all else it names.

    torch's own reader for untrusted files (weights_only) runs nothing that it was not told is safe.
    """
    if not ckpt.is_file():
        raise CheckpointError(f"{ckpt}: no such file; give the path of a Lightning checkpoint (.ckpt)")
    if not zipfile.is_zipfile(ckpt):
        raise CheckpointError(f"{ckpt}: damaged or no checkpoint of torch 1.6 or later; download it again")
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(ckpt)
        stand_ins: list[Any] = [(type("StandIn", (StandIn,), {}), name) for name in unknown]
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(ckpt, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a broken or hostile pickle can raise anything
        raise CheckpointError(f"{ckpt}: unreadable checkpoint ({one_line(error)}); download it again") from None
