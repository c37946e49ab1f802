"""What presets and recipes set, and what becomes of it over a whole training and in the first steps, for the fixed job.

The first steps shorten a training and the known networks are small: other items are at the presets' own values.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

from hmerbench.benchmarks import language_settings as languages
from hmerbench.benchmarks.config import FILLED_IN, Config, Training
from hmerbench.benchmarks.data import augmentation, batching, ink, new_expressions, samples
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.regression_gate import Values
from hmerbench.benchmarks.resolve import names, read_named, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import flat
from hmerbench.benchmarks.training.learner import teacher_forced
from hmerbench.benchmarks.training.optimizer import average_decay, set_rate, update_average
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.network import build
from hmerbench.models.weights import load_weights

CONSTANTS = {  # settings of what is generated and held out that no preset changes
    "augmentation": (augmentation, "LOW", "HIGH", "WIDE", "THICKER", "THINNER"),
    "batching": (batching, "CELL", "STEPS", "SPREAD", "STRETCH", "COARSE_CELL", "COARSE_STRETCH", "COARSE_STEPS"),
    "exchange": (new_expressions, "TRIES", "MAX_TOKENS", "TALLER"),
    "ink": (ink, "MARGIN", "MAX_SIDES"),
    "samples": (samples, "HELD_OUT", "HELD_OUT_SEED"),
    "sub_expressions": (new_expressions, "SYMBOL_HEIGHT", "MAX_ENLARGEMENT"),
    "substitution": (augmentation, "PROPORTION_TOLERANCE", "MAX_INSTANCES", "LINE_THICKNESS"),
}
LATE = 1_000_000  # a step by which averaged weights have long reached their decay


def preset_values() -> Values:
    """Settings of every preset and recipe, and those that are constants; sizes of networks, and schedules."""
    values: Values = {}
    for preset in names("presets"):
        config = resolve("comer-fusion", preset, 0)
        values |= _settings(preset, config.model_dump(mode="json"))
        values |= _schedule(preset, config)
    for recipe in names("recipes"):
        config, keys = resolve(recipe, "paper", 0), flat(read_named("recipes", recipe)[1])
        own = {key: value for key, value in flat(config.model_dump(mode="json")).items() if key in keys}
        values |= _settings(recipe, own)
    for recipe in names(languages.RECIPES):
        values |= _settings(recipe, languages.resolve(recipe, 0).model_dump(mode="json"))
    for name, (module, *constants) in CONSTANTS.items():
        values |= _settings(name, {constant: getattr(module, constant) for constant in constants})
    fixed = [Training(epochs=n, fixed_statistics=0.3, recalibrate=1).first_fixed for n in range(1, 13)]
    return values | {"fixed statistics: first epoch of 1 to 12": str(fixed)}


def _settings(name: str, settings: dict[str, Any]) -> Values:
    """The settings by full name; numbers as such."""
    own = {key: value for key, value in flat(settings).items() if key not in FILLED_IN}
    plain = {key: value if type(value) in (int, float, str) else json.dumps(value) for key, value in own.items()}
    return {f"{name} setting: {key}": value for key, value in plain.items()}


def _schedule(preset: str, config: Config) -> Values:
    """Sum of the learning rates of a whole training, taken once an epoch, what the averaged weights keep of a step's,
    and how large the network is."""
    training, weights = config.training, {"weight": torch.zeros(1, 1, dtype=torch.float64)}
    trained = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(trained.weight)
    update_average(weights, trained, average_decay(training.average, LATE))
    optimizer = optim.SGD(trained.parameters())
    progress = (epoch / training.epochs for epoch in range(training.epochs))
    with torch.device("meta"):
        network = build(config.model)
    return {
        f"{preset} schedule: sum of rates": sum(
            set_rate(optimizer, training.schedule, training.optimizer.lr, done) for done in progress
        ),
        f"{preset} schedule: share of a late step in the average": float(weights["weight"]),
        f"{preset} schedule: first epoch with fixed statistics": training.first_fixed,
        f"{preset} network: parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


OTHER_NETWORKS = ("bttr-original medium", "densewap medium", "densewap-td medium")  # than CoMER's
SPECIAL: dict[str, dict[str, Any]] = {  # name -> in what first steps differ from those of `medium`
    # the last two epochs have fixed batch-norm statistics
    "fixed statistics": {"changes": {"training.fixed_statistics": 0.7}},
    # the seed of the committed runs, recalibrated on fewer batches than there are
    "seed 7": {"changes": {"training.recalibrate": 2}, "seed": 7},
    # nothing is read right, so the rate falls after the second epoch and the first one's weights stay the best
    "plateau": {
        "preset": "paper",
        "changes": {"training": {"schedule": {"patience": 0}, "validate_every": 1, "batching": {"micro_batches": 1}}},
    },
    **{name: {"recipe": name.removesuffix(" medium")} for name in OTHER_NETWORKS},
}
FAST_AVERAGE = 0.3  # decay of averaged weights in the first steps: a preset's is reached after 1,000 steps or so


def first_steps(
    archive: Archive,
    preset: str,
    name: str = "",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    recipe: str = "comer-fusion",
) -> Values:
    """Learning rate and loss in three epochs of a tiny float32 network, otherwise with the preset's settings but for
    `changes`, and then its loss in evaluation mode: that of weights averaged and recalibrated as the preset says, but
    for FAST_AVERAGE."""
    config = resolve(recipe, preset, seed, archive)
    training = {"epochs": 3, "bf16": False, "validate_every": 3, "average": config.training.average and FAST_AVERAGE}
    search = {"beam_size": 1, "max_len": 2, "bf16": False}
    config = config.changed({"model": config.model.sizes["nano"], "training": training, "search": search})
    config = config.changed(changes or {})
    name = f"{name or preset} first steps"
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run", config)
        train(run, archive)
        values: Values = {}
        for line in run.history:
            values[f"{name}: rate of epoch {line['epoch']}"] = line["lr"]
            values[f"{name}: loss of epoch {line['epoch']}"] = line["loss"]
        batches = evaluation_batches(evenly(archive.samples("train"), 8), config, 8)
        loss, _ = teacher_forced(load_weights(run.weights, config.model), batches)
    return values | {f"{name}: loss of the weights": loss}


def special_steps(archive: Archive, *names: str) -> Values:
    values: Values = {}
    for name in names:
        values |= first_steps(archive, **{"preset": "medium", "name": name, **SPECIAL[name]})
    return values
