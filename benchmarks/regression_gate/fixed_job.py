"""The fixed job of `make regress`: quick measurements that change if scoring, network or training changes.

- `scores`: scores of fixed predictions. Identical on every machine, so compared for equality.
- `numerics`: what `parts_of_numerics` lists: settings, networks with known weights and their searches, batches, made-up
  handwriting, the first training steps of every preset and network, tiny trainings of all language models. Identical up
  to rounding, so compared within a tolerance.
- `training`: a shortened training run of the recipe and preset TRAINED. It depends on the seed and, over many steps,
  on rounding, so it is compared with the spread of recorded runs (baseline.py).
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.data.synthetic import embedded
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.regression_gate import Values, digest, networks, presets
from hmerbench.benchmarks.regression_gate.presets import first_steps
from hmerbench.benchmarks.resolve import names, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.score import score
from hmerbench.benchmarks.training.learner import loss_and_accuracy
from hmerbench.benchmarks.training.trainer import train
from hmerbench.evaluation import symlg
from hmerbench.evaluation.scoring.inputs import read_predictions, tsv
from hmerbench.evaluation.scoring.metrics import METRICS, Expression
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.evaluation.symlg.latex_commands import SYMBOLS
from hmerbench.models.weights import load_weights

TRAINED = ("comer-fusion", "smoke")  # recipe and preset
GATE_SEED = 7  # of the judged run; not among the recorded seeds, so the run is independent of them
COUNTS = ("n", *(metric.count for metric in METRICS), "missing", "unconverted")


def scores(embedded_set: Archive, crohme: Archive | None, reproduced: Path) -> Values:
    """Scores of corrupted captions of the embedded set and, given CROHME, of the predictions under `reproduced`: counts
    and a digest of the per-expression table, and of some images read again. Also digests of the embedded set and of the
    symLG of its truth, of every command that is a symbol, and of the predictions."""
    truth, captions = embedded_set.ground_truth("test"), embedded_set.captions("test")
    values: Values = {"embedded truth: symLG": digest(truth), "embedded set: digest": embedded_set.digest[:12]}
    values["commands: symLG"] = digest({name: _converted(f"$a {name} b$", "command") for name in SYMBOLS})
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
            values[f"{name}: symLG"] = digest(converted)
            if crohme is not None and path.stem in crohme.tests:
                values |= _scored(name, path, f"{crohme.path}:{path.stem}")
        if crohme is not None:
            values |= networks.reading_values(crohme, reproduced)
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
    return values | {f"{name}: every expression": verdicts(result.expressions)}


def verdicts(rows: Iterable[Expression]) -> str:
    """The digest of a per-expression table."""
    return digest({row.id: str([*asdict(row).values()]) for row in rows})


def _converted(text: str, id_: str) -> str:
    try:
        return symlg.lg_text(symlg.from_latex(symlg.formula_in(text)), id_)
    except symlg.Unconverted as reason:
        return f"unconverted: {reason}"


def parts_of_numerics(typeset: Archive, written: Archive) -> dict[str, Callable[[], Values]]:
    """How the numerics are measured, by part, on an archive of images alone and one with pen strokes."""
    return {
        "settings": presets.preset_values,
        "networks": networks.network_values,
        "types": networks.type_values,
        "searches": lambda: networks.blind_values() | networks.search_values(written),
        "joint reading": lambda: networks.joint_reading_values(written),
        "batches": lambda: presets.batch_values(typeset),
        "handwriting": lambda: presets.ink_values(written),
        "limits": lambda: presets.limit_values(typeset),
        **{f"{preset} steps": partial(first_steps, typeset, preset) for preset in names("presets")},
        "muon steps": lambda: first_steps(written, "medium", "medium handwriting"),
        # the seed of the committed runs, recalibrated on fewer batches than there are
        "seed steps": lambda: first_steps(written, "medium", "seed 7", {"training.recalibrate": 2}, 7),
        "network steps": lambda: presets.network_steps(written),
        # the last two epochs have fixed batch-norm statistics
        "fixed steps": lambda: first_steps(typeset, "medium", "fixed statistics", {"training.fixed_statistics": 0.7}),
        "plateau steps": lambda: first_steps(typeset, "paper", "plateau", presets.PLATEAU),
        "languages": networks.language_values,
    }


def numerics() -> Values:
    """All numerics, in half a minute; on one thread, so that the order of summation is fixed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            typeset = open_archive(embedded(Path(folder) / "data.zip", train=64, test=8))
            written = presets.handwriting(Path(folder) / "handwriting", 48)
            values: Values = {}
            for measure in parts_of_numerics(typeset, written).values():
                values |= measure()
            return values
    finally:
        torch.set_num_threads(threads)


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
    split = archive.tests[0]
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name) / "run", config)
        train(run, archive)
        values = {"training loss": float(run.history[-1]["loss"])}
        samples = [sample for sample in archive.samples(split) if len(sample.tokens) <= config.data.max_tokens]
        batches = evaluation_batches(evenly(samples, 300), config, 32)
        loss, accuracy = loss_and_accuracy(load_weights(run.weights_file, config.model), batches)
        values |= {"held-out loss": loss, "held-out token accuracy": accuracy}
        if archive.name == "embedded":
            predict(run, archive, [split])
            values["ExpRate"] = score(run, archive, [split])[split].exprate
    return values
