"""What presets and recipes set, for the fixed job, and what becomes of it: over a whole training, in the first steps,
and in batches, augmented and in order, of several epochs, or of what is made of pen strokes.

The first steps shorten a training and the known networks are small: other items are at the presets' own values.
"""

import json
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn, optim

from hmerbench.benchmarks import language_settings as languages
from hmerbench.benchmarks.config import FILLED_IN, Config, Training
from hmerbench.benchmarks.data import augmentation, batching, ink, new_expressions, samples, sizes
from hmerbench.benchmarks.data.archive import Archive, inkml_beside, open_archive
from hmerbench.benchmarks.data.batching import TrainingSet, evaluation_batches
from hmerbench.benchmarks.data.ink import ELEMENT_TOKENS, INKLESS, Canvas, Symbol
from hmerbench.benchmarks.data.new_expressions import exchanged, parts, sub_expressions
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, Sample, evenly, hold_out, with_ink
from hmerbench.benchmarks.data.synthetic import expression
from hmerbench.benchmarks.files import write_atomically, zipped
from hmerbench.benchmarks.regression_gate import Values, digest
from hmerbench.benchmarks.resolve import names, read_named, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import flat
from hmerbench.benchmarks.training.learner import loss_and_accuracy
from hmerbench.benchmarks.training.optimizer import average_decay, set_rate, update_average
from hmerbench.benchmarks.training.trainer import train
from hmerbench.benchmarks.training.training_data import training_data
from hmerbench.models.network import build
from hmerbench.models.weights import load_weights

CONSTANTS = (  # settings of what is generated and held out that no preset changes
    ("augmentation", sizes, "LOW", "HIGH", "WIDE"),
    ("augmentation", augmentation, "THICKER", "THINNER"),
    ("batching", sizes, "CELL", "STRETCH", "COARSE_CELL", "COARSE_STRETCH"),
    ("batching", batching, "STEPS", "SPREAD", "COARSE_STEPS"),
    ("exchange", new_expressions, "TRIES", "MAX_TOKENS", "TALLER"),
    ("ink", ink, "MARGIN", "MAX_SIDES"),
    ("samples", samples, "HELD_OUT", "HELD_OUT_SEED"),
    ("sub_expressions", new_expressions, "SYMBOL_HEIGHT", "MAX_ENLARGEMENT"),
    ("substitution", augmentation, "PROPORTION_TOLERANCE", "MAX_INSTANCES", "LINE_THICKNESS"),
)
LATE = 1_000_000  # a step by which averaged weights have long reached their decay


def preset_values() -> Values:
    """Settings of every preset and recipe, and those that are constants; sizes of networks, and schedules."""
    values: Values = {}
    for preset in names("presets"):
        config = resolve("comer-fusion", preset, 0)
        values |= _settings(preset, config.model_dump(mode="json"))
        values |= _schedule(preset, config)
    for recipe in names("recipes"):
        config, keys = resolve(recipe, "paper", 0), flat(read_named("recipes", recipe)[1])
        own = {key: value for key, value in flat(config.model_dump(mode="json")).items() if key in keys}
        values |= _settings(recipe, own)
    for recipe in names(languages.RECIPES):
        values |= _settings(recipe, languages.resolve(recipe, 0).model_dump(mode="json"))
    for name, module, *constants in CONSTANTS:
        values |= _settings(name, {constant: getattr(module, constant) for constant in constants})
    fixed = [Training(epochs=n, fixed_statistics=0.3, recalibrate=1).first_fixed for n in range(1, 13)]
    return values | {"fixed statistics: first epoch of 1 to 12": str(fixed)}


def _settings(name: str, settings: dict[str, Any]) -> Values:
    """The settings by full name; numbers as such."""
    own = {key: value for key, value in flat(settings).items() if key not in FILLED_IN}
    plain = {key: value if type(value) in (int, float, str) else json.dumps(value) for key, value in own.items()}
    return {f"{name} setting: {key}": value for key, value in plain.items()}


def _schedule(preset: str, config: Config) -> Values:
    """Sum of the learning rates of a whole training, taken once an epoch, what the averaged weights keep of a step's,
    and how large the network is."""
    training, weights = config.training, {"weight": torch.zeros(1, 1, dtype=torch.float64)}
    trained = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(trained.weight)
    update_average(weights, trained, average_decay(training.average, LATE))
    optimizer = optim.SGD(trained.parameters())
    progress = (epoch / training.epochs for epoch in range(training.epochs))
    with torch.device("meta"):
        network = build(config.model)
    return {
        f"{preset} schedule: sum of rates": sum(
            set_rate(optimizer, training.schedule, training.optimizer.lr, done) for done in progress
        ),
        f"{preset} schedule: share of a late step in the average": float(weights["weight"]),
        f"{preset} schedule: first epoch with fixed statistics": training.first_fixed,
        f"{preset} network: parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


PLATEAU = {  # nothing is read right, so the rate falls after the second epoch and the first one's weights stay the best
    "training": {"schedule": {"patience": 0}, "validate_every": 1, "batching": {"micro_batches": 1}}
}
FAST_AVERAGE = 0.3  # decay of averaged weights in the first steps: a preset's is reached after 1,000 steps or so


def first_steps(
    archive: Archive,
    preset: str,
    name: str = "",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    recipe: str = "comer-fusion",
) -> Values:
    """Learning rate and loss in three epochs of a tiny float32 network, otherwise with the preset's settings but for
    `changes`, and then its loss in evaluation mode: that of weights averaged and recalibrated as the preset says, but
    for FAST_AVERAGE."""
    config = resolve(recipe, preset, seed, archive)
    training = {"epochs": 3, "bf16": False, "validate_every": 3, "average": config.training.average and FAST_AVERAGE}
    search = {"beam_size": 1, "max_len": 2, "bf16": False}
    config = config.changed({"model": config.model.sizes["nano"], "training": training, "search": search})
    config = config.changed(changes or {})
    name = f"{name or preset} first steps"
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run", config)
        train(run, archive)
        values: Values = {}
        for line in run.history:
            values[f"{name}: rate of epoch {line['epoch']}"] = line["lr"]
            values[f"{name}: loss of epoch {line['epoch']}"] = line["loss"]
        batches = evaluation_batches(evenly(archive.samples("train"), 8), config, 8)
        loss, _ = loss_and_accuracy(load_weights(run.weights_file, config.model), batches)
    return values | {f"{name}: loss of the weights": loss}


def network_steps(archive: Archive) -> Values:
    """The first steps of other networks than CoMER's."""
    values: Values = {}
    for recipe in ("bttr-original", "densewap", "densewap-td"):
        values |= first_steps(archive, "medium", f"{recipe} medium", recipe=recipe)
    return values


# ------------------------------------------------------------------------------------------------------------- batches


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
    images = [images for batch in batches for images, _ in batch.views]
    return {
        f"{name}: ink": sum(float(each.double().sum()) for each in images) / 255,
        f"{name}: pixels": sum(each.numel() for each in images),
        f"{name}: labels": digest(labels),
        f"{name}: plans": digest({str(epoch): str(training.plan(epoch)) for epoch in range(3)}),
    }


def ink_values(archive: Archive) -> Values:
    """Rendered pen strokes, what is cut out, exchanged and held out, and the batches of every preset that substitutes
    symbols, and of one whose generated expressions take turns."""
    samples = with_ink(archive.samples("train"), archive.inkml)
    cut, made = sub_expressions(samples, 1), exchanged(samples, 1)
    drawn = sum(int(s.ink.canvas.draw(s.ink.symbols.values()).sum()) for s in samples if s.ink)
    values: Values = {
        "handwriting: ink": drawn // 255,
        "handwriting: cut out": digest({part.id: str(part.tokens) for part in cut}),
        "handwriting: ink cut out": sum(int(part.image.sum()) for part in cut) // 255,
        "handwriting: exchanged": digest({sample.id: str(sample.tokens) for sample in made}),
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
        "handwriting: trained on": digest({sample.id: str(sample.tokens) for sample in training.samples}),
        "handwriting: held out": digest({sample.id: str(sample.tokens) for sample in held}),
    }


def limit_values(archive: Archive) -> Values:
    """What the limits of image and label let through at the limit and just above it, and what trials hold out."""
    config = resolve("comer-fusion", "paper", 0).changed({"data": {"max_area": 1024, "max_tokens": 3}})
    cases = {"at the limits": (32, 3), "larger": (33, 3), "longer": (32, 4)}  # width and tokens
    samples = [Sample(id_, ("x",) * n, np.zeros((32, width), np.uint8)) for id_, (width, n) in cases.items()]
    read = [id_ for batch in evaluation_batches(samples, config, 8) for id_ in batch.ids]
    _, held = hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    return {
        "limits: trained on": ", ".join(sample.id for sample in TrainingSet(samples, config).samples),
        "limits: read": ", ".join(sorted(read)),
        "trials: held out": digest({sample.id: str(sample.tokens) for sample in held}),
    }


SYMBOL_WIDTH, HEIGHTS, POINTS = 300, (300, 700), 6  # in units of the pen
SCALE = 0.08  # px per unit: symbols of 24 to 56 px
SHEET = 2  # expressions per writer, so that few are held out
ELEMENTS = {token: element for element, token in ELEMENT_TOKENS.items() if element != "mroot"}


def handwriting(folder: Path, count: int) -> Archive:
    """Make an archive of `count` training expressions, with their pen strokes beside it, in `folder`."""
    labels, captions, images, strokes = list[list[str]](), "", dict[str, bytes](), dict[str, str]()
    for number in range(count):
        draw, id_ = np.random.default_rng((1, number)), f"writer{number // SHEET}_{number % SHEET}"
        spans = parts(labels[-SHEET]) if number % 4 == 3 else []
        tokens = labels[-SHEET][slice(*spans[-1])] if spans else expression(draw)
        labels.append(tokens)
        symbols = [_symbol(token, place, draw) for place, token in enumerate(t for t in tokens if t not in INKLESS)]
        captions += f"{id_}\t{' '.join(tokens)}\n"
        image = Canvas.of(symbols, SCALE).draw(symbols)
        images[f"data/train/img/{id_}.bmp"] = cv2.imencode(".bmp", image)[1].tobytes()
        strokes[f"train/{id_}.inkml"] = _inkml(symbols)
    path = folder / "data.zip"
    write_atomically(path, zipped({"data/train/caption.txt": captions, **images}))
    write_atomically(inkml_beside(path), zipped(strokes))
    return open_archive(path)


def _symbol(token: str, place: int, draw: np.random.Generator) -> Symbol:
    """A symbol of one random stroke, in its place on the line."""
    height = draw.integers(*HEIGHTS)
    stroke = np.stack([draw.integers(0, SYMBOL_WIDTH, POINTS), draw.integers(0, height, POINTS)], axis=1)
    stroke[:, 0] += place * SYMBOL_WIDTH * 4 // 3
    return Symbol(token, (stroke,))


def _inkml(symbols: list[Symbol]) -> str:
    """InkML with flat MathML, in the order of the caption."""
    traces = groups = math = ""
    for number, symbol in enumerate(symbols):
        points = ", ".join(f"{x} {y}" for x, y in symbol.strokes[0].tolist())
        traces += f'<trace id="{number}">{points}</trace>'
        label = f'<annotation type="truth">{escape(symbol.token)}</annotation>'
        views = f'<traceView traceDataRef="{number}"/><annotationXML href="s{number}"/>'
        groups += f"<traceGroup>{label}{views}</traceGroup>"
        math += f'<{ELEMENTS.get(symbol.token, "mi")} xml:id="s{number}"/>'
    math = f'<math xmlns="http://www.w3.org/1998/Math/MathML">{math}</math>'
    return f'<ink xmlns="http://www.w3.org/2003/InkML">{math}{traces}<traceGroup>{groups}</traceGroup></ink>'
