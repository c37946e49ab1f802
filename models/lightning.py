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

from models.comer import CoMER
from models.config import CoMERConfig
from models.errors import CheckpointError
from models.vocab import Vocabulary
from models.weights import fitted, one_line

PREFIX = "comer_model."  # of the network's tensors; the checkpoint has others beside them


def import_lightning(ckpt: Path) -> CoMER:
    """The network in a Lightning checkpoint of the authors'.

    Sizes come from tensor shapes; what these do not tell (dropout, which one of the coverages, heads without
    coverage) from the stored hyperparameters. Nothing the file contains is executed. Raises CheckpointError
    for unreadable files and for missing, unexpected or mis-shaped tensors.
    """
    content = _read(ckpt)
    tensors, told = (
        part if isinstance(content, Mapping) and isinstance(part := content.get(key), Mapping) else {}
        for key in ("state_dict", "hyper_parameters")
    )
    state = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in tensors.items()
        if isinstance(name, str) and name.startswith(PREFIX) and isinstance(tensor, Tensor)
    }
    if not state:
        raise CheckpointError(f"{ckpt}: no tensors named {PREFIX}*; give a checkpoint of the authors' CoMER")
    try:
        config = _configuration(state, told)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{ckpt}: no CoMER network, sizes cannot be told ({one_line(error)})") from None
    if config.vocab_size != len(Vocabulary()):
        raise CheckpointError(f"{ckpt}: {config.vocab_size} classes, the dictionary has {len(Vocabulary())}")
    return fitted(ckpt, config, state)


def _configuration(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> CoMERConfig:
    """From the shapes of the tensors and the hyperparameters that the file tells."""

    def count(pattern: str) -> int:
        return len({match[0] for name in state if (match := re.match(pattern, name))})

    layers = tuple(count(rf"encoder\.model\.dense{block}\.\d+\.") for block in (1, 2, 3))
    known = {f.name: told[f.name] for f in fields(CoMERConfig) if isinstance(told.get(f.name), bool | int | float)}
    known |= {
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
        return CoMERConfig(**known | {"cross_coverage": False, "self_coverage": False})
    known["dc"], known["nhead"] = conv.shape[0], state["decoder.model.arm.proj.weight"].shape[0]
    if conv.shape[1] == 2 * known["nhead"]:
        known["cross_coverage"] = known["self_coverage"] = True
    elif known.get("cross_coverage") == known.get("self_coverage"):
        raise ValueError("one coverage, and no hyperparameter says which")
    return CoMERConfig(**known)


class StandIn:
    """Stands for any class or function a checkpoint names: it does nothing, and keeps the items of dict-like ones."""

    def __new__(cls, *_: object) -> OrderedDict[Any, Any]:
        """A dict, whatever the class would be built from."""
        return OrderedDict()


def _read(ckpt: Path) -> Any:
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
