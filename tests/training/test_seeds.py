"""Two seeds differ in everything that is drawn, and one seed repeats it: an interval over seeds rests on both."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import TrainingSet
from hmerbench.benchmarks.data.samples import hold_out
from hmerbench.benchmarks.language_models.corpus import read_corpus
from hmerbench.benchmarks.language_models.training import Trainer as LanguageTrainer
from hmerbench.benchmarks.language_settings import resolve as language_settings
from hmerbench.benchmarks.language_settings import tied
from hmerbench.benchmarks.regression_gate.presets import handwriting
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.training.distributed import Team
from hmerbench.benchmarks.training.learner import Learner
from hmerbench.benchmarks.training.training_data import training_data

CPU = torch.device("cpu")
WORDS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return handwriting(tmp_path_factory.mktemp("handwriting"), 48)


def settings(archive: Archive, seed: int) -> Config:
    """Those of `medium`, which draws all that any preset draws, with a tiny network."""
    config = resolve("comer-fusion", "medium", seed, archive)
    return config.changed({"model": config.model.sizes["nano"], "training.bf16": False})


def learner(config: Config) -> Learner:
    return Learner(config, Team(0, 1, CPU))


def training_set(config: Config, archive: Archive) -> TrainingSet:
    return training_data(config, archive, None, CPU, learner(config).model)[0]


def first_weights(archive: Archive, seed: int) -> float:
    return sum(float(p.detach().double().sum()) for p in learner(settings(archive, seed)).model.parameters())


def dropout(archive: Archive, seed: int) -> float:
    """The loss of a step from the same weights and batch."""
    first, other = learner(settings(archive, 0)), learner(settings(archive, seed))
    other.model.load_state_dict(first.model.state_dict())
    data = training_set(settings(archive, 0), archive)
    other.train_mode(fixed=False)
    return float(other.micro_step(data.inputs(data.prepare(0, data.plan(0)[0])), 0, 0))


def augmentation(archive: Archive, seed: int) -> int:
    config = settings(archive, seed).changed({"data.substitution": 0, "data.sub_expressions": 0})
    return int(training_set(config, archive).batch(0, [0, 1, 2]).views[0][0].sum())


def order(archive: Archive, seed: int) -> list[list[int]]:
    """The plan of an epoch of images that are not distorted."""
    return training_set(settings(archive, seed).changed({"augmentation": None}), archive).plan(9)


def substitution(archive: Archive, seed: int) -> list[tuple[str, ...]]:
    return training_set(settings(archive, seed), archive).batch(0, range(12)).tokens


def held_out(archive: Archive, seed: int) -> list[str]:
    return [sample.id for sample in hold_out(archive.samples("train"), 0.3, seed)[1]]


def language_trainer(tmp_path: Path, seed: int) -> LanguageTrainer:
    draw = np.random.default_rng(1)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("\n".join(" ".join(draw.choice(WORDS, 6)) for _ in range(30)))
    corpus = read_corpus(tmp_path)
    sizes = {"character_size": 3, "filters": 2, "most_filters": 4, "hidden": 8}
    changes = {"model": sizes, "training": {"batch_size": 3, "steps": 5, "bf16": False}}
    chosen = tied(language_settings("lm-char-small", seed).changed(changes), corpus.name, corpus.digest)
    return LanguageTrainer(LanguageRun(tmp_path / f"run{seed}", chosen), corpus)


def language_weights(archive: Archive, seed: int) -> float:
    trainer = language_trainer(archive.path.parent, seed)
    return sum(float(p.detach().double().sum()) for p in trainer.model.parameters())


def language_dropout(archive: Archive, seed: int) -> float:
    first, other = (language_trainer(archive.path.parent, each) for each in (0, seed))
    other.model.load_state_dict(first.model.state_dict())
    other.model.train()
    return other.step(*other.batches[0])


DRAWN = [first_weights, dropout, augmentation, order, substitution, held_out, language_weights, language_dropout]


@pytest.mark.parametrize("drawn", DRAWN, ids=lambda drawn: drawn.__name__)
def test_two_seeds_differ_and_one_repeats(drawn: Callable[[Archive, int], object], archive: Archive) -> None:
    one, other = drawn(archive, 1), drawn(archive, 2)
    assert one != other and drawn(archive, 1) == one
