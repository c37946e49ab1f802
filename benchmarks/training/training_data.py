"""The training and validation data of a run."""

from collections import Counter

import torch

from hmerbench.benchmarks.config import Config, Data
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import TrainingSet
from hmerbench.benchmarks.data.exchange import exchanged
from hmerbench.benchmarks.data.samples import Sample, evenly, split_heldout, with_ink
from hmerbench.benchmarks.data.sub_expressions import sub_expressions
from hmerbench.benchmarks.data.substitution import Substitution
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.models.network import Network


def training_data(
    config: Config,
    archive: Archive,
    samples: list[Sample] | None,
    device: torch.device,
    network: Network | None = None,
) -> tuple[TrainingSet, list[Sample]]:
    """The training set, and the samples on which weights are selected (none if the last epoch's are taken).

    `samples` replace the archive's training set. Only with a `network`, which has targets of its own, does the training
    set make batches. Raises UserError if nothing is left to train on.
    """
    if samples is None:
        samples = evenly(archive.samples("train", config.data.max_area), config.data.limit)
    validation: list[Sample] = []
    if config.select == "heldout":
        samples, validation = split_heldout(samples, config.heldout, config.seed)
    elif config.select != "last":
        validation = archive.samples(config.select, config.data.max_area)
    substitution = None
    if config.data.needs_ink:  # only for training samples: held-out ones must not leak into the training
        if config.data.ink != archive.ink_digest:
            raise UserError(f"{archive.ink.path}: the run has other pen strokes (their digests differ); restore those")
        samples = with_ink(samples, archive.ink)
        substitution = Substitution(samples, config.data.substitution) if config.data.substitution else None
        # nor may a formula that is held out come back as a part of another, or put together from two;
        # substituted symbols may still spell one
        held = {tuple(tokens) for tokens in archive.captions("train").values()} - {sample.tokens for sample in samples}
        made = sub_expressions(samples, config.data.sub_expressions) + exchanged(samples, config.data.exchanged)
        samples += [sample for sample in made if sample.tokens not in held]
    if network is not None:
        samples = _learnable(samples, network)
        _tell_left_out(samples, config.data)
    training_set = TrainingSet(samples, config, device, substitution, network)
    if not training_set.samples:
        limits = "lower heldout, or raise data.max_area or data.max_tokens"
        raise UserError(f"{archive.path}: no training expression is left to train on; {limits}")
    return training_set, validation


def _learnable(samples: list[Sample], network: Network) -> list[Sample]:
    """Those that the network can learn from; the others are counted in a line of the terminal."""
    reasons = [network.unfit(sample.tokens) for sample in samples]
    if unfit := Counter(filter(None, reasons)):
        counts = ", ".join(f"{reason} ({count})" for reason, count in unfit.most_common())
        err_console.print(f"left out of {counted(len(samples), 'training expression')}: {counts}")
    return [sample for sample, reason in zip(samples, reasons, strict=True) if reason is None]


def _tell_left_out(samples: list[Sample], data: Data) -> None:
    """Count in a line of the terminal what the limits of the settings leave out, if anything."""
    large = sum(sample.image.size > data.max_area for sample in samples)
    long = sum(len(sample.tokens) > data.max_tokens for sample in samples if sample.image.size <= data.max_area)
    counts = {f"data.max_area of {data.max_area:,} px": large, f"data.max_tokens of {data.max_tokens}": long}
    if large + long:
        reasons = ", ".join(f"{count:,} above {what}" for what, count in counts.items() if count)
        err_console.print(f"training on {len(samples) - large - long:,} of {len(samples):,} expressions ({reasons})")
