"""The fixed job of `make regress`: quick measurements that change if scoring, network or training changes.

- `scores`: scores of fixed predictions. Identical on every machine, so compared for equality.
- `numerics`: outputs of networks with known weights, searches, augmented batches, made-up handwriting (handwriting.py)
  with what is substituted and cut out, and the first training steps of every preset, to the averaged and recalibrated
  weights, and of `medium` with fixed statistics. Identical up to rounding, so compared within a tolerance.
- `training`: a shortened training run of the recipe and preset TRAINED. It depends on the seed and, over many steps,
  on rounding, so it is compared with the spread of recorded runs (baseline.py).
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmerbench.benchmarks.config import Config, names, resolve
from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.batching import TrainingSet, evaluation_batches, pad
from hmerbench.benchmarks.data.exchange import exchanged
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.benchmarks.data.sub_expressions import sub_expressions
from hmerbench.benchmarks.data.synthetic import embedded
from hmerbench.benchmarks.recognition.predict import Reader, predict, ranked
from hmerbench.benchmarks.regression_gate.handwriting import handwriting
from hmerbench.benchmarks.regression_gate.language import language_values
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.training.teacher_forcing import teacher_forced
from hmerbench.benchmarks.training.trainer import train
from hmerbench.benchmarks.training.training_data import training_data
from hmerbench.evaluation import symlg
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.prediction_lists import tsv
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.inference.searcher import searcher
from hmerbench.models.network import Network, build
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import load_weights

# for a network that wants formulas
NESTED = r"\frac { x ^ { 2 } } { \sqrt { y _ { i } } } + \sum _ { n = 1 } ^ { k } z"
TRAINED = ("comer-fusion", "smoke")  # recipe and preset
GATE_SEED = 7  # of the judged run; not among the recorded seeds, so the run is independent of them
FAST_AVERAGE = 0.3  # decay of averaged weights in the first steps: a preset's is reached after 1,000 steps or so
COUNTS = ("n", "exact", "le1", "le2", "le3", "structure", "token_exact", "missing", "unconverted")
UNCONVERTED, CONVERTED = (
    Hypothesis(tuple(Vocabulary().encode(label.split())), score, score, 0.0, "l2r")
    for label, score in (("x ^ {", -1.0), ("x ^ { 2 }", -2.0))
)

Values = dict[str, int | float | str]


def scores(embedded_set: Archive, crohme: Archive | None, reproduced: Path) -> Values:
    """Scores of corrupted captions of the embedded set and, given CROHME, of the predictions under `reproduced`: counts
    and a digest of the per-expression table. Also digests of the symLG of ground truth and predictions."""
    truth, captions = embedded_set.ground_truth("test"), embedded_set.captions("test")
    values: Values = {"embedded truth: symLG": _digest(truth)}
    with tempfile.TemporaryDirectory() as folder:
        predictions = Path(folder) / "corrupted.tsv"
        corrupted = {id_: corrupt(tokens, seed) for seed, (id_, tokens) in enumerate(captions.items())}
        predictions.write_text(tsv({id_: tokens for id_, tokens in corrupted.items() if tokens}))
        workdir = Path(folder) / "scored"  # run the scripts on this set only: their thousands of files are slow
        values |= _scored("embedded, spoilt captions", predictions, f"{embedded_set.path}:test", workdir)
        values |= _scored("embedded, spoilt captions, in process", predictions, f"{embedded_set.path}:test")
        for path in sorted(reproduced.glob("*/*/predictions/*.tsv")):
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
    """All numerics, in a quarter of a minute; on one thread, so that the order of summation is fixed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            typeset = open_archive(embedded(Path(folder) / "data.zip", train=64, test=8))
            written = handwriting(Path(folder) / "handwriting", 48)
            values = network_values() | search_values(written) | batch_values(typeset) | ink_values(written)
            for preset in names("presets"):
                values |= first_steps(typeset, preset)
            values |= first_steps(written, "medium", "medium handwriting")
            values |= fixed_statistics_steps(typeset)
        values |= language_values()
    finally:
        torch.set_num_threads(threads)
    return values


def network_values() -> Values:
    """Teacher-forced loss, a fixed projection of all logits and the mean best score of the joint search, for a small
    float64 network per recipe. Weights do not depend on torch's random numbers."""
    samples = [_random_sample(seed) for seed in range(3)]
    images, mask = pad([sample.image for sample in samples])
    view = images.double() / 255, mask
    values: Values = {}
    for recipe in names("recipes"):
        config = resolve(recipe, "paper", 0)
        model, direction = known_network(config), config.search.direction
        captions = [NESTED.split() if model.unfit(sample.tokens) else sample.tokens for sample in samples]
        targets = model.targets(captions)
        with torch.no_grad():
            logits, _ = model.predict(*view, targets)
            loss = model(*view, targets)
        for beams in (3, 110):  # nearly every word for a search that drops what has no end in time
            nbest = searcher(model)([view], SearchOptions(beam_size=beams, max_len=12, direction=direction))
            if all(nbest):
                break
        weights = torch.cos(torch.arange(logits.numel(), dtype=logits.dtype))
        values[f"{recipe} network: loss"] = float(loss)
        values[f"{recipe} network: logits"] = float(logits.flatten() @ weights / logits.norm())
        values[f"{recipe} network: search"] = sum(hypotheses[0].score for hypotheses in nbest) / len(nbest)
    read = searcher(*(known_network(resolve(recipe, "paper", 0)) for recipe in ("comer-fusion", "bttr-baseline")))
    nbest = read([view], SearchOptions(beam_size=3, max_len=12))
    values["two networks together: search"] = sum(hypotheses[0].score for hypotheses in nbest) / len(nbest)
    return values


def known_network(config: Config) -> Network:
    """A small version of the recipe's network; each weight tensor depends only on its name and shape."""
    small = replace(config.model, **config.model.sizes["micro"])
    model = build(small).double().eval()
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


def search_values(archive: Archive) -> Values:
    """Scores, directions and tokens of the hypotheses that each preset predicts, its search shortened, with a known
    network, all of which convert to symLG; and the score of the one predicted from two of which the best does not."""
    values: Values = {}
    samples = evenly(archive.samples("train"), 4)
    for preset in names("presets"):
        search = {"beam_size": 3, "max_len": 12, "bf16": False}
        config = resolve("comer-fusion", preset, 0, archive).changed({"search": search})
        found = Reader(known_network(config), config, torch.device("cpu"))(samples)
        best = {id_: hypotheses[0] for id_, hypotheses in found.items()}
        for what in ("forward", "reverse"):
            values[f"{preset} search: {what} score"] = sum(getattr(h, what) for h in best.values()) / len(best)
        values[f"{preset} search: hypotheses"] = _digest({id_: f"{h.direction} {h.ids}" for id_, h in best.items()})
        values[f"{preset} search: predicted"] = str(ranked([UNCONVERTED, CONVERTED], config, Vocabulary())[0].score)
    return values


def batch_values(archive: Archive) -> Values:
    """Batches without pen strokes, for every preset and, without augmentation, for BTTR."""
    values: Values = {}
    samples = archive.samples("train")
    for recipe, preset in [("bttr", "paper"), *(("comer-fusion", preset) for preset in names("presets"))]:
        values |= _batches(f"{recipe} {preset} batches", TrainingSet(samples, resolve(recipe, preset, 0, archive)))
    return values


def _batches(name: str, training: TrainingSet) -> Values:
    """Total ink (in units of one white pixel), padded pixels and labels of one epoch's batches, and which samples the
    batches of the first three epochs hold."""
    batches = [training.batch(1, indices) for indices in training.plan(1)]
    labels = {str(number): str(batch.tokens) for number, batch in enumerate(batches)}
    return {
        f"{name}: ink": sum(float(batch.images.double().sum()) for batch in batches) / 255,
        f"{name}: pixels": sum(batch.images.numel() for batch in batches),
        f"{name}: labels": _digest(labels),
        f"{name}: plans": _digest({str(epoch): str(training.plan(epoch)) for epoch in range(3)}),
    }


def ink_values(archive: Archive) -> Values:
    """Rendered pen strokes, what is cut out, exchanged and held out, and the batches of every preset that substitutes
    symbols, and of one whose generated expressions take turns."""
    samples = with_ink(archive.samples("train"), archive.ink)
    cut, made = sub_expressions(samples, 1), exchanged(samples, 1)
    drawn = sum(int(s.ink.canvas.draw(s.ink.symbols.values()).sum()) for s in samples if s.ink)
    values: Values = {
        "handwriting: ink": drawn // 255,
        "handwriting: cut out": _digest({part.id: str(part.tokens) for part in cut}),
        "handwriting: ink cut out": sum(int(part.image.sum()) for part in cut) // 255,
        "handwriting: exchanged": _digest({sample.id: str(sample.tokens) for sample in made}),
        "handwriting: ink exchanged": sum(int(sample.image.sum()) for sample in made) // 255,
    }
    cpu, configs = torch.device("cpu"), {name: resolve("comer-fusion", name, 0, archive) for name in names("presets")}
    for preset, config in configs.items():
        if config.data.needs_ink:
            values |= _batches(f"{preset} handwriting", training_data(config, archive, None, cpu)[0])
    in_turn = configs["medium"].changed({"data.sub_expressions": 2, "data.exchanged": 2})
    values |= _batches("handwriting in turn", training_data(in_turn, archive, None, cpu)[0])
    config = configs["medium"].changed({"select": "heldout", "heldout": 0.4})
    training, held = training_data(config, archive, None, cpu)
    return values | {
        "handwriting: trained on": _digest({sample.id: str(sample.tokens) for sample in training.samples}),
        "handwriting: held out": _digest({sample.id: str(sample.tokens) for sample in held}),
    }


def first_steps(archive: Archive, preset: str, name: str = "", changes: Mapping[str, Any] | None = None) -> Values:
    """Learning rate and loss in three epochs of a tiny float32 network, otherwise with the preset's settings but for
    `changes`, and then its loss in evaluation mode: that of weights averaged and recalibrated as the preset says, but
    for FAST_AVERAGE."""
    config = resolve("comer-fusion", preset, 0, archive).changed(changes or {})
    training = {"epochs": 3, "bf16": False, "validate_every": 3, "average": config.training.average and FAST_AVERAGE}
    search = {"beam_size": 1, "max_len": 2, "bf16": False}
    config = config.changed({"model": config.model.sizes["nano"], "training": training, "search": search})
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
