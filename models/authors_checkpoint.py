"""Import of the authors' Lightning checkpoints, without executing any code in them."""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hmerbench.models.comer import CoMER
from hmerbench.models.files import CheckpointError, one_line
from hmerbench.models.settings import CoMERSettings
from hmerbench.models.stored_pickle import Stored, StoredPickle
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import with_weights

PREFIX = "comer_model."  # of the network's tensors; a checkpoint holds others, too


def import_lightning(ckpt: Path) -> CoMER:
    """The network in a Lightning checkpoint of the authors.

    Sizes are inferred from tensor shapes, and what these leave open (dropout, which of the two coverages, heads if
    there is no coverage) from the stored hyperparameters. Nothing in the file is executed. Raises CheckpointError for
    unreadable files and for missing, unexpected or mis-shaped tensors.
    """
    if not ckpt.is_file():
        raise CheckpointError(f"{ckpt}: there is no such file; give the path of a Lightning checkpoint (.ckpt)")
    if not zipfile.is_zipfile(ckpt):
        raise CheckpointError(f"{ckpt}: damaged, or not a checkpoint of torch 1.6 or later; download it again")
    try:
        with StoredPickle(ckpt) as file:
            return _network(ckpt, file)
    except CheckpointError:
        raise
    except Exception as error:  # a broken or hostile pickle can raise anything
        raise CheckpointError(f"{ckpt}: unreadable checkpoint ({one_line(error)}); download it again") from None


def _network(ckpt: Path, file: StoredPickle) -> CoMER:
    def mapping(key: str) -> Mapping[Any, Any]:
        value = file.content.get(key) if isinstance(file.content, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    stored = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in mapping("state_dict").items()
        if isinstance(name, str) and name.startswith(PREFIX) and isinstance(tensor, Stored)
    }
    if not stored:
        raise CheckpointError(f"{ckpt}: no tensors named {PREFIX}*; give a checkpoint of the authors' CoMER")
    try:
        settings = _infer_settings(stored, mapping("hyper_parameters"))
        classes = stored["decoder.proj.weight"].shape[0]
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{ckpt}: not a CoMER network, as no sizes can be inferred ({one_line(error)})") from None
    if classes != len(Vocabulary()):
        raise CheckpointError(f"{ckpt}: has {classes} classes, not the {len(Vocabulary())} of models/dictionary.txt")
    return with_weights(ckpt, lambda: CoMER(settings), file.tensors(stored))


def _infer_settings(state: Mapping[str, Stored], hyperparameters: Mapping[str, Any]) -> CoMERSettings:
    """The settings, from tensor shapes and the checkpoint's hyperparameters."""

    def count(pattern: str) -> int:
        return len({match[0] for name in state if (match := re.match(pattern, name))})

    layers = tuple(count(rf"encoder\.model\.dense{block}\.\d+\.") for block in (1, 2, 3))
    names = [field.name for field in fields(CoMERSettings)]
    known: dict[str, Any] = {
        name: hyperparameters[name] for name in names if isinstance(hyperparameters.get(name), int | float)
    }
    known |= {
        "d_model": state["encoder.feature_proj.weight"].shape[0],
        "growth_rate": state["encoder.model.dense1.0.conv2.weight"].shape[0],
        "num_layers": layers[0] if len(set(layers)) == 1 else layers,
        "num_decoder_layers": count(r"decoder\.model\.layers\.\d+\."),
        "dim_feedforward": state["decoder.model.layers.0.linear1.weight"].shape[0],
    }
    conv = state.get("decoder.model.arm.conv.weight")
    if conv is None:
        known["cross_coverage"] = known["self_coverage"] = False
        return CoMERSettings(**known)
    known["dc"], known["nhead"] = conv.shape[0], state["decoder.model.arm.proj.weight"].shape[0]
    if conv.shape[1] == 2 * known["nhead"]:
        known["cross_coverage"] = known["self_coverage"] = True
    elif known.get("cross_coverage") == known.get("self_coverage"):
        raise ValueError("one coverage, and no hyperparameter says which")
    return CoMERSettings(**known)
