"""bf16 against float32: the rule of the verdict, and an end-to-end comparison on a tiny network."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import precision
from hmerbench.benchmarks.performance.precision import Sizes
from hmerbench.benchmarks.training.teacher_forcing import teacher_forced
from hmerbench.models.comer import CoMER
from hmerbench.models.network import build
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import load_weights, pack_weights
from tests.helpers.tiny import tiny_archive, tiny_config

SEEDS = (7, 8, 9, 10)
SHORT = {"model": {"dropout": 0.0, "encoder_dropout": 0.0}, "training": {"batching": {"micro_batches": 1}}}


def make_table(fp32: list[float], differences: list[float]) -> pd.DataFrame:
    lines = []
    for seed, value, difference in zip(SEEDS, fp32, differences, strict=False):
        for name, loss in (("fp32", value), ("bf16", value + difference)):
            for epoch, extra in ((1, 5.0), (2, 0.0)):  # earlier epochs do not matter
                metrics = dict.fromkeys(precision.METRICS, loss + extra)
                lines.append({"seed": seed, "precision": name, "epoch": epoch} | metrics)
    return pd.DataFrame(lines[::-1])


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, -0.01, 0.02, 0.0], "harmless"),
        ([0.6, -0.5, 0.7, -0.4], "not shown"),  # a small mean with a wide interval
        ([0.11, 0.13, 0.12, 0.14], "harmless"),  # a real difference, but smaller than the spread of the seeds
        ([0.9, 1.0, 0.95, 0.9], "different"),
        ([-0.9, -1.0, -0.95, -0.9], "different"),
    ],
)
def test_the_rule(differences: list[float], verdict: str) -> None:
    for row in precision.judge(make_table([1.0, 1.2, 1.4, 0.9], differences)):
        assert row["verdict"] == verdict and row["n"] == 4
        assert row["seed_sd"] == pytest.approx(np.std([1.0, 1.2, 1.4, 0.9], ddof=1))
        assert row["difference"] == pytest.approx(np.mean(differences))


def test_seeds_needed() -> None:
    assert precision.seeds_needed(np.array([0.1, -0.1]), 100.0) == 2
    pairs = np.array([0.1, -0.1, 0.2, -0.2])
    few, many = precision.seeds_needed(pairs, 0.5), precision.seeds_needed(pairs, 0.05)
    assert few is not None and many is not None and few < many
    assert precision.seeds_needed(np.array([1.0, 1.1]), 0.5) is None  # the mean alone exceeds the spread


def test_teacher_forced_metrics_equal_those_of_single_expressions(tmp_path: Path) -> None:
    config = tiny_config(tiny_archive(tmp_path))
    samples = open_archive(tmp_path).samples("2014")
    torch.manual_seed(7)
    model = build(config.model).eval()
    assert isinstance(model, CoMER)
    (tmp_path / "w.safetensors").write_bytes(pack_weights(model))
    losses, right = [], []
    for sample in samples:
        ids = Vocabulary().encode(sample.tokens)
        for inputs, outputs in (([1, *ids], [*ids, 2]), ([2, *ids[::-1]], [*ids[::-1], 1])):
            image = torch.from_numpy(sample.image)[None, None].float() / 255
            with torch.no_grad():
                features = model.encode(image, torch.zeros(image.shape[1:]).bool())
                logits = model.decode(*features, torch.tensor([inputs]))[0]
            losses += F.cross_entropy(logits, torch.tensor(outputs), reduction="none").tolist()
            right += (logits.argmax(-1) == torch.tensor(outputs)).tolist()
    loss, accuracy = teacher_forced(load_weights(tmp_path / "w.safetensors"), evaluation_batches(samples, config, 1))
    assert loss == pytest.approx(np.mean(losses), rel=1e-4) and accuracy == pytest.approx(100 * np.mean(right))


def test_end_to_end(
    tmp_path: Path, bf16_unit: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_config(tiny_archive(tmp_path), SHORT)
    archive, preset, results = open_archive(tmp_path), str(tmp_path / "tiny.yaml"), tmp_path / "results"
    sizes = Sizes(14, 2, heldout=6)
    found = precision.precision(archive, results, "comer-fusion", preset, (7, 8), sizes)
    assert [row["metric"] for row in found] == list(precision.METRICS)
    assert "is CROHME" not in capsys.readouterr().out and not (results / "speed").exists()
    histories = sorted(results.glob("local/precision/14-6/comer-fusion/*/history.jsonl"))
    assert len(histories) == 4
    before = [path.stat().st_mtime_ns for path in histories]
    archive.name = "crohme"  # so that the tables are written
    real = precision.resolve
    monkeypatch.setattr(precision, "resolve", lambda *names: real(*names).changed({"data.name": "foreign"}))
    assert precision.precision(archive, results, "comer-fusion", preset, (7, 8), sizes) == found
    assert [path.stat().st_mtime_ns for path in histories] == before  # no run is trained twice
    table: Any = pd.read_csv(results / "speed/precision.csv")
    assert len(table) == 2 * 2 * 2 and table["heldout_loss"].notna().sum() == 4
    first = table[table["epoch"] == 1].pivot(index="seed", columns="precision", values="loss")
    assert (first["fp32"] != first["bf16"]).all()  # different arithmetic,
    np.testing.assert_allclose(first["fp32"], first["bf16"], rtol=0.02)  # same batches
    assert len(pd.read_csv(results / "speed/precision_verdict.csv")) == 3


def test_too_few_seeds_or_expressions(tmp_path: Path, bf16_unit: None) -> None:
    tiny_config(tiny_archive(tmp_path), SHORT)
    archive, preset = open_archive(tmp_path), str(tmp_path / "tiny.yaml")
    with pytest.raises(UserError, match="--seeds: the spread between seeds needs at least two"):
        precision.precision(archive, tmp_path, "bttr", preset, (7, 7), Sizes(14, 1, heldout=6))
    with pytest.raises(UserError, match="24 expressions are too few for 200 to train on and 6 to hold out"):
        precision.precision(archive, tmp_path, "bttr", preset, (7, 8), Sizes(200, 1, heldout=6))


def test_a_device_without_a_unit_for_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bf16_unit", lambda device: None)
    archive = open_archive(tiny_archive(tmp_path))
    with pytest.raises(UserError, match="both sides would be float32"):
        precision.precision(archive, tmp_path, "bttr", "smoke", (7, 8), Sizes(14, 1, heldout=6))
