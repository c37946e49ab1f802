"""Numerics of the language models for the fixed job: known weights in float64, and tiny trainings of two seeds."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hmerbench.benchmarks.language_models.corpus import read_corpus
from hmerbench.benchmarks.language_models.training import train
from hmerbench.benchmarks.language_settings import RECIPES, resolve, tied
from hmerbench.benchmarks.regression_gate.values import Values
from hmerbench.benchmarks.resolve import names
from hmerbench.benchmarks.runs.language import LanguageRun
from hmerbench.models.language import LINE_END, UNKNOWN, LanguageModel, Lexicon

WORDS = ["a", "ab", "ba", "abba", "babba", "aabb"]
SIZES = {"character_size": 3, "filters": 2, "most_filters": 5, "word_size": 6, "hidden": 8}


def language_values() -> Values:
    """Loss and a fixed projection of the gradient of the papers' recipes; perplexities and rates of tiny trainings."""
    values: Values = {}
    words_TB, targets_TB = torch.from_numpy(np.random.default_rng(0).integers(0, 2 + len(WORDS), (2, 7, 3)))
    for recipe in (name for name in names(RECIPES) if name.startswith("lm-")):
        model = known_language_model(WORDS, recipe)
        loss, _ = model(words_TB, targets_TB, model.initial_state(3))
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        gradient = torch.cat(gradients)
        projection = gradient @ torch.cos(torch.arange(len(gradient), dtype=gradient.dtype))
        values[f"{recipe} network: loss"] = float(loss.detach())
        values[f"{recipe} network: gradient"] = float(projection / gradient.norm())
    values |= _first_epochs("lm-char-small seed 7", "lm-char-small", 7)
    for recipe in names(RECIPES):
        values |= _first_epochs(recipe, recipe)
    return values


@torch.no_grad()
def known_language_model(words: Sequence[str], recipe: str = "lm-char-small") -> LanguageModel:
    """A small version of a recipe's network, in evaluation mode; its weights depend only on their names and shapes."""
    config = replace(resolve(recipe, 0).model, **SIZES, widths=3, dropout=0.0)
    model = LanguageModel(config, Lexicon([UNKNOWN, LINE_END, *words])).double().eval()
    for name, parameter in model.named_parameters():
        draw = np.random.default_rng(list(name.encode()))
        parameter.copy_(torch.from_numpy(0.5 * draw.standard_normal(tuple(parameter.shape))))
    return model


def _first_epochs(name: str, recipe: str, seed: int = 0) -> Values:
    changes = {"epochs": 4, "batch_size": 3, "steps": 5, "bf16": False, "improvement": 0.05}
    settings = resolve(recipe, seed).changed({"model": {**SIZES, "widths": 3}, "training": changes})
    with tempfile.TemporaryDirectory() as place:
        folder, draw = Path(place), np.random.default_rng(1)
        for split, lines in (("train", 60), ("valid", 20), ("test", 10)):
            text = "".join(" ".join(draw.choice(WORDS, draw.integers(1, 7))) + "\n" for _ in range(lines))
            (folder / f"{split}.txt").write_text(text)
        corpus = read_corpus(folder, settings.text.line_ends)
        run = LanguageRun(folder / "run", tied(settings, corpus.name, corpus.digest))
        train(run, corpus)
        values = {f"epoch {line['epoch']}": line["train_perplexity"] for line in run.history}
        values |= {"validation": run.scores["valid_perplexity"], "test": run.scores["test_perplexity"]}
        values |= {"last rate": run.history[-1]["rate"]}
    return {f"{name} first steps: {item}": value for item, value in values.items()}
