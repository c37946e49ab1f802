"""The gate on metrics: unchanged is quiet, planted faults are seen, and the baseline changes with a reason alone."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.optim import Optimizer

import models.coverage
from benchmarks import __main__ as cli
from benchmarks import config as configs
from benchmarks.data import batching
from benchmarks.data.archive import Archive, open_archive
from benchmarks.data.synthetic import embedded
from benchmarks.errors import UserError
from benchmarks.regression import baseline as regress
from benchmarks.regression import fixed_job
from benchmarks.training import trainer
from evaluation.scoring.stats import prediction_interval
from evaluation.symlg import builder
from tests.helpers.places import ROOT

BASELINE = ROOT / "results/baseline.json"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return open_archive(embedded(tmp_path_factory.mktemp("set") / "data.zip", train=64, test=8))


def differing(before: fixed_job.Values, now: fixed_job.Values) -> list[str]:
    assert before.keys() == now.keys()
    rows = [regress._row(item, before[item], now[item], regress.ROUNDING) for item in before]
    return [row.item for row in rows if row.verdict != "ok"]


# ------------------------------------------------------------------------------------------- the fixed job


def test_it_sees_coverage_shifted_by_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fixed_job.network_values()
    assert differing(before, fixed_job.network_values()) == []
    monkeypatch.setattr(models.coverage, "exclusive_coverage", lambda attention: attention.cumsum(-2))
    seen = differing(before, fixed_job.network_values())
    assert {f"comer-{row} network: loss" for row in ("self", "cross", "fusion")} <= set(seen)
    assert not any(item.startswith("bttr") for item in seen)


def test_it_sees_augmentation_off(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = fixed_job.batch_values(archive), batching.distort
    assert differing(before, fixed_job.batch_values(archive)) == []
    monkeypatch.setattr(batching, "distort", lambda _, *rest: real(None, *rest))
    seen = differing(before, fixed_job.batch_values(archive))
    assert {f"comer-fusion {preset} batches: ink" for preset in configs.names("presets")} <= set(seen)
    assert not any(item.startswith("bttr") for item in seen)


def test_it_sees_the_learning_rate_tenfold(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = fixed_job.first_steps(archive, "smoke"), trainer.set_rate

    def tenfold(optimizer: Optimizer, *rest: Any) -> float:
        rate = 10 * real(optimizer, *rest)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate

    assert differing(before, fixed_job.first_steps(archive, "smoke")) == []
    monkeypatch.setattr(trainer, "set_rate", tenfold)
    assert len(differing(before, fixed_job.first_steps(archive, "smoke"))) == 3


def test_it_sees_a_wrong_relation_in_symlg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In what committed predictions become, and in the embedded truth, which the same code makes."""
    small = embedded(tmp_path / "right.zip", train=1, test=30)
    before = fixed_job.scores(open_archive(small), None, ROOT / "results/reproduced")
    committed = [item for item in before if not item.startswith("embedded")]
    assert committed and all(before[item] == regress.read(BASELINE).scores[item] for item in committed)
    monkeypatch.setitem(builder.SCRIPTS, "msub", ("Sup",))
    wrong = embedded(tmp_path / "wrong.zip", train=1, test=30)
    after = fixed_job.scores(open_archive(wrong), None, ROOT / "results/reproduced")
    assert all(after[item] != before[item] for item in [*committed, "embedded truth: symLG"])


def test_predictions_are_spoilt_the_same_way_ever() -> None:
    assert fixed_job.spoil(["a", "^", "{", "2", "}"], 3) == fixed_job.spoil(["a", "^", "{", "2", "}"], 3)
    spoilt = [" ".join(fixed_job.spoil(["a", "+", "b"], number)) for number in range(200)]
    assert 40 < spoilt.count("a + b") < 80 and len(set(spoilt)) > 30


# ------------------------------------------------------------------------------------------------ judging


def made(runs: int = 20, seed: int = 1) -> regress.Baseline:
    draw = np.random.default_rng(seed)
    recorded = [{"seed": 101.0 + k, "loss": draw.normal(2, 0.1), "accuracy": draw.normal(40, 1)} for k in range(runs)]
    training = {"embedded": regress.Recorded(settings={"lr": 1}, environment={}, runs=recorded)}
    return regress.Baseline(
        scores={"embedded n": 8, "run, 2014: exact": 3, "run, 2014: symLG": "aa"},
        numerics={"loss": 2.0},
        training=training,
    )


def measured(loss: float = 2.0, numeric: float = 2.0, **scores: int) -> regress.Measured:
    fixed: fixed_job.Values = {"embedded n": 8, "run, 2014: symLG": "aa", **scores}
    return regress.Measured(
        fixed, {"loss": numeric}, {"embedded": {"loss": loss, "accuracy": 40.0}}, {"embedded": {"lr": 1}}
    )


def verdicts(now: regress.Measured, with_crohme: bool = False) -> dict[str, str]:
    rows = regress.compare(made(), now, regress.PARTS, with_crohme)
    return {row.item: row.verdict for row in rows if row.verdict != "ok"}


def test_what_counts_as_changed() -> None:
    assert verdicts(measured()) == {}
    assert verdicts(measured(), with_crohme=True) == {"run, 2014: exact": "gone"}
    assert verdicts(measured(numeric=2.0 * (1 + 3e-6))) == {}
    assert verdicts(measured(numeric=2.0 * (1 + 3e-5))) == {"loss": "changed"}
    assert verdicts(measured(numeric=math.nan)) == {"loss": "changed"}
    assert verdicts(measured(**{"embedded n": 9, "more": 1})) == {"embedded n": "changed", "more": "new"}
    for loss in (1.0, 3.0, math.nan):  # better than ever is a change, too
        assert verdicts(measured(loss=loss)) == {"embedded training: loss": "changed"}


def test_false_alarms_are_as_rare_as_stated() -> None:
    """A new run of the same program, judged by 20 others: one alarm in a hundred, over both metrics together."""
    draw = np.random.default_rng(5)
    alarms = 0
    for _ in range(2000):
        losses, accuracies = draw.normal(2, 0.1, 21), draw.normal(40, 1, 21)
        inside = [
            low <= values[0] <= high
            for values in (losses, accuracies)
            for low, high in [prediction_interval(values[1:].tolist(), 1 - regress.FALSE_ALARMS / 2)]
        ]
        alarms += not all(inside)
    assert 6 <= alarms <= 36  # 20 expected; 99.9 % of all such counts
    with pytest.raises(ValueError, match="two values"):
        prediction_interval([1.0])


def test_the_table_says_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, now = made(), measured(loss=9.0)
    now.settings["embedded"]["lr"] = 10
    text = regress.markdown(regress.compare(baseline, now, regress.PARTS, False), baseline, now)
    assert "1 of 5 items differ" in text and "lr 1 → 10" in text and "1% false alarms" in text
    (row,) = [line for line in text.splitlines() if "**changed**" in line]
    assert "embedded training: loss" in row and "9.0000" in row


def test_the_committed_baseline_was_recorded_often_enough() -> None:
    """At least twenty seeds a set; and each run, judged by the others, gives few alarms: the values are near enough to
    normal for the interval."""
    baseline = regress.read(BASELINE)
    assert baseline.history and all(entry["reason"] for entry in baseline.history)
    assert baseline.training.keys() == {"embedded", "crohme"}
    alarms = 0
    for name, recorded in baseline.training.items():
        assert len({run["seed"] for run in recorded.runs}) >= 20 and recorded.environment["versions"]["torch"]
        assert fixed_job.GATE_SEED not in {run["seed"] for run in recorded.runs}
        for run in recorded.runs:
            others = recorded.model_copy(update={"runs": [other for other in recorded.runs if other is not run]})
            rest = baseline.model_copy(update={"training": baseline.training | {name: others}})
            rows = regress.trained_rows(rest, name, {key: value for key, value in run.items() if key != "seed"})
            alarms += any(row.bad for row in rows)
    assert alarms <= 3  # of 40 runs or more


# ------------------------------------------------------------------------------------------------ commands


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, archive: Archive) -> Iterator[list[int]]:
    """The commands without the work: small measurements; the seeds that were trained."""
    seeds: list[int] = []

    def trained(_: Archive, seed: int) -> dict[str, float]:
        seeds.append(seed)
        return {"loss": 2 + 0.1 * math.sin(seed)}

    monkeypatch.setattr(regress, "open_archives", lambda crohme, path: {"embedded": archive})
    monkeypatch.setattr(fixed_job, "scores", lambda *_: {"embedded n": 8})
    monkeypatch.setattr(fixed_job, "numerics", lambda: {"loss": 2.0})
    monkeypatch.setattr(fixed_job, "trained", trained)
    yield seeds


def run(*arguments: str) -> None:
    cli.app(["regress", *arguments], standalone_mode=False)


def test_record_compare_accept(quick: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    path = tmp_path / "baseline.json"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    with pytest.raises(UserError, match="one run has no spread; give 2 or more"):
        run("--baseline", str(path), "--record", "1", "--reason", "first")
    run("--baseline", str(path), "--record", "4", "--reason", "first")
    assert quick == [101, 102, 103, 104]
    run("--baseline", str(path))
    assert "all 3 items as before" in (tmp_path / "summary.md").read_text()
    monkeypatch.setattr(fixed_job, "numerics", lambda: {"loss": 2.1})
    with pytest.raises(UserError, match="make regress-update REASON="):
        run("--baseline", str(path))
    assert "**changed**" in capsys.readouterr().out
    quick.clear()
    run("--baseline", str(path), "--update", "--reason", " a better loss ")
    assert quick == [fixed_job.GATE_SEED]  # within the recorded runs, so those stay
    run("--baseline", str(path))
    history = json.loads(path.read_text())["history"]
    assert [entry["reason"] for entry in history] == ["first", "a better loss"]
    assert history[1]["changed"] == ["loss"]
    with pytest.raises(UserError, match="a reason is needed"):
        run("--baseline", str(path), "--update", "--reason", " ")


def test_a_stopped_recording_goes_on(quick: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fixed_job.trained

    def stopping(archive: Archive, seed: int) -> dict[str, float]:
        if seed == 103:
            raise RuntimeError("killed")
        return real(archive, seed)

    path = tmp_path / "baseline.json"
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="killed"):
        context.setattr(fixed_job, "trained", stopping)
        run("--baseline", str(path), "--record", "4", "--reason", "first")
    assert not path.exists()
    run("--baseline", str(path), "--record", "4", "--reason", "first")
    assert quick == [101, 102, 103, 104]
    assert len(regress.read(path).training["embedded"].runs) == 4


def test_metrics_out_of_range_are_recorded_anew(quick: list[int], tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "baseline.json"
    run("--baseline", str(path), "--record", "4", "--reason", "first")
    monkeypatch.setattr(fixed_job, "trained", lambda _, seed: {"loss": 3 + 0.1 * math.sin(seed)})
    monkeypatch.setattr(regress, "program_digest", lambda: "changed")
    with pytest.raises(UserError):
        run("--baseline", str(path))
    run("--baseline", str(path), "--update", "--reason", "another optimizer")
    runs = regress.read(path).training["embedded"].runs
    assert len(runs) == 20 and min(run["loss"] for run in runs) > 2.8


def test_a_baseline_that_is_not_there_or_damaged(quick: list[int], tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    with pytest.raises(UserError, match="no baseline"):
        run("--baseline", str(path))
    for text, words in (("{", "damaged baseline"), ('{"scores": {"a": []}}', "scores.a"), ('{"more": 1}', "more")):
        path.write_text(text)
        for arguments in ([], ["--update", "--reason", "because"]):
            with pytest.raises(UserError, match=words):
                run("--baseline", str(path), *arguments)
        assert path.read_text() == text
    with pytest.raises(UserError, match="no part 'speed'"):
        run("--baseline", str(BASELINE), "--parts", "speed")
