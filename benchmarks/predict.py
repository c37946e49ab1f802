"""Recognition: approximate joint search over the images of a split, into CROHME's text form and scores beside it."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.checkpoint import write_atomically, zipped
from benchmarks.config import Config
from benchmarks.data.batching import Batch, evaluation_batches
from benchmarks.data.crohme import Archive, Sample, evenly
from benchmarks.errors import UserError
from evaluation.symlg import Unconverted, from_latex
from models import CoMER, Vocabulary
from models.interchange import load_weights
from models.joint_search import Hypothesis, joint_search

Found = dict[str, tuple[tuple[str, ...], list[Hypothesis]]]  # id -> (tokens of the best hypothesis, all, best first)


def predict(config: Config, archive: Archive, folder: Path, splits: Iterable[str]) -> None:
    """Writes predictions/<split>.zip (ID.txt: `%ID`, newline, `$tokens$`) and <split>.jsonl (n-best, scores).

    Images that the protocol skips get no prediction and count as errors. Raises UserError without trained weights.
    """
    weights = folder / "best.safetensors"
    if not weights.exists():
        raise UserError(f"{weights}: no trained weights; train this run first")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_weights(weights, config.model).to(device).eval()
    for split in splits:
        samples = evenly(archive.samples(split), config.search.limit)
        found = recognise(model, config, samples, device, split)
        write_predictions(folder / "predictions", split, {s.id: found[s.id] for s in samples if s.id in found})


@torch.inference_mode()
def recognise(model: CoMER, config: Config, samples: list[Sample], device: torch.device, what: str) -> Found:
    """Joint search over `samples`; ids in the order in which they were recognised."""
    found: dict[str, list[Hypothesis]] = {}
    size, scales = config.search.batch_size, config.search.scales
    batches = [batch for scale in scales for batch in evaluation_batches(samples, config, size, scale)]
    for batch in track(batches, f"  recognising {what}", console=Console(stderr=True), transient=True):
        for name, hypotheses in zip(batch.ids, search(model, config, batch, device), strict=True):
            found.setdefault(name, []).extend(hypotheses)
    decode = Vocabulary().decode
    ordered = {name: ranked(hypotheses, config) for name, hypotheses in found.items()}
    return {name: (tuple(decode(best[0].ids)) if best else (), best) for name, best in ordered.items()}


def search(model: CoMER, config: Config, batch: Batch, device: torch.device) -> list[list[Hypothesis]]:
    images = batch.images.to(device).float() / 255
    with torch.autocast(device.type, torch.bfloat16, enabled=config.search.bf16):
        return joint_search(model, images, batch.mask.to(device), config.search.options)


def ranked(hypotheses: list[Hypothesis], config: Config) -> list[Hypothesis]:
    """What was found of an image, at all scales: the one to predict, then the others, best first."""
    best_first = sorted(hypotheses, key=lambda h: -h.score)
    if config.search.convertible:
        decode = Vocabulary().decode
        for hypothesis in best_first:
            try:
                from_latex(decode(hypothesis.ids))
            except Unconverted:
                continue
            return [hypothesis, *(h for h in best_first if h is not hypothesis)]
    return best_first


def write_predictions(folder: Path, split: str, found: Found) -> None:
    """Both files of a split, each replaced whole; the zip last, as it says that both are there."""
    vocabulary = Vocabulary()
    rows = []
    for name, (tokens, hypotheses) in sorted(found.items()):
        nbest = [
            {
                "tokens": " ".join(vocabulary.decode(list(h.ids))),
                "score": h.score,
                "forward": h.forward,
                "reverse": h.reverse,
                "direction": h.direction,
            }
            for h in hypotheses
        ]
        score = hypotheses[0].score if hypotheses else None
        rows.append(json.dumps({"id": name, "tokens": " ".join(tokens), "score": score, "nbest": nbest}) + "\n")
    texts = {f"{name}.txt": f"%{name}\n${' '.join(tokens)}$" for name, (tokens, _) in found.items()}
    write_atomically(folder / f"{split}.jsonl", "".join(rows))
    write_atomically(folder / f"{split}.zip", zipped(texts))
