"""Images of CROHME read with committed weights, for the fixed job: what a difference costs in points."""

import tempfile
from pathlib import Path

import torch

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.recognition.predict import recognize
from hmerbench.benchmarks.regression_gate.values import Values
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.metrics import WITHIN
from hmerbench.evaluation.scoring.prediction_lists import tsv
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.weights import load_weights

READER, IMAGES = "comer-fusion/medium-seed7", 14  # of each test set, evenly spaced
COUNTS = ("n", *(metric.count for metric in WITHIN[:3]))
ITEM = f"{READER.replace('/', ' ')} read again: "


def reading_values(crohme: Archive, reproduced: Path) -> Values:
    """How many images the committed weights READER read right, in float32, so that processors hardly differ."""
    run = RunFolder(reproduced / READER)
    config = run.settings.changed({"search.bf16": False})
    model, counts = load_weights(run.weights, config.model).eval(), dict.fromkeys(COUNTS, 0)
    for split in crohme.test_splits:
        samples, truth = evenly(crohme.samples(split), IMAGES), crohme.ground_truth(split)
        found = recognize(model, config, samples, torch.device("cpu"), split)
        with tempfile.TemporaryDirectory() as folder:
            predictions = Path(folder) / f"{split}.tsv"
            predictions.write_text(tsv({id_: tokens for id_, (tokens, _) in found.items()}))
            reference = GroundTruth({s.id: truth[s.id] for s in samples}, {s.id: list(s.tokens) for s in samples})
            score = evaluate(predictions, reference, NO_FIELDS).score
        counts = {name: count + getattr(score, name) for name, count in counts.items()}
    return {f"{ITEM}{name}": count for name, count in counts.items()}


def cost_text(before: Values, now: Values) -> str:
    """What all differences together cost in points of ExpRate; "" where no images were read, or none before."""
    if not (before.keys() & now.keys() >= {f"{ITEM}n", f"{ITEM}exact"}):
        return ""
    n, right, was = (int(values[f"{ITEM}{name}"]) for values, name in ((now, "n"), (now, "exact"), (before, "exact")))
    return (
        f"In points: the committed weights of {READER} read {right} of {n} images of CROHME right, {was} when the "
        f"baseline was recorded: {100 * (right - was) / n:+.1f} points of ExpRate (an image is {100 / n:.1f})."
    )
