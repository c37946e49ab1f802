"""What presets and recipes set, and what becomes of it over a whole training, for the fixed job.

The first steps shorten a training and the known networks are small: these items are at the presets' own values.
"""

import json
from typing import Any

import torch
from torch import nn, optim

from hmerbench.benchmarks import language_settings as languages
from hmerbench.benchmarks.config import FILLED_IN, Config, Training
from hmerbench.benchmarks.data import augmentation, batching, exchange, ink, samples, sub_expressions, substitution
from hmerbench.benchmarks.regression_gate.values import Values
from hmerbench.benchmarks.resolve import names, read_named, resolve
from hmerbench.benchmarks.training.optimizer import average_decay, set_rate, update_average
from hmerbench.benchmarks.yaml_files import flat
from hmerbench.models.network import build

CONSTANTS = {  # settings of what is generated and held out that no preset changes
    augmentation: ("LOW", "HIGH", "WIDE", "THICKER", "THINNER"),
    batching: ("CELL", "STEPS", "SPREAD", "STRETCH", "COARSE_CELL", "COARSE_STRETCH", "COARSE_STEPS"),
    exchange: ("TRIES", "MAX_TOKENS", "TALLER"),
    ink: ("MARGIN", "MAX_SIDES"),
    samples: ("HELD_OUT", "HELD_OUT_SEED"),
    sub_expressions: ("SYMBOL_HEIGHT", "MAX_ENLARGEMENT"),
    substitution: ("PROPORTION_TOLERANCE", "MAX_INSTANCES", "LINE_THICKNESS"),
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
    for module, constants in CONSTANTS.items():
        values |= _settings(module.__name__.rpartition(".")[2], {name: getattr(module, name) for name in constants})
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
