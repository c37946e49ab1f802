"""First steps of trainings for the fixed job."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.regression_gate.values import Values
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.teacher_forcing import teacher_forced
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.weights import load_weights

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


def fixed_statistics_steps(archive: Archive) -> Values:
    """First steps of which the last two epochs have fixed batch-norm statistics."""
    return first_steps(archive, "medium", "fixed statistics", {"training.fixed_statistics": 0.7})


def seed_steps(archive: Archive) -> Values:
    """First steps with the seed of the committed runs, recalibrated on fewer batches than there are."""
    return first_steps(archive, "medium", "seed 7", {"training.recalibrate": 2}, seed=7)


def network_steps(archive: Archive) -> Values:
    """First steps of the networks that are not CoMER's."""
    values: Values = {}
    for recipe in ("bttr-original", "densewap", "densewap-td"):
        values |= first_steps(archive, "medium", f"{recipe} medium", recipe=recipe)
    return values


def plateau_steps(archive: Archive) -> Values:
    """First steps that read nothing right, so that the rate falls after the second epoch and the first one's weights
    stay the best."""
    changes = {"training.schedule.patience": 0, "training.validate_every": 1, "training.batching.micro_batches": 1}
    return first_steps(archive, "paper", "plateau", changes)
