"""Checkpoints as the authors' programs write them."""

import sys
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hmerbench.models.comer import CoMER


def lightning(path: Path, model: CoMER, **more: Any) -> Path:
    """A checkpoint as Lightning 1.4 writes it: classes as keys, dict-like hyperparameters, optimizer state."""
    module = types.ModuleType("pytorch_lightning_like")
    callback = type("ModelCheckpoint", (), {"__module__": module.__name__})
    attributes = type("AttributeDict", (dict,), {"__module__": module.__name__})
    vars(module).update(ModelCheckpoint=callback, AttributeDict=attributes)
    hyperparameters = {key: value for key, value in asdict(model.settings).items() if key != "network"}
    parameters = list(model.parameters())
    content = {
        "epoch": 151,
        "global_step": 57151,
        "pytorch-lightning_version": "1.4.9",
        "state_dict": {f"comer_model.{name}": tensor for name, tensor in model.state_dict().items()}
        | {"exprate_recorder.total_line": torch.tensor(0.0)},
        "callbacks": {callback: {"best_model_score": torch.tensor(0.6), "object": callback()}},
        "optimizer_states": [{"state": {0: {"momentum_buffer": parameters[0]}}, "param_groups": []}],
        "hyper_parameters": attributes(hyperparameters | {"learning_rate": 0.08, "patience": 20}),
    }
    sys.modules[module.__name__] = module
    try:
        torch.save(content | more, path)
    finally:
        del sys.modules[module.__name__]
    return path
