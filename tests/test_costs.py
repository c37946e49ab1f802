"""The cost model at tiny sizes: operators, shapes and sums are counted right, and a machine's limits are kept apart."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.progress import Progress
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.config import Config
from benchmarks.cost import achieved, epochs
from benchmarks.cost import model as costs
from benchmarks.cost.hardware import HARDWARE, Hardware, bound
from benchmarks.cost.operators import STEP, Counter, StepCounter, micro_step, optimizer_cost, size
from benchmarks.data.archive import open_archive
from benchmarks.data.batching import TrainingSet
from benchmarks.errors import UserError
from models import CoMER
from tests.helpers.tiny import tiny_archive, tiny_config

SHAPE = {"training": {"batching": {"order": "shape"}, "average": 0.9, "optimizer": {"name": "adamw", "clip": 1.0}}}


def tiny(folder: Path, overrides: dict | None = None) -> Config:
    return tiny_config(tiny_archive(folder), overrides)


def test_operators_are_counted_and_views_are_not() -> None:
    a, b = torch.ones(4, 10), torch.ones(4, 10)
    with Counter() as counter:
        counter.mark("one")
        _ = a + b  # two of 160 bytes read, one written
        counter.mark("in place")
        a.add_(b)
        counter.mark("fill")
        a.zero_()
        counter.mark("product")
        _ = a @ b.T
        counter.mark("view")
        _ = a.view(2, 20)[1:].t().expand(3, 20, 1), torch.empty(3), a.shape
    assert {part: cost.tolist()[:3] for part, cost in counter.costs.items()} == {
        "one": [1, 0, 480], "in place": [1, 0, 480], "fill": [1, 0, 160], "product": [1, 2 * 4 * 10 * 4, 384],
    }  # fmt: skip
    assert size(torch.ones(3, 1).expand(3, 1000)) == 12


@pytest.mark.parametrize("bf16", [False, True])
def test_a_step_is_counted_as_it_is_done(tmp_path: Path, bf16: bool) -> None:
    """On fake tensors, by parts, and on real ones: the same operators and the same arithmetic."""
    config = tiny(tmp_path, {"training": {"bf16": bf16}})
    counted = StepCounter(config, device_way=False)(2, 33, 50, 5)
    assert list(counted) == list(STEP)
    model, ids = CoMER(config.model).train(), torch.ones(4, 5, dtype=torch.long)
    images, mask = torch.zeros(2, 1, 33, 50, dtype=torch.uint8), torch.zeros(2, 33, 50, dtype=torch.bool)
    with FlopCounterMode(display=False) as flops, Counter() as counter:
        micro_step(model, config.training, images, mask, ids, ids)
    whole = sum(counted.values(), np.zeros(4))
    assert whole[1] == flops.get_total_flops() > 0
    assert whole[:2].tolist() == counter.costs[""][:2].tolist()
    assert whole[2] == pytest.approx(counter.costs[""][2], rel=1e-3)
    assert (whole[3] > 0) and whole[3] < whole[2]
    on_device = StepCounter(config)(2, 33, 50, 5)
    assert sum(on_device.values(), np.zeros(4))[0] < whole[0]  # a dropout is one operator there
    assert sum(on_device.values(), np.zeros(4))[1] == whole[1]


def test_costs_are_polynomials_of_the_shape(tmp_path: Path) -> None:
    count = StepCounter(tiny(tmp_path))
    shapes, others = epochs.probes(9, (17, 200), (3, 40), (2, 9)), [epochs.Shape(5, 77, 301, 50)]
    known = {shape: count(*shape) for shape in [*shapes, *others]}
    for part in STEP:
        basis = partial(epochs.decoder_basis, stride=16) if part.startswith("decoder") else epochs.encoder_basis
        fitted = epochs.Polynomial(basis, {shape: known[shape][part] for shape in shapes})
        assert fitted.error({shape: known[shape][part] for shape in others}) < 1e-3
        together = fitted([*others, *others])
        np.testing.assert_allclose(together, 2 * known[others[0]][part], rtol=1e-3, atol=1)


@pytest.mark.parametrize("overrides", [{}, SHAPE | {"augmentation": {"rotation": 4.0, "elastic": 1.0}}])
def test_shapes_are_those_of_the_batches(tmp_path: Path, overrides: dict) -> None:
    config = tiny(tmp_path, overrides)
    training = TrainingSet(open_archive(tmp_path).samples("train"), config)
    epoch = epochs.epoch_of(training, 1)
    batches = [training.batch(1, indices) for indices in training.plan(1)]
    assert [(s.b, 1, s.height, s.width) for s in epoch.shapes] == [tuple(b.images.shape) for b in batches]
    assert epoch.pixels == sum(int((~b.mask).sum()) for b in batches)
    assert epoch.padded_pixels == sum(b.mask.numel() for b in batches)
    longest = [max(map(len, b.tokens)) + 1 for b in batches]
    by_shape = config.training.batching.order == "shape"
    assert [s.steps for s in epoch.shapes] == [-(-n // 8) * 8 if by_shape else n for n in longest]
    assert epoch.images == sum(len(b.ids) for b in batches)


def test_the_limits_of_a_machine() -> None:
    machine = Hardware("m", "m", fp32=1e9, bf16=4e9, bandwidth=1e6, launch={"eager": 1.0}, devices=2)
    found = bound(np.array([8, 8e9, 2e6, 1e6]), machine, "eager", bf16=False, shared=True)
    assert (found.compute, found.memory, found.launch, found.least) == (4, 1, 4, 4)
    alone = bound(np.array([9, 8e9, 2e6, 12e6]), machine, "eager", bf16=True, shared=False)
    assert (alone.predicted, alone.limited_by, alone.least) == (9, "launches", 12)


def simply(config: Config) -> Any:
    """A counter whose costs are plain to see."""

    def count(b: int, height: int, width: int, steps: int) -> dict[str, np.ndarray]:
        sizes = [b * steps if part.startswith("decoder") else b * height * width for part in STEP]
        return {part: np.array([100, n, 50 * n, n], float) for part, n in zip(STEP, sizes, strict=True)}

    return count


def test_sums_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of a curriculum count as they are, a validation as often as it is made; devices share batches only."""
    monkeypatch.setattr(costs, "StepCounter", simply)
    monkeypatch.setattr(costs, "SearchCounter", lambda config: lambda *shape: np.array([100 * shape[3], 1, 1, 1.0]))
    overrides = {"training": {"epochs": 5, "validate_every": 2, "batching": {"curriculum": 1, "micro_batches": 4}}}
    config = tiny(tmp_path, overrides | {"select": "2014"})
    plan, _ = costs.planned(config, open_archive(tmp_path))
    assert [times for times, _ in plan.epochs] == [1, 4] and plan.validations == 3
    assert plan.epochs[0][1].images < plan.full.images
    with Progress(disable=True) as progress:
        counts = costs.counted(plan, False, progress)
    assert counts.error < 1e-6
    made = [costs.rows(plan, counts, HARDWARE[name], "eager") for name in ("2080ti", "4x2080ti")]
    one, four = ({row["part"]: row for row in rows} for rows in made)
    assert one["batch"]["launches"] == 100 * len(plan.full.shapes)
    assert one["validation"]["launches"] == 100 * sum(shape.steps for shape in plan.searches)
    assert one["encoder forward"]["gflop"] == pytest.approx(plan.full.padded_pixels / 1e9)
    parts: Any = [row for part, row in one.items() if part in (*STEP, "optimizer")]
    for key in ("launches", "gflop", "gbyte", "predicted_s", "least_s"):
        epoch: Any = one["epoch"][key]
        assert epoch == pytest.approx(sum(row[key] for row in parts))
        checks: Any = 3 * one["validation"][key]  # type: ignore[operator]
        assert 4 * epoch + checks < one["training"][key] < 5 * epoch + checks
    for part in ("encoder forward", "decoder backward"):
        assert four[part]["predicted_s"] == pytest.approx(one[part]["predicted_s"] / 4)  # type: ignore[operator]
    assert four["optimizer"]["predicted_s"] == one["optimizer"]["predicted_s"]
    assert one["optimizer"]["times"] == 5 and one["validation"]["times"] == 3


def test_an_optimizer_step_moves_what_it_must(tmp_path: Path) -> None:
    config = tiny(tmp_path, SHAPE)
    weights = sum(size(p) for p in CoMER(config.model).parameters())
    cost = optimizer_cost(config)
    assert cost[3] == pytest.approx((3 + 2 * 2 + 2) * weights)  # Adam has two moments; and the averaged weights
    assert cost[2] > cost[3] and cost[0] < 30


def test_the_verb_writes_crohme_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(tmp_path)
    archive, preset = open_archive(tmp_path), str(tmp_path / "tiny.yaml")
    with pytest.raises(UserError, match="--hardware abacus: not known; choose from h200, "):
        costs.cost(archive, tmp_path / "results", "bttr", [preset], ["abacus"])
    monkeypatch.setattr(costs, "StepCounter", simply)
    monkeypatch.setattr(costs, "searched", lambda plan, progress: np.ones(4))
    costs.cost(archive, tmp_path / "results", "bttr", [preset], ["h200"])
    said = capsys.readouterr()
    assert "PREDICTED, not measured: bttr tiny fp32 h200 graph" in said.out and "is not CROHME" in said.err
    assert not (tmp_path / "results").exists()
    with pytest.raises(UserError, match="--hardware 4x2080ti: has no bf16, or more devices than micro-batches"):
        costs.cost(archive, tmp_path / "results", "bttr", [preset], ["4x2080ti"])  # there are two micro-batches


def test_rows_of_other_presets_stay(tmp_path: Path) -> None:
    def made(recipe: str, preset: str, part: str, value: float) -> dict:
        return dict(zip(costs.KEYS, (recipe, preset, "fp32", "h200", "eager", part), strict=True)) | {"gflop": value}

    path = tmp_path / "cost.csv"
    first = [made("bttr", "paper", part, 1.0) for part in ("training", "batch")] + [made("bttr", "fast", "epoch", 3.0)]
    costs.save(path, pd.DataFrame(first), costs.KEYS)
    before = path.read_bytes()
    costs.save(path, pd.DataFrame(first[::-1]), costs.KEYS)
    assert path.read_bytes() == before
    costs.save(path, pd.DataFrame([made("bttr", "paper", "epoch", 4.0)]), costs.KEYS)
    table: Any = pd.read_csv(path)
    assert table[["preset", "part", "gflop"]].values.tolist() == [["fast", "epoch", 3.0], ["paper", "epoch", 4.0]]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="has other columns"):
        costs.save(path, pd.DataFrame(first), costs.KEYS)


def test_measured_beside_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(tmp_path, SHAPE)
    monkeypatch.setattr(achieved, "measured", lambda: replace(HARDWARE["h200"], launch={"eager": 1e-6}))
    achieved.measure(open_archive(tmp_path), "comer-fusion", str(tmp_path / "tiny.yaml"), batches=2, repeats=1)
    said = capsys.readouterr().out
    assert "share of" in said and "predicted / measured: " in said and "ms a thread" in said
