"""The fixed job of `make regress`: quick measurements that a fault in scoring, network or training cannot leave alone.

- `scores`: predictions that never change, scored. The same on every machine, so compared for equality.
- `numerics`: networks with known weights on known images, augmented batches, the first steps of a training in every
  preset. The same but for rounding, so compared within a tolerance of rounding.
- `training`: the row and preset of TRAINED, shortened. It depends on its seed and, over many steps, on rounding, so
  it is compared with the spread of recorded runs (baseline.py).
"""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.config import Config, names, resolve
from benchmarks.data.archive import Archive, open_archive
from benchmarks.data.batching import TrainingSet, evaluation_batches, pad
from benchmarks.data.samples import Sample, evenly
from benchmarks.data.synthetic import embedded
from benchmarks.files import zipped
from benchmarks.recognition.predict import predict
from benchmarks.runs.folder import RunFolder
from benchmarks.score import score
from benchmarks.training.loss import teacher_forced, token_loss
from benchmarks.training.trainer import train
from evaluation import symlg
from evaluation.scoring.inputs import prediction_file, read_predictions
from evaluation.scoring.score import NO_FIELDS, evaluate
from models import CoMER, SearchOptions, Vocabulary, bidirectional_targets, joint_search
from models.weights import load_weights

TRAINED = ("comer-fusion", "smoke")  # the recipe and preset that are trained
GATE_SEED = 7  # of the training that is judged; none of the recorded seeds, so that it is a new draw
COUNTS = ("n", "exact", "le1", "le2", "le3", "structure", "token_exact", "missing", "unconverted")

Values = dict[str, int | float | str]


def scores(embedded_set: Archive, crohme: Archive | None, reproduced: Path) -> Values:
    """Counts and a digest of the per-expression table for spoilt captions of the embedded set, and, given CROHME, for
    the predictions committed under `reproduced`; digests of what is compared: symLG of truth and predictions."""
    truth, captions = embedded_set.ground_truth("test"), embedded_set.captions("test")
    values: Values = {"embedded truth: symLG": _digest(truth)}
    with tempfile.TemporaryDirectory() as folder:
        predictions = Path(folder) / "spoilt.zip"
        spoilt = {id_: spoil(tokens, number) for number, (id_, tokens) in enumerate(captions.items())}
        texts = {f"{id_}.txt": prediction_file(id_, tokens) for id_, tokens in spoilt.items() if tokens}
        predictions.write_bytes(zipped(texts))
        workdir = Path(folder) / "scored"  # the scripts run here alone: elsewhere their thousands of files cost minutes
        values |= _scored("embedded, spoilt captions", predictions, f"{embedded_set.path}:test", workdir)
        for path in sorted(reproduced.glob("*/*/predictions/*.zip")):
            name = f"{path.parts[-4]} {path.parts[-3]}, {path.stem}"
            converted = {id_: _converted(text, id_) for id_, text in read_predictions(path).items()}
            values[f"{name}: symLG"] = _digest(converted)
            if crohme is not None and path.stem in crohme.test_splits:
                values |= _scored(name, path, f"{crohme.path}:{path.stem}")
    return values


def spoil(tokens: Sequence[str], number: int) -> list[str]:
    """A prediction with up to three errors, as recognition makes them: tokens replaced, lost, doubled or exchanged.
    A fixed function of expression and number."""
    draw, tokens = np.random.default_rng(number), list(tokens)
    for _ in range(draw.integers(4)):
        at = int(draw.integers(len(tokens))) if tokens else 0
        match int(draw.integers(4)):
            case 0:
                tokens[at : at + 1] = ["x"]
            case 1:
                tokens[at : at + 1] = []
            case 2:
                tokens[at:at] = tokens[at : at + 1]
            case _:
                tokens[at : at + 2] = tokens[at : at + 2][::-1]
    return tokens


def _scored(name: str, predictions: Path, truth: str, workdir: Path | None = None) -> Values:
    found = evaluate(predictions, truth, NO_FIELDS, workdir)
    counts = asdict(found.score)
    values: Values = {f"{name}: {key}": counts[key] for key in COUNTS}
    rows = {row.id: str(list(asdict(row).values())) for row in found.expressions}
    return values | {f"{name}: every expression": _digest(rows)}


def _converted(text: str, id_: str) -> str:
    try:
        return symlg.write(symlg.from_latex(symlg.formula_in(text)), id_)
    except symlg.Unconverted as reason:
        return f"unconverted: {reason}"


def _digest(texts: dict[str, str]) -> str:
    """Twelve hex digits over texts by id."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]


def numerics() -> Values:
    """All of the fixed numbers; a few seconds on one thread, on which sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive = open_archive(embedded(Path(folder) / "data.zip", train=64, test=8))
            values = network_values() | batch_values(archive)
            for preset in names("presets"):
                values |= first_steps(archive, preset)
    finally:
        torch.set_num_threads(threads)
    return values


def network_values() -> Values:
    """Of every recipe's network, small, in float64, with weights that do not come from torch's random numbers:
    teacher-forced loss, a fixed projection of all logits, and the scores that joint search gives."""
    samples = [_drawn(number) for number in range(3)]
    images, mask = pad([sample.image for sample in samples])
    inputs, outputs = bidirectional_targets([Vocabulary().encode(sample.tokens) for sample in samples])
    values: Values = {}
    for recipe in names("recipes"):
        model = known_network(resolve(recipe, "paper", 0))
        with torch.no_grad():
            logits = model(images.double() / 255, mask, inputs)
        found = joint_search(model, images.double() / 255, mask, SearchOptions(beam_size=3, max_len=12))
        weights = torch.cos(torch.arange(logits.numel(), dtype=logits.dtype))
        loss = token_loss(logits, outputs)
        values[f"{recipe} network: loss"] = float(loss)
        values[f"{recipe} network: logits"] = float(logits.flatten() @ weights / logits.norm())
        values[f"{recipe} network: search"] = sum(hypotheses[0].score for hypotheses in found) / len(found)
    return values


def known_network(config: Config) -> CoMER:
    """The recipe's network in small; its weights depend on their names alone."""
    small = replace(config.model, d_model=32, growth_rate=6, num_layers=2, nhead=4, dim_feedforward=48, dc=6)
    model = CoMER(small).double().eval()
    for name, tensor in model.state_dict().items():
        draw = np.random.default_rng(list(name.encode()))
        values = draw.standard_normal(tuple(tensor.shape))
        if tensor.ndim > 1:
            values *= 1.5 * (tensor[0].numel() ** -0.5)
        elif name.endswith(("weight", "running_var")):
            values = 1 + 0.3 * np.tanh(values)
        tensor.copy_(torch.from_numpy(np.asarray(values * (0.0 if tensor.dtype == torch.int64 else 1.0))))
    return model


def _drawn(number: int) -> Sample:
    """A fixed image of blocks and a label; nothing of it is typeset, so it needs no font."""
    draw = np.random.default_rng(number)
    blocks = draw.integers(0, 2, (3 + number, 6 - number), dtype=np.uint8) * np.uint8(255)
    tokens = tuple(Vocabulary().decode(draw.integers(3, 113, 5 + number).tolist()))
    return Sample(f"drawn_{number}", tokens, np.kron(blocks, np.ones((12, 14), np.uint8)))


def batch_values(archive: Archive) -> Values:
    """Of an epoch's augmented batches in every preset, and without augmentation (the row BTTR): ink, as whole images
    of it, and padded pixels. The images themselves are the presets' input, so they are in it."""
    values: Values = {}
    samples = archive.samples("train")
    for recipe, preset in [("bttr", "paper"), *(("comer-fusion", preset) for preset in names("presets"))]:
        training = TrainingSet(samples, resolve(recipe, preset, 0, archive))
        batches = [training.batch(1, indices) for indices in training.plan(1)]
        ink = sum(float(batch.images.double().sum()) for batch in batches) / 255
        values[f"{recipe} {preset} batches: ink"] = ink
        values[f"{recipe} {preset} batches: pixels"] = sum(batch.images.numel() for batch in batches)
    return values


def first_steps(archive: Archive, preset: str) -> Values:
    """Mean training loss of three short epochs of a tiny network, in float32, with all else as the preset has it."""
    config = resolve("comer-fusion", preset, 0, archive)
    tiny = {"d_model": 16, "growth_rate": 4, "num_layers": 1, "nhead": 2, "dim_feedforward": 32, "dc": 4}
    training = {"epochs": 3, "bf16": False, "validate_every": 3}
    search = {"beam_size": 1, "max_len": 2, "bf16": False}
    config = config.changed({"model": tiny, "training": training, "search": search})
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run", config)
        train(run, archive)
        history = run.history  # before the folder goes
    return {f"{preset} first steps: loss of epoch {line['epoch']}": line["loss"] for line in history}


def training_config(archive: Archive, seed: int) -> Config:
    """The trained row and preset, shortened: under a minute on two cores. In float32, as bf16 is slow where the
    processor has no unit for it."""
    config = resolve(*TRAINED, seed, archive)
    limit, epochs = (2400, 4) if archive.name == "embedded" else (1200, 3)
    search = {"bf16": False, "limit": 100, "max_len": 24}
    return config.changed({"data.limit": limit, "training": {"epochs": epochs, "bf16": False}, "search": search})


def trained(archive: Archive, seed: int) -> dict[str, float]:
    """What the short training comes to at a seed. ExpRate is near 0 after so short a training on CROHME, where it
    could show nothing; so it is measured on the embedded set alone, by the stages of the main job."""
    config = training_config(archive, seed)
    split = archive.test_splits[0]
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name) / "run", config)
        train(run, archive)
        values = {"training loss": float(run.history[-1]["loss"])}
        values |= held_out(load_weights(run.weights, config.model), config, archive, split)
        if archive.name == "embedded":
            predict(run, archive, [split])
            values["ExpRate"] = score(run, archive, [split])[split].exprate
    return values


def held_out(model: CoMER, config: Config, archive: Archive, split: str) -> dict[str, float]:
    """Mean loss per token and tokens right (percent), given the truth before them, over both directions and at most
    300 expressions that are no longer than those trained on."""
    samples = [sample for sample in archive.samples(split) if len(sample.tokens) <= config.data.max_tokens]
    loss, accuracy = teacher_forced(model, evaluation_batches(evenly(samples, 300), config, 32))
    return {"held-out loss": loss, "held-out token accuracy": accuracy}
