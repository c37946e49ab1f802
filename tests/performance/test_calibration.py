"""Fitting the confidence of readings, and what is committed of it."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import traces
from hmerbench.benchmarks.data.normalize_image import decoded
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, hold_out
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import calibration
from hmerbench.benchmarks.performance.calibration import brier, calibrate, cross_validated, fitted, gap, log_loss, page
from hmerbench.benchmarks.performance.strange_pictures import KINDS, in_another_pen, nonsense
from hmerbench.benchmarks.performance.trial import PLAIN
from hmerbench.benchmarks.recognition.confidence import DOUBTFUL, FEATURES, Evidence
from hmerbench.benchmarks.recognition.recognizer import FITTED
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.inputs import GroundTruth
from tests.helpers.paths import ROOT
from tests.helpers.tiny import tiny_archive, tiny_config

TRUE = {"logp": 1.2, "steps": -0.1, "margin": 0.4, "apart": -0.5, "spread": -0.3, "both": 1.5}


def readings(count: int, seed: int = 0) -> pd.DataFrame:
    """Rows whose odds are linear in their evidence."""
    draw, rows = np.random.default_rng(seed), []
    for number in range(count):
        row: dict[str, Any] = {"id": f"w{number // 5}_em_{number}", "set": "heldout", "network": "n", "read": 1}
        row |= {"logp": -draw.exponential(2), "steps": draw.integers(2, 30), "margin": draw.uniform(-1, 10)}
        row |= {"apart": draw.exponential(1), "spread": draw.exponential(0.5), "both": float(draw.random() < 0.7)}
        odds = 0.5 + sum(weight * row[name] for name, weight in TRUE.items())
        rows.append(row | {"right": int(draw.random() < 1 / (1 + math.exp(-odds))), "per_token": 0.9})
    return pd.DataFrame(rows)


def test_it_is_the_regression_of_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rows = readings(300)
    inputs = rows[[*FEATURES]].to_numpy(float)
    mean, deviation = inputs.mean(0), inputs.std(0)
    theirs = linear.LogisticRegression(C=1 / (calibration.RIDGE * len(rows)), tol=1e-9, max_iter=1000)
    theirs.fit((inputs - mean) / deviation, rows["right"])
    expected = dict(zip(FEATURES, theirs.coef_[0] / deviation, strict=True))
    assert fitted(rows, FEATURES).weights == pytest.approx(expected, abs=1e-4)


def test_nothing_is_fitted_where_all_are_right() -> None:
    with pytest.raises(UserError, match="of 5 held-out readings 5 are right: nothing can be fitted"):
        fitted(readings(5).assign(right=1))


def test_a_row_has_no_part_in_its_own_cross_validation() -> None:
    rows = readings(400)
    before = cross_validated(rows, ("logp",))
    same_sheet = rows.assign(right=rows["right"].where(rows.index > 0, 1 - rows["right"]))
    assert cross_validated(same_sheet, ("logp",))[0] == before[0]
    assert cross_validated(same_sheet, ("logp",))[-1] != before[-1] or len({*before}) < len(before)


def test_measures() -> None:
    shares, right = np.array([0.9, 0.9, 0.2, 0.2]), np.array([1.0, 0.0, 0.0, 0.0])
    assert brier(shares, right) == pytest.approx((0.01 + 0.81 + 0.04 + 0.04) / 4)
    assert log_loss(shares, right) == pytest.approx(-(math.log(0.9) + math.log(0.1) + 2 * math.log(0.8)) / 4)
    assert gap(shares, right, 2) == pytest.approx((0.4 + 0.2) / 2)
    assert gap(np.full(10, 0.3), np.array([1.0] * 3 + [0.0] * 7), 1) == pytest.approx(0)


# ------------------------------------------------------------------------------------------------------ reading


def reading(latex: str) -> SimpleNamespace:
    return SimpleNamespace(nbest=[SimpleNamespace(latex=latex, evidence=Evidence(logp=-1.0, steps=2))])


def test_a_row_for_every_picture(tmp_path: Path) -> None:
    archive = open_archive(tiny_archive(tmp_path))
    [split, *_] = archive.tests
    (first, tokens), (second, _), (third, _), *_ = archive.captions(split).items()
    found = reading(" ".join(tokens)), reading("x +"), UserError("no ink")
    stand_in: Any = SimpleNamespace(each=lambda pictures: found[: len(pictures)])
    pictures = dict.fromkeys((first, second, third))
    rows = calibration.read(stand_in, "n", split, pictures, archive.truth_of(split, pictures))
    assert [(row["id"], row["read"], row["right"]) for row in rows] == [(first, 1, 1), (second, 1, 0), (third, 0, 0)]
    assert rows[0]["logp"] == -1.0 and rows[0]["per_token"] == round(math.exp(-0.5), 4) and "logp" not in rows[2]
    nothing = calibration.read(stand_in, "n", "no expression", {"a": None}, GroundTruth({}, None))
    assert [(row["read"], row["right"]) for row in nothing] == [(1, 0)]


def test_what_a_trial_held_out_is_taken_as_it_was_read(tmp_path: Path) -> None:
    archive = open_archive(tiny_archive(tmp_path))
    _, held = hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    run = RunFolder(tmp_path / "trial", tiny_config(tmp_path))
    with pytest.raises(UserError, match="give a run of `trial`"):
        calibration.heldout(run, archive)
    first, *others = held
    right = " ".join(first.tokens)
    nbest = [
        {"tokens": right, "score": -0.2, "forward": -0.1, "reverse": -0.1, "direction": direction, "spread": 0.5}
        for direction in ("l2r", "r2l")
    ]
    run.write("predictions/heldout.jsonl", [{"id": first.id, "tokens": right, "nbest": nbest}])
    rows = {row["id"]: row for row in calibration.heldout(run, archive)}
    assert [*rows] == [sample.id for sample in held]
    steps = len(first.tokens) + 1
    assert rows[first.id]["right"] == 1 and rows[first.id]["both"] == 1 and rows[first.id]["spread"] == 0.5
    assert rows[first.id]["logp"] == pytest.approx(-0.1 * steps**run.settings.search.alpha, abs=1e-3)
    assert all(rows[sample.id]["read"] == 0 for sample in others)
    del nbest[1]["spread"]
    run.write("predictions/heldout.jsonl", [{"id": first.id, "tokens": right, "nbest": nbest}])
    with pytest.raises(UserError, match="an earlier version"):
        calibration.heldout(run, archive)


@pytest.mark.parametrize("content", [None, "network,set\nn,heldout\n", "id,set,read,right\na,2014,1,1\n"])
def test_without_held_out_readings_nothing_is_written(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "confidence.csv").write_text(content)
    before = FITTED.read_bytes()
    with pytest.raises(UserError, match=r"confidence\.csv: (damaged|it has no rows of heldout)"):
        calibrate(tmp_path, None, None, [], 1)
    assert FITTED.read_bytes() == before


def test_pictures_in_other_pens_show_the_strokes() -> None:
    strokes = [np.array([(0.0, 0.0), (40.0, 30.0)]), np.array([(40.0, 0.0), (0.0, 30.0)])]
    for seed in range(3):
        gray = decoded(in_another_pen(strokes, 84, np.random.default_rng(seed)), "a")
        assert gray.shape[1] > gray.shape[0] > 60
        dark = gray < (int(gray.min()) + int(gray.max())) / 2
        assert 0.005 < dark.mean() < 0.3 and dark[:: len(dark) - 1].mean() < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_is_drawn(kind: str) -> None:
    one, again, other = (nonsense(kind, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one == again != other
    assert decoded(one, "a").shape[0] >= 180


INKML = b"""<ink xmlns="http://www.w3.org/2003/InkML"><trace id="0">1 2, 3 4</trace><trace id="1"></trace>
<trace id="2">5 6 7, 8 9 10</trace></ink>"""


def test_strokes_of_a_file() -> None:
    assert [stroke.tolist() for stroke in traces(INKML)] == [[[1, 2], [3, 4]], [[5, 6], [8, 9]]]
    with pytest.raises(ValueError, match="not XML"):
        traces(b"<ink>")


# ---------------------------------------------------------------------------------------------------- committed


def committed() -> list[dict[str, Any]]:
    return calibration.stored(ROOT / "results/confidence.csv")


def test_the_committed_numbers_are_what_the_held_out_readings_give(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "FITTED", tmp_path / "fitted.json")
    (tmp_path / "fitted.json").write_bytes(FITTED.read_bytes())  # tells the trial, which is not read again
    (tmp_path / "confidence.csv").write_bytes((ROOT / "results/confidence.csv").read_bytes())
    rows = calibrate(tmp_path, None, None, [], 1)
    ours, theirs = (json.loads(path.read_text()) for path in (tmp_path / "fitted.json", FITTED))
    assert ours["fitted"] == theirs["fitted"]
    assert ours["weights"] == pytest.approx(theirs["weights"], abs=1e-3)
    assert (tmp_path / "confidence.csv").read_text() == (ROOT / "results/confidence.csv").read_text()
    assert page(rows) == (ROOT / "results/confidence.md").read_text()


def test_the_trial_that_was_fitted_to_is_recorded() -> None:
    origin = json.loads(FITTED.read_text())["fitted"]
    trials = read_table(ROOT / "results/speed/recipe.csv")
    [trial] = [row for row in trials if row["revision"] == origin["revision"] and row["reading"] == PLAIN]
    options = "--recipe {recipe} --preset {preset} --epochs {epochs} --seed {seed}".format(**trial)
    assert origin["command"] == f"hmerbench trial {options}" and trial["trial"] == PLAIN
    assert origin["right"] == int(trial["exact"])
    assert int(trial["n"]) == sum(row["set"] == "heldout" for row in committed())


def test_a_fit_tells_the_trial_it_was_given_and_later_ones_keep_that(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "FITTED", tmp_path / "fitted.json")
    run = RunFolder(tmp_path / "tiny-seed7-0123", tiny_config(tiny_archive(tmp_path / "archive")))
    run.write("config.yaml", run.settings.to_yaml())
    run.write("environment.json", {"revision": "a" * 40})
    rows = readings(50).to_dict("records")
    others = [row | {"network": "an earlier trial"} for row in rows]
    (tmp_path / "confidence.csv").write_text(csv_text(calibration.COLUMNS, others))
    monkeypatch.setattr(calibration, "heldout", lambda *given: rows)
    archive: Any = "given"
    for trial in (run.path, None):
        calibrate(tmp_path, archive if trial else None, trial, [], 1)
        told = json.loads((tmp_path / "fitted.json").read_text())["fitted"]
        assert (told["run"], told["revision"], told["read"]) == ("tiny-seed7-0123", "a" * 40, 50)
        assert told["network"] != "an earlier trial"
        assert told["command"] == "hmerbench trial --recipe comer-fusion --preset tiny --epochs 3 --seed 7"
    assert calibration.recorded("another network") == {}


def of_medium() -> pd.DataFrame:
    rows = calibration.as_frame(committed())
    return rows.loc[rows["network"].str.contains("medium") & (rows["read"] == 1)]


def test_confidence_means_what_it_says_on_test_images() -> None:
    rows = of_medium()
    rows = rows.loc[rows["set"].str.isdecimal()]
    right, now, before = (rows[name].to_numpy(float) for name in ("right", "confidence", "per_token"))
    assert len(rows) > 150
    assert brier(now, right) < brier(before, right) - 0.05 and gap(now, right) < gap(before, right) / 2
    sure = now >= DOUBTFUL
    assert right[sure].mean() > 0.7 and right[~sure].mean() < 0.4


def test_what_shows_no_expression_is_refused_or_doubtful() -> None:
    shown = [row for row in committed() if "medium" in row["network"] and row["set"] == calibration.NONSENSE]
    assert len(shown) == calibration.EACH * len(KINDS)
    assert of_medium().query(f"set == '{calibration.NONSENSE}' and confidence >= {DOUBTFUL}").empty
