"""Recognition: approximate joint search over the images of a split, into CROHME's text form and scores beside it."""

import time
from collections.abc import Iterable, Iterator

import torch
from rich.progress import track

from benchmarks.config import Config, check_folder
from benchmarks.data.archive import Archive
from benchmarks.data.batching import Batch, evaluation_batches
from benchmarks.data.samples import Sample, evenly
from benchmarks.environment import best_device
from benchmarks.errors import UserError, shortage
from benchmarks.files import zipped
from benchmarks.printing import aside
from benchmarks.runs.folder import RunFolder
from evaluation.scoring.inputs import prediction_file
from evaluation.symlg import Unconverted, from_latex
from models import CoMER, Vocabulary
from models.inference.beam_search import joint_search
from models.inference.folded_decoder import FoldedNetwork
from models.inference.options import Hypothesis, SearchOptions
from models.weights import load_weights

QUIET_SECONDS = 15  # between two lines on progress, where there is no terminal for a bar
SCORES = ("score", "forward", "reverse", "direction")  # of a hypothesis
Found = dict[str, tuple[tuple[str, ...], list[Hypothesis]]]  # id -> (tokens of the best hypothesis, all, best first)


def predict(run: RunFolder, archive: Archive, splits: Iterable[str]) -> None:
    """Writes predictions/<split>.zip (ID.txt: `%ID`, newline, `$tokens$`) and <split>.jsonl (n-best, scores). Images
    that the protocol skips get no prediction and count as errors. Raises UserError without trained weights and for a
    run of other settings."""
    config = run.settings
    check_folder(config, run.path)
    if not run.has_weights:
        raise UserError(f"{run.weights}: no trained weights; train this run first")
    device = best_device()
    model = load_weights(run.weights, config.model).to(device).eval()
    for split in splits:
        samples = evenly(archive.samples(split), config.search.limit)
        found = recognize(model, config, samples, device, split)
        write_predictions(run, split, {s.id: found[s.id] for s in samples if s.id in found})


def recognize(model: CoMER, config: Config, samples: list[Sample], device: torch.device, what: str) -> Found:
    """Joint search over `samples`; ids in the order in which they were recognized."""
    decode = Vocabulary().decode
    found = search(model, config, samples, device, what)
    return {name: (tuple(decode(best[0].ids)) if best else (), best) for name, best in found.items()}


def _told(batches: list[Batch], what: str) -> Iterator[Batch]:
    """The batches, with a bar on a terminal, else with a line now and then."""
    if aside.is_terminal:
        yield from track(batches, f"  recognizing {what}", console=aside, transient=True)
        return
    said = time.monotonic()
    for number, batch in enumerate(batches):
        if time.monotonic() - said > QUIET_SECONDS:
            said = time.monotonic()
            aside.print(f"  recognizing {what}: {100 * number // len(batches)} %")
        yield batch


@torch.inference_mode()
def search(
    model: CoMER, config: Config, samples: list[Sample], device: torch.device, what: str | None = None
) -> dict[str, list[Hypothesis]]:
    """The hypotheses of each image: the one to predict, then the others, best first; `what` is named on progress."""
    found: dict[str, list[Hypothesis]] = {}
    batches = evaluation_batches(samples, config, config.search.batch_size, config.search.scales)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.search.bf16):
        network = FoldedNetwork(model)
        for batch in _told(batches, what) if what else batches:
            here = _search(network, batch, config.search.options, device)
            found |= {name: ranked(of_it, config) for name, of_it in zip(batch.ids, here, strict=True)}
    return found


def _search(
    network: FoldedNetwork, batch: Batch, options: SearchOptions, device: torch.device
) -> list[list[Hypothesis]]:
    """The hypotheses of a batch, by halves where a GPU lacks the memory: they stay padded as they were, so they are
    read the same. Raises UserError where it has no room for a single image."""
    try:
        return _at_once(network, batch, options, device)
    except torch.OutOfMemoryError as error:  # which holds on to the search's tensors while it is handled
        lacking = shortage(error)
    size = len(batch.ids)
    height, width = max(mask.shape[1:] for mask in (batch.mask, *(mask for _, mask in batch.other_sizes)))
    if size == 1:
        fix = "CUDA_VISIBLE_DEVICES= (to nothing) searches on the CPU"
        raise UserError(f"{lacking}, to search {batch.ids[0]} ({height} x {width} px); {fix}")
    torch.cuda.empty_cache()
    aside.print(f"{lacking}: {size} images of {height} x {width} px are split in half and searched")
    halves = batch.part(slice(size // 2)), batch.part(slice(size // 2, size))
    return [of_it for half in halves for of_it in _search(network, half, options, device)]


def _at_once(
    network: FoldedNetwork, batch: Batch, options: SearchOptions, device: torch.device
) -> list[list[Hypothesis]]:
    views = [(batch.images, batch.mask), *batch.other_sizes]
    first, *others = [(images.to(device).float() / 255, mask.to(device)) for images, mask in views]
    return joint_search(network, *first, options, others)


def ranked(hypotheses: list[Hypothesis], config: Config) -> list[Hypothesis]:
    """Hypotheses, best first, with the one to predict before the others."""
    for hypothesis in hypotheses if config.search.convertible else ():
        try:
            from_latex(Vocabulary().decode(hypothesis.ids))
        except Unconverted:
            continue
        return [hypothesis, *(h for h in hypotheses if h is not hypothesis)]
    return hypotheses


def write_predictions(run: RunFolder, split: str, found: Found) -> None:
    """Both files of a split, each replaced whole; the zip last, as it says that both are there."""
    decode, rows = Vocabulary().decode, []
    for name, (tokens, hypotheses) in sorted(found.items()):
        nbest = [{"tokens": " ".join(decode(h.ids)), **{key: getattr(h, key) for key in SCORES}} for h in hypotheses]
        score = hypotheses[0].score if hypotheses else None
        rows.append({"id": name, "tokens": " ".join(tokens), "score": score, "nbest": nbest})
    texts = {f"{name}.txt": prediction_file(name, tokens) for name, (tokens, _) in found.items()}
    run.write(f"predictions/{split}.jsonl", rows)
    run.write(f"predictions/{split}.zip", zipped(texts))
