"""Fine-tuning: `train --from WEIGHTS` goes on from the weights of another run, on images of one's own.

The network, the scale of its images and its search are those of the weights. Unless a preset says how it is trained, it
is as the weights were, but for 20 epochs, at a fifth of the learning rate, which rises over a tenth of the steps and
decays to 0, on labels of all lengths from the start and without an early stop. Nothing is generated from pen strokes.
"""

import hashlib
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.config import NEED_INK, SCHEMA, Config
from hmerbench.benchmarks.data.archive import Archive, abridged
from hmerbench.benchmarks.data.samples import Sample, evenly, hold_out
from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.printing import console, counted
from hmerbench.benchmarks.recognition.predict import named_samples, read_right
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.resolve import read_named
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import validate
from hmerbench.benchmarks.training.learner import START, first_weights
from hmerbench.evaluation.scoring.metrics import interval_text
from hmerbench.models.vocab import SPECIAL
from hmerbench.models.weights import load_weights, pack_weights

EPOCHS, RATE = 20, 0.2  # without a preset; the rate is a share of that of the weights' own training
HELD_OUT = 0.1  # of the training set, where there is no test set
MEASURED = 200  # images at most on which the gain is measured
GAIN = "gain.json"


def fine_tuned(weights: Path, preset: str, seed: int, archive: Archive, place: Path) -> RunFolder:
    """The folder, under `place`, of a run that starts from weights.

    `weights`: a run folder, a weights file in one, or a .ckpt of CoMER's authors. Raises UserError or CheckpointError
    for those that cannot be loaded.
    """
    start = Recognizer.load(weights)
    packed = pack_weights(start.model.cpu())
    theirs = start.config
    keys: dict[str, Any] = theirs.model_dump(mode="json") | _effort(theirs, weights, preset)
    keys |= {"schema_version": SCHEMA, "seed": seed, "heldout": HELD_OUT}
    keys["start"] = {"weights": theirs.name, "digest": hashlib.sha256(packed).hexdigest()}
    keys["data"] |= {"name": archive.name, "digest": archive.digest, "limit": None, "ink": ""}
    keys["data"] |= dict.fromkeys(NEED_INK, 0)
    keys["search"] = {key: value for key, value in keys["search"].items() if key not in ("language", "together")}
    training = keys["training"]
    selects = training["schedule"]["name"] == "plateau" or training["early_stop"]
    keys["select"] = "last" if archive.tests and not selects else "heldout"
    if not selects:  # held-out images are read once, in the end: they choose nothing
        training["validate_every"] = training["epochs"]
    run_settings = validate(Config, keys, f"{weights}: fine-tuning")
    run = RunFolder(place / run_settings.run_name, run_settings)
    run.write(START, packed)
    _tell_words({*start.model.vocabulary.words} - {*SPECIAL}, archive.words)
    return run


def _effort(theirs: Config, weights: Path, preset: str) -> dict[str, Any]:
    """How the run is trained: as a preset says, or as the weights were, but less."""
    if preset:
        _, keys, _ = read_named("presets", preset)
        keys |= {"recipe": theirs.recipe, "preset": f"{Path(preset).stem}-from-{theirs.preset}"}
        # all of it, so that no misspelt section is passed over, but for what `resolve` alone understands
        effort = validate(Config, {key: keys[key] for key in keys.keys() - {"model", "select"}}, preset)
        return effort.model_dump(mode="json", include={"preset", "training", "augmentation"})
    less = {"training.epochs": EPOCHS, "training.optimizer.lr": RATE * theirs.training.optimizer.lr}
    less |= {"training.batching.curriculum": 0, "training.early_stop": None}
    less |= {"training.schedule.name": "cosine", "training.schedule.warmup": 0.1}
    effort = theirs.changed(less | {"preset": f"from-{theirs.preset}"}, str(weights))
    return effort.model_dump(mode="json", include={"preset", "training"})


def _tell_words(theirs: set[str], own: set[str]) -> None:
    """Print which words are new, and which may be forgotten."""
    if new := sorted(own - theirs):
        console.print(f"new words, which these weights get rows for: {abridged(new)}")
    if lacking := sorted(theirs - own):
        console.print(
            f"words of the weights that the training captions lack, and that may be forgotten: {len(lacking)} of "
            f"{len(theirs)} ({abridged(lacking)})"
        )


def tell_gain(run: RunFolder, archive: Archive) -> None:
    """Print how many held-out images the weights that a run starts from read right, and how many it does itself: those
    of its test sets, evenly spaced, or else of the part of its training set that is held out. Write gain.json."""
    start = first_weights(run)
    if start is None:
        return
    from hmerbench.evaluation.scoring.stats import mcnemar  # needs scipy, which training does without

    of, samples = _held_out(run.settings, archive)
    device, what = best_device(), "held-out images"
    before, after = (
        read_right(model.to(device).eval(), run.settings, samples, device, what)
        for model in (start, load_weights(run.weights_file))
    )
    won, lost = len(after - before), len(before - after)
    n, p = len(samples), mcnemar(won, lost)
    run.write(GAIN, {"of": of, "n": n, "before": len(before), "after": len(after), "won": won, "lost": lost, "p": p})
    rates = [f"{100 * len(right) / n:.1f} % ({interval_text(len(right), n)})" for right in (before, after)]
    training = run.settings.training
    chosen = ", which chose the epoch" if of == "train" and training.validate_every < training.epochs else ""
    console.print(
        f"held out, {counted(n, 'image')} of {of}{chosen}: {rates[0]} read right before, {rates[1]} after, token by "
        f"token; {won} won, {lost} lost, p = {p:.2g}"
    )


def _held_out(config: Config, archive: Archive) -> tuple[str, list[Sample]]:
    if archive.tests:
        return ", ".join(archive.tests), evenly(named_samples(archive, archive.tests, config), MEASURED)
    samples = archive.samples("train", config.data.max_area, config.data.limit)
    return "train", evenly(hold_out(samples, config.heldout, config.seed)[1], MEASURED)
