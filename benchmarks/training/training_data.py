"""What a run learns from, and what it is judged by on the way."""

import torch

from benchmarks.config import Config
from benchmarks.data.archive import Archive
from benchmarks.data.batching import TrainingSet
from benchmarks.data.on_device import OnDeviceSet
from benchmarks.data.samples import Sample, evenly, split_heldout, with_ink
from benchmarks.data.sub_expressions import sub_expressions
from benchmarks.data.substitution import Substitution
from benchmarks.errors import UserError


def training_data(
    config: Config, archive: Archive, samples: list[Sample] | None, device: torch.device
) -> tuple[TrainingSet, list[Sample]]:
    """The training set, and the samples to select weights on (none where the last ones are taken).

    `samples` take the place of the archive's training set. Raises UserError where nothing is left to train on.
    """
    if samples is None:
        samples = evenly(archive.samples("train"), config.data.limit)
    validation: list[Sample] = []
    if config.select == "heldout":
        samples, validation = split_heldout(samples, config.heldout, config.seed)
    elif config.select != "last":
        validation = archive.samples(config.select)
    substitution, wanted = None, config.training.resident
    if config.data.needs_ink:  # of what is trained on alone: nothing of what is held out
        if config.data.ink != archive.ink_digest:
            raise UserError(f"{archive.ink.path}: not the pen strokes of this run (other digest); give those")
        samples = with_ink(samples, archive.ink)
        substitution = Substitution(samples, config.data.substitution) if config.data.substitution else None
        samples += sub_expressions(samples, config.data.sub_expressions)
    if device.type == "cuda" and not substitution if wanted is None else wanted:
        found = OnDeviceSet(samples, config, device)
    else:
        found = TrainingSet(samples, config, device, substitution)
    if not found.samples:
        raise UserError(f"{archive.path}: no expression of train is left to train on")
    return found, validation
