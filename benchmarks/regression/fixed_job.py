"""The fixed job of `make regress`: quick measurements that change if scoring, network or training changes.

- `scores`: scores of fixed predictions. Identical on every machine, so compared for equality.
- `numerics`: outputs of networks with known weights, augmented batches, and the first training steps of every preset.
  Identical up to rounding, so compared within a tolerance.
- `training`: a shortened training run of the recipe and preset TRAINED. It depends on the seed and, over many steps,
  on rounding, so it is compared with the spread of recorded runs (baseline.py).
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
from evaluation.scoring.inputs import read_predictions
from evaluation.scoring.score import NO_FIELDS, evaluate
from evaluation.scoring.tokens import prediction_file
from models import CoMER, SearchOptions, Vocabulary, bidirectional_targets, joint_search
from models.weights import load_weights

TRAINED = ("comer-fusion", "smoke")  # recipe and preset
GATE_SEED = 7  # of the judged run; not among the recorded seeds, so the run is independent of them
COUNTS = ("n", "exact", "le1", "le2", "le3", "structure", "token_exact", "missing", "unconverted")

Values = dict[str, int | float | str]


def scores(embedded_set: Archive, crohme: Archive | None, reproduced: Path) -> Values:
    """Scores of corrupted captions of the embedded set and, given CROHME, of the predictions under `reproduced`: counts
    and a digest of the per-expression table. Also digests of the symLG of ground truth and predictions."""
    truth, captions = embedded_set.ground_truth("test"), embedded_set.captions("test")
    values: Values = {"embedded truth: symLG": _digest(truth)}
    with tempfile.TemporaryDirectory() as folder:
        predictions = Path(folder) / "corrupted.zip"
        corrupted = {id_: corrupt(tokens, seed) for seed, (id_, tokens) in enumerate(captions.items())}
        texts = {f"{id_}.txt": prediction_file(id_, tokens) for id_, tokens in corrupted.items() if tokens}
        predictions.write_bytes(zipped(texts))
        workdir = Path(folder) / "scored"  # run the scripts on this set only: their thousands of files are slow
        values |= _scored("embedded, spoilt captions", predictions, f"{embedded_set.path}:test", workdir)
        for path in sorted(reproduced.glob("*/*/predictions/*.zip")):
            name = f"{path.parts[-4]} {path.parts[-3]}, {path.stem}"
            converted = {id_: _converted(text, id_) for id_, text in read_predictions(path).items()}
            values[f"{name}: symLG"] = _digest(converted)
            if crohme is not None and path.stem in crohme.test_splits:
                values |= _scored(name, path, f"{crohme.path}:{path.stem}")
    return values


def corrupt(tokens: Sequence[str], seed: int) -> list[str]:
    """Add up to three typical recognition errors to a label: replace, delete, double or swap tokens; deterministic."""
    draw, tokens = np.random.default_rng(seed), list(tokens)
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
    result = evaluate(predictions, truth, NO_FIELDS, workdir)
    counts = asdict(result.score)
    values: Values = {f"{name}: {key}": counts[key] for key in COUNTS}
    rows = {row.id: str(list(asdict(row).values())) for row in result.expressions}
    return values | {f"{name}: every expression": _digest(rows)}


def _converted(text: str, id_: str) -> str:
    try:
        return symlg.write(symlg.from_latex(symlg.formula_in(text)), id_)
    except symlg.Unconverted as reason:
        return f"unconverted: {reason}"


def _digest(texts: dict[str, str]) -> str:
    """Twelve hex digits over texts by ID."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]


def numerics() -> Values:
    """All numerics, in a few seconds; on one thread, so that the order of summation is fixed."""
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
    """Teacher-forced loss, a fixed projection of all logits and the mean best score of the joint search, for a small
    float64 network per recipe. Weights do not depend on torch's random numbers."""
    samples = [_random_sample(seed) for seed in range(3)]
    images, mask = pad([sample.image for sample in samples])
    inputs, outputs = bidirectional_targets([Vocabulary().encode(sample.tokens) for sample in samples])
    values: Values = {}
    for recipe in names("recipes"):
        model = known_network(resolve(recipe, "paper", 0))
        with torch.no_grad():
            logits = model(images.double() / 255, mask, inputs)
        nbest = joint_search(model, images.double() / 255, mask, SearchOptions(beam_size=3, max_len=12))
        weights = torch.cos(torch.arange(logits.numel(), dtype=logits.dtype))
        loss = token_loss(logits, outputs)
        values[f"{recipe} network: loss"] = float(loss)
        values[f"{recipe} network: logits"] = float(logits.flatten() @ weights / logits.norm())
        values[f"{recipe} network: search"] = sum(hypotheses[0].score for hypotheses in nbest) / len(nbest)
    return values


def known_network(config: Config) -> CoMER:
    """A small version of the recipe's network; each weight tensor depends only on its name and shape."""
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


def _random_sample(seed: int) -> Sample:
    """A random label with an image of random blocks: unlike typeset images, these do not depend on fonts."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 2, (3 + seed, 6 - seed), dtype=np.uint8) * np.uint8(255)
    tokens = tuple(Vocabulary().decode(draw.integers(3, 113, 5 + seed).tolist()))
    return Sample(f"random_{seed}", tokens, np.kron(blocks, np.ones((12, 14), np.uint8)))


def batch_values(archive: Archive) -> Values:
    """Total ink (in units of one white pixel) and padded pixels of one epoch's batches, for every preset and, without
    augmentation, for BTTR."""
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
    """Training loss in each of three epochs of a tiny float32 network, otherwise with the preset's settings."""
    config = resolve("comer-fusion", preset, 0, archive)
    tiny = {"d_model": 16, "growth_rate": 4, "num_layers": 1, "nhead": 2, "dim_feedforward": 32, "dc": 4}
    training = {"epochs": 3, "bf16": False, "validate_every": 3}
    search = {"beam_size": 1, "max_len": 2, "bf16": False}
    config = config.changed({"model": tiny, "training": training, "search": search})
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run", config)
        train(run, archive)
        history = run.history  # read before the folder is deleted
    return {f"{preset} first steps: loss of epoch {line['epoch']}": line["loss"] for line in history}


def training_config(archive: Archive, seed: int) -> Config:
    """TRAINED, shortened to less than a minute on two cores; float32, as bf16 is slow without hardware support."""
    config = resolve(*TRAINED, seed, archive)
    limit, epochs = (2400, 4) if archive.name == "embedded" else (1200, 3)
    search = {"bf16": False, "limit": 100, "max_len": 24}
    return config.changed({"data.limit": limit, "training": {"epochs": epochs, "bf16": False}, "search": search})


def short_training(archive: Archive, seed: int) -> dict[str, float]:
    """Metrics of the short training with one seed; those held out are teacher-forced, in both directions. ExpRate is
    measured only on the embedded set: on CROHME, it is near 0 after such a short training and would show nothing."""
    config = training_config(archive, seed)
    split = archive.test_splits[0]
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name) / "run", config)
        train(run, archive)
        values = {"training loss": float(run.history[-1]["loss"])}
        samples = [sample for sample in archive.samples(split) if len(sample.tokens) <= config.data.max_tokens]
        batches = evaluation_batches(evenly(samples, 300), config, 32)
        loss, accuracy = teacher_forced(load_weights(run.weights, config.model), batches)
        values |= {"held-out loss": loss, "held-out token accuracy": accuracy}
        if archive.name == "embedded":
            predict(run, archive, [split])
            values["ExpRate"] = score(run, archive, [split])[split].exprate
    return values
