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
    vocabulary = Vocabulary()
    found: Found = {}
    batches = evaluation_batches(samples, config, config.search.batch_size)
    for batch in track(batches, f"  recognising {what}", console=Console(stderr=True), transient=True):
        for name, hypotheses in zip(batch.ids, _search(model, config, batch, device), strict=True):
            if config.search.convertible:
                hypotheses = convertible_first(hypotheses)
            best = tuple(vocabulary.decode(list(hypotheses[0].ids))) if hypotheses else ()
            found[name] = best, hypotheses
    return found


def convertible_first(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """The best hypothesis that converts to symLG, then the others as they were: what does not convert is an error."""
    decode = Vocabulary().decode
    for rank, hypothesis in enumerate(hypotheses):
        try:
            from_latex(decode(hypothesis.ids))
        except Unconverted:
            continue
        return [hypothesis, *hypotheses[:rank], *hypotheses[rank + 1 :]]
    return hypotheses


def _search(model: CoMER, config: Config, batch: Batch, device: torch.device) -> list[list[Hypothesis]]:
    images = batch.images.to(device).float() / 255
    with torch.autocast(device.type, torch.bfloat16, enabled=config.search.bf16):
        return joint_search(model, images, batch.mask.to(device), config.search.options)


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
