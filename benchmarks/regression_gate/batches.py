"""Training batches for the fixed job: augmented, in order, of several epochs; and what is made of pen strokes."""

from html import escape
from pathlib import Path

import cv2
import numpy as np
import torch

from hmerbench.benchmarks.data.archive import Archive, ink_beside, open_archive
from hmerbench.benchmarks.data.batching import TrainingSet, evaluation_batches
from hmerbench.benchmarks.data.ink import ELEMENT_TOKENS, INKLESS, Canvas, Symbol
from hmerbench.benchmarks.data.new_expressions import exchanged, parts, sub_expressions
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, Sample, split_heldout, with_ink
from hmerbench.benchmarks.data.synthetic import expression
from hmerbench.benchmarks.files import write_atomically, zipped
from hmerbench.benchmarks.regression_gate import Values, digest
from hmerbench.benchmarks.resolve import names, resolve
from hmerbench.benchmarks.training.training_data import training_data


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
        f"{name}: labels": digest(labels),
        f"{name}: plans": digest({str(epoch): str(training.plan(epoch)) for epoch in range(3)}),
    }


def ink_values(archive: Archive) -> Values:
    """Rendered pen strokes, what is cut out, exchanged and held out, and the batches of every preset that substitutes
    symbols, and of one whose generated expressions take turns."""
    samples = with_ink(archive.samples("train"), archive.ink)
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
    _, held = split_heldout(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
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
    write_atomically(ink_beside(path), zipped(strokes))
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
