"""The training and validation data of a run, and its batches, which processes may prepare in advance."""

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hmerbench.benchmarks.config import Config, Data
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.augmentation import Substitution
from hmerbench.benchmarks.data.batching import TrainingSet
from hmerbench.benchmarks.data.new_expressions import exchanged, sub_expressions
from hmerbench.benchmarks.data.samples import Sample, hold_out, with_ink
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.benchmarks.runtime import end_with_parent
from hmerbench.models.network import Network

AHEAD, WORKER_SECONDS = 8, 120  # batches that a worker is ahead; how long one may take before it counts as lost


def training_data(
    config: Config, archive: Archive, samples: list[Sample] | None, device: torch.device, network: Network | None = None
) -> tuple[TrainingSet, list[Sample]]:
    """The training set, and the samples on which weights are selected (none if the last epoch's are taken).

    `samples` replace the archive's training set. Only with a `network`, which has targets of its own, does the training
    set make batches. Raises UserError if nothing is left to train on.
    """
    if samples is None:
        samples = archive.samples("train", config.data.max_area, config.data.limit)
    validation: list[Sample] = []
    if config.select == "heldout":
        samples, validation = hold_out(samples, config.heldout, config.seed)
    elif config.select != "last":
        validation = archive.samples(config.select, config.data.max_area)
    substitution = None
    if config.data.needs_ink:  # only for training samples: held-out ones must not leak into the training
        if config.data.ink != archive.inkml_digest:
            raise UserError(
                f"{archive.inkml.path}: the run has other pen strokes (their digests differ); restore those"
            )
        samples = with_ink(samples, archive.inkml)
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


# ------------------------------------------------------------------------------------------------- batches in advance


class Preparation(Dataset[bytes]):
    """The batches of an epoch as `torch.utils.data` asks for them, by their lists of sample numbers."""

    def __init__(self, training_set: TrainingSet, epoch: int):
        self.training_set, self.epoch = training_set, epoch

    def __getitem__(self, indices: Sequence[int]) -> bytes:
        """As bytes, which travel through a pipe: tensors would need shared memory, of which containers have little."""
        return pickle.dumps(self.training_set.prepare(self.epoch, indices), pickle.HIGHEST_PROTOCOL)


def prepared(training_set: TrainingSet, epoch: int, plan: Sequence[Sequence[int]], workers: int) -> Iterator[Any]:
    """`prepare` of each batch of a plan, in order, by `workers` processes, each some batches ahead; without, here.

    Raises UserError if such a process is killed.
    """
    if not workers:
        yield from (training_set.prepare(epoch, indices) for indices in plan)
        return
    batches = Preparation(training_set, epoch)
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=plan,  # pyright: ignore[reportArgumentType] (lists are keys like others)
        num_workers=min(workers, len(plan)),
        prefetch_factor=AHEAD,
        multiprocessing_context="fork",  # they share the samples, and never touch the device
        generator=torch.Generator(),  # or torch's own would move on
        timeout=WORKER_SECONDS,
        worker_init_fn=end_with_parent,  # at once: they have inherited the lock on the run's folder
    )
    try:
        yield from map(pickle.loads, loader)
    except RuntimeError as error:
        if "DataLoader" not in str(error):
            raise
        raise UserError(worker_lost(error)) from error


def worker_lost(error: RuntimeError) -> str:
    """What to do when a process that prepares batches is gone."""
    reason = str(error).splitlines()[0].rstrip(".")
    again = "run the same command again, with --workers 0 if it recurs"
    return f"a process that prepares batches was lost ({reason}); {again}"
