"""A tiny archive in CROHME's layout and a tiny network, which trains on it in seconds, also in a process of its own."""

import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import PREPARED_MARKER, open_archive
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import merge
from hmerbench.models.network import build
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import pack_weights
from tests.helpers.fork_server import forked

SYMBOLS = ["1", "2", "x", "+", "-"]
SETTINGS = {
    "model": {"d_model": 16, "growth_rate": 4, "num_layers": 1, "nhead": 2, "dim_feedforward": 32, "dc": 4},
    "training": {
        "epochs": 3,
        "validate_every": 1,
        "batching": {"order": "area", "size": 4, "micro_batches": 2},
        "optimizer": {"lr": 0.01},
        "schedule": {"patience": 0},
    },
    "search": {"beam_size": 2, "max_len": 8},
    "select": "2014",
}


def tiny_archive(folder: Path, train: int = 24, test: int = 5) -> Path:
    """An archive whose symbols are bars of different heights, left to right: enough to learn something."""
    for split, count in {"train": train, "2014": test}.items():
        draw = np.random.default_rng(len(split))
        (folder / "data" / split / "img").mkdir(parents=True)
        (folder / "data" / split / "symLg").mkdir()
        lines = []
        for number in range(count):
            tokens = [str(draw.choice(SYMBOLS)) for _ in range(draw.integers(1, 4))]
            image = np.zeros((32, 24 * len(tokens) + int(draw.integers(0, 8))), np.uint8)
            for place, token in enumerate(tokens):
                image[4 : 10 + 4 * SYMBOLS.index(token), 24 * place + 6 : 24 * place + 12] = 255
            cv2.imwrite(str(folder / "data" / split / "img" / f"w{number // 2}_{number}.bmp"), image)
            lines.append(f"w{number // 2}_{number}\t{' '.join(tokens)}\n")
            symbols = [f"O, {t}_{i}, {t}, 1.0, O{'R' * i}" for i, t in enumerate(tokens)]
            edges = [f"R, {a}_{i}, {b}_{i + 1}, Right, 1.0" for i, (a, b) in enumerate(itertools.pairwise(tokens))]
            text = "\n".join([f"# IUD, w{number // 2}_{number}", f"# Objects({len(tokens)}):", *symbols])
            text += "\n\n# Relations from SRT:\n" + "".join(edge + "\n" for edge in edges)
            (folder / "data" / split / "symLg" / f"w{number // 2}_{number}.lg").write_text(text)
        (folder / "data" / split / "caption.txt").write_text("".join(lines))
    (folder / "data" / PREPARED_MARKER).write_text("{}")
    return folder


def tiny_config(archive: Path, overrides: dict | None = None, recipe: str = "comer-fusion") -> Config:
    """The tiny network under a shipped recipe; `overrides` are merged over SETTINGS as a preset's keys would be."""
    preset = archive / "tiny.yaml"
    # atomically: of two ranks that start together, one must not read a file half written by the other
    write_atomically(preset, json.dumps(merge(SETTINGS, overrides or {})))
    return resolve(recipe, str(preset), 7, open_archive(archive))


def untrained_run(folder: Path, config: Config, words: Sequence[str] = ()) -> RunFolder:
    """A run whose network, of these settings and further words, has learned nothing."""
    run = RunFolder(folder, config)
    run.write("config.yaml", config.to_yaml())
    run.write("best.safetensors", pack_weights(build(config.model, Vocabulary(words))))
    return run


def start(
    archive: Path,
    folder: Path,
    overrides: dict | None = None,
    dies: tuple[int, float] | None = None,
    environment: dict[str, str] | None = None,
) -> BaseProcess:
    """Train in a process of its own, so that a test can kill it. With `dies`, (steps, seconds), it kills itself (-9)
    after so many optimizer steps, and saves a checkpoint every so many seconds."""
    arguments = archive, folder, overrides, dies, environment or {}
    process = forked().Process(target=_train, args=arguments, daemon=True)  # ends with the tests
    process.start()
    return process


def _train(
    archive: Path, folder: Path, overrides: dict | None, dies: tuple[int, float] | None, environment: dict[str, str]
) -> None:
    from hmerbench.benchmarks.training import trainer

    os.environ.update(environment)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] (it may have workers)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))  # as in the tests' own process
    if overrides and overrides.get("training", {}).get("bf16"):
        torch.cpu._is_avx512_bf16_supported = lambda: True  # as the fixture `bf16_unit` does
    if dies:
        _die_after(dies[0])
        trainer.CHECKPOINT_SECONDS, trainer.CHECK_STEPS = dies[1], 1
    trainer.train(RunFolder(folder, tiny_config(archive, overrides)), open_archive(archive))


def _die_after(steps: int) -> None:
    done = itertools.count()

    def killing(*_: object) -> None:
        if next(done) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(killing)
