"""The speed benchmark at tiny sizes: measuring, writing and errors; never how fast anything is."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import bench
from hmerbench.benchmarks.report.documents import update_table
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.models.layers import Dropout
from hmerbench.models.settings import CoMERSettings, LanguageConfig
from tests.helpers.fork_server import forked
from tests.helpers.paths import ROOT

NETWORK = CoMERSettings(d_model=16, growth_rate=4, num_layers=1, nhead=2, dim_feedforward=24, dc=4)
LANGUAGE = LanguageConfig(character_size=2, widths=2, filters=2, hidden=4)
SEARCH = {"beam": 2, "steps": 5, "many_steps": 9, "batch": 2}
TINY = bench.Sizes(NETWORK, 32, 64, **SEARCH, train_batch=2, tokens=4, language=LANGUAGE, lexicon=50, columns=(3, 2))
COLUMNS = ["benchmark", "plain", "fast", "ratio", "unit", "n", "spread", "hardware", "versions"]
NAMES = [*bench.cases(TINY), *(f"peak_memory_{name}" for name in bench.PEAKS)]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch, bf16_unit: None) -> None:
    monkeypatch.setattr(bench, "TURN", 0.0)


def test_sides_alternate_for_full_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], [0, 0]

    def job(side: int, takes: float) -> None:
        done[side] += 1
        now[0] += takes

    monkeypatch.setattr(bench, "TURN", 2.0)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    times = bench.seconds((lambda: job(0, 0.5), lambda: job(1, 3.0)), repeats=5)
    assert times == [[0.5] * 5, [3.0] * 5]
    assert done == [1 + 5 * 4, 1 + 5]  # once to warm up, then for five turns


def make_row(name: str) -> bench.Row:
    return bench.timing(name, "MiB", plain=4.0, fast=2.0, ratio=2.0, n=3, spread=0.0)


def test_all_rows_are_written(tmp_path: Path, capsys, monkeypatch) -> None:
    parts = ["search", "train_step", "language"]
    monkeypatch.setattr(bench, "peak", lambda name, *_: make_row(f"peak_memory_{name}"))
    bench.bench(tmp_path, parts, 3, TINY)
    table: Any = pd.read_csv(tmp_path / "speed/cpu.csv")
    assert list(table.columns) == COLUMNS
    assert list(table["benchmark"]) == [name for name in NAMES if any(part in name for part in parts)]
    known = {row["benchmark"] for row in read_table(ROOT / "results/speed/cpu.csv")}
    assert {*table["benchmark"]} == {name for name in known if not name.startswith("crohme2014")}
    assert (table["n"] == 3).all() and (table["spread"] >= 0).all() and (table["plain"] > 0).all()
    for _, row in table.iterrows():
        gain = row["fast"] / row["plain"] if row["unit"] in ("images/s", "words/s") else row["plain"] / row["fast"]
        assert row["ratio"] == pytest.approx(gain, rel=0.01)
        assert "torch" in row["versions"] and "thread" in row["hardware"]
    assert "search_beam10_30steps_fp32" in capsys.readouterr().out


def test_rows_not_measured_are_kept(tmp_path: Path) -> None:
    old = [make_row(name) for name in ("train_step_fp32", "train_step_bf16")]
    update_table(tmp_path / "cpu.csv", old, ["benchmark"])
    update_table(tmp_path / "cpu.csv", [old[0] | {"fast": 3.0}, make_row("language_step_fp32")], ["benchmark"])
    table: Any = pd.read_csv(tmp_path / "cpu.csv").set_index("benchmark")
    assert list(table.index) == ["train_step_fp32", "train_step_bf16", "language_step_fp32"]
    assert list(table["fast"]) == [3.0, 2.0, 2.0]


def test_a_table_with_other_columns_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cpu.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"cpu\.csv: has other columns"):
        update_table(tmp_path / "cpu.csv", [make_row("train_step_fp32")], ["benchmark"])
    assert (tmp_path / "cpu.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(("name", "unit"), [("nonsense", "a unit"), ("train_step_bf16", None)])
def test_an_unknown_benchmark_or_emulated_bf16_is_refused(tmp_path: Path, monkeypatch, name: str, unit: str) -> None:
    monkeypatch.setattr(bench, "bf16_unit", lambda device: unit)
    known = f"--only {name}: no benchmark has this name; choose from search_beam10_30steps_fp32"
    with pytest.raises(UserError, match=known):
        bench.bench(tmp_path, [name], 5, TINY)
    assert not any(tmp_path.iterdir())


def test_a_busy_machine_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for load, busy in ((3.0, True), (0.1, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        bench.bench(tmp_path, ["language_step_fp32"], 1, TINY)
        assert ("not quiet" in capsys.readouterr().err) == busy


def test_peak_memory_is_measured_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "get_context", {"spawn": forked()}.__getitem__)  # not off this process either
    ballast = b"x" * 2**30  # of this process, not the measured one
    measured = bench.peak("search_beam10_30steps_fp32", TINY, 1)
    assert measured["unit"] == "MiB" and 50 < measured["fast"] < len(ballast) / 2**20


def test_both_searches_find_the_same() -> None:
    plain, fast = (side() for side in bench.searching(TINY, False, 12, 2))
    for ours, reference in zip(fast, plain, strict=True):  # type: ignore[call-overload]
        assert [found.ids for found in ours] == [found.ids for found in reference] and len(ours[0].ids) == 12
        assert [found.score for found in ours] == pytest.approx([found.score for found in reference], abs=1e-5)


def test_both_float32_steps_train_the_same() -> None:
    """Without dropout, whose draws differ, losses agree; the plain side uses torch's dropout only."""
    sizes = replace(TINY, model=replace(NETWORK, dropout=0.0, encoder_dropout=0.0))
    plain, fast = bench.training(sizes, False)
    for _ in range(3):
        torch.testing.assert_close(plain(), fast())
    model = bench.network(TINY)
    bench.with_torch_dropout(model)
    kinds = [type(module) for module in model.modules()]
    assert Dropout not in kinds and nn.Dropout in kinds


def test_growth_covers_every_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"image_area": ("width", (32, 64)), "sequence_length": ("steps", (2, 4)), "beam_width": ("beam", (1, 2))}
    monkeypatch.setattr(bench, "GROWTH", short)
    monkeypatch.setattr(bench, "GROUND", {"width": 64, "steps": 3, "beam": 2, "batch": 1})
    assert bench.bench(tmp_path, ["growth"], 1, TINY) == []
    table: Any = pd.read_csv(tmp_path / "speed/growth.csv")
    assert list(table["axis"].unique()) == list(short) and (table[["plain", "fast"]] > 0).all().all()
    assert list(table["value"][:2]) == [32 * 32, 32 * 64] and set(table["n"]) == {1}
