"""The main job on a tiny archive and a tiny network: what is done is not repeated, and each stage can run alone."""

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from hmerbench.benchmarks import reproduce as job
from hmerbench.benchmarks import score
from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import Diverged, UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.place import Bystander, Died
from hmerbench.benchmarks.recognition import predict
from hmerbench.benchmarks.report.presets import expected_seconds
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import forget_trainings
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.benchmarks.runtime import configure_output
from hmerbench.benchmarks.tracking import track
from hmerbench.benchmarks.training import trainer
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.models.files import CheckpointError
from hmerbench.models.weights import load_weights, pack_weights
from tests.helpers.made_up import put_history
from tests.helpers.reproducing import reproduce
from tests.helpers.tiny import tiny_archive, tiny_config


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the stages that ran, in order; MLflow is left out (tests/tracking/)."""
    ran: list[str] = []
    for module, name in ((trainer, "train"), (predict, "predict"), (score, "score")):
        real = getattr(module, name)

        def spy(*arguments, real=real, name=name):
            ran.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, spy)
    monkeypatch.setattr(track, "track", lambda *_, **__: None)
    monkeypatch.setattr(track, "live", lambda _: nullcontext())
    return ran


@pytest.fixture
def preset(archive: Path) -> str:
    tiny_config(archive, {"training": {"epochs": 1}})
    return str(archive / "tiny.yaml")


@pytest.fixture
def bttr(archive: Path, preset: str, tmp_path: Path) -> Callable[..., None]:
    """The main job for one row, by default with one seed."""
    return lambda seeds=(7,), **more: reproduce(["bttr"], preset, seeds, archive, tmp_path, **more)


@pytest.fixture
def done(bttr: Callable[..., None], tmp_path: Path, stages: list[str]) -> RunFolder:
    """A run of which every stage is done, and forgotten in `stages`."""
    bttr()
    stages.clear()
    (folder,) = tmp_path.glob("local/foreign-*/runs/bttr/*")
    return RunFolder(folder)


def test_stages_that_are_done_are_not_repeated(
    archive: Path, preset: str, tmp_path: Path, stages: list[str], capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(["bttr", "comer-fusion"], preset, [7], archive, tmp_path)
    assert stages == ["train", "predict", "score"] * 2
    space = workspace(open_archive(archive), tmp_path)
    assert space.parent == tmp_path / "local" and space.name.startswith("foreign-")
    for folder in (space / "runs").glob("*/*"):
        score = json.loads((folder / "scores/2014.json").read_text())
        assert score["n"] == 5 and "set:foreign2014|n:5" in score["signature"]
        assert len((folder / "scores/2014.csv").read_text().splitlines()) == 6
    said = capsys.readouterr().out
    assert "NOT CROHME numbers" in said and "plan: preset tiny" in said and "seconds" in said
    own = said.partition("this job: ExpRate in percent")[2]  # the last thing said
    assert [line.split("│")[1].strip() for line in own.splitlines() if "│" in line] == ["bttr", "comer-fusion"]
    meaning = own.splitlines()[-1]
    assert "BTTR → CoMER (Fusion)" in meaning and "(95 %: " in meaning
    assert "over images; 1 seed in common: no order" in meaning
    assert f"hmerbench compare {space / 'runs'} tests the rows" in meaning
    assert (space / "table2.csv").exists() and not (tmp_path / "local/table2.csv").exists()

    stages.clear()
    with monkeypatch.context() as patch:  # a job whose output is not UTF-8 prints its tables, too
        printed = io.TextIOWrapper(io.BytesIO(), "latin-1", errors="strict")
        patch.setattr("sys.stdout", printed)
        configure_output()
        reproduce(["bttr", "comer-fusion"], preset, [7], archive, tmp_path)
        printed.flush()
    again = printed.buffer.getvalue().decode("latin-1")  # type: ignore[attr-defined]
    assert stages == [] and "already done" in again and "BTTR -> CoMER (Fusion)" in again
    reproduce(["bttr"], preset, [7, 7], archive, tmp_path, force=True)
    assert stages == ["train", "predict", "score"]


def test_another_search_trains_nothing_anew(archive: Path, tmp_path: Path, stages: list[str], capsys) -> None:
    last = {"select": "last", "training": {"epochs": 1, "schedule": {"name": "cosine"}}}
    for beams in (2, 3):
        tiny_config(archive, {**last, "search": {"beam_size": beams}})
        reproduce(["bttr"], str(archive / "tiny.yaml"), [7], archive, tmp_path)
    assert stages == ["train", "predict", "score", "predict", "score"]
    assert capsys.readouterr().err.count("only in its search") == 1
    runs = [RunFolder(path.parent) for path in tmp_path.glob("local/*/runs/*/*/config.yaml")]
    assert sum("trained_in" in run.environment for run in runs) == 1 and all(run.scored("2014") for run in runs)


@pytest.mark.long
def test_parallel_runs_equal_sequential_runs(
    archive: Path, preset: str, tmp_path: Path, stages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(["bttr"], preset, [7, 8, 9], archive, tmp_path / "a", placing=Placing(jobs=2))
    assert not stages  # none in this process
    said = capsys.readouterr().out
    assert said.count(": done") == 3 and "epoch 1/1" in said
    reproduce(["bttr"], preset, [7, 8, 9], archive, tmp_path / "b")
    one, other = (sorted(tmp_path.glob(f"{name}/local/foreign-*/runs/*/*/best.safetensors")) for name in "ab")
    assert len(one) == 3 and [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    stages.clear()
    reproduce(["bttr"], preset, [7, 8, 9], archive, tmp_path / "a", placing=Placing(jobs=2))
    assert not stages


def test_parallel_runs_are_logged_as_running_until_they_are_stopped(archive: Path, tmp_path: Path, monkeypatch) -> None:
    run, logged = RunFolder(tmp_path / "run", tiny_config(archive)), []
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda _, running=False: logged.append(running))

    class Engine:
        """Its run ends its first epoch, and is interrupted in the next."""

        def start(self, *_: object) -> None:
            put_history(run.path, [{}])

        def ended(self, seconds: float) -> dict[str, None]:
            if logged:
                raise KeyboardInterrupt
            return {}

        def stop(self) -> None:
            logged.append("stopped")

    engine: Any = Engine()
    with pytest.raises(KeyboardInterrupt):
        job._work([run], ["2014"], engine, 1)
    assert logged == [True, "stopped", False]


def test_a_run_that_lacked_memory_waits_until_another_has_ended(archive: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)
    config = tiny_config(archive)
    a, b = (RunFolder(tmp_path / str(seed), config.model_copy(update={"seed": seed})) for seed in (7, 8))
    first, second = a.settings.run_name, b.settings.run_name
    started, ended = [], iter([{second: Died("CUDA out of memory; see b.log")}, {}, {first: None}, {second: None}])
    engine: Any = SimpleNamespace(start=lambda name, *_: started.append(name), stop=lambda: None)
    engine.ended = lambda _: started.append("waited") or next(ended)
    assert job._work([a, b], ["2014"], engine, 2) == []
    assert started == [first, second, "waited", "waited", "waited", second, "waited"]


def test_a_run_that_fails_does_not_stop_the_others(
    archive: Path, preset: str, tmp_path: Path, bttr, stages: list[str]
) -> None:
    space = workspace(open_archive(archive), tmp_path)
    broken = space / "runs" / resolve("bttr", preset, 7, open_archive(archive)).run_name
    broken.mkdir(parents=True, exist_ok=True)
    (broken / "checkpoint.safetensors").write_bytes(b"no weights")
    (broken / "history.jsonl").write_text("{")
    for jobs, seed in ((2, 8), (1, 9)):
        with pytest.raises(UserError, match=r"checkpoint\.safetensors.*delete it"):
            bttr([7, seed], placing=Placing(jobs=jobs))
        assert len(list(space.glob(f"runs/bttr/*seed{seed}*/scores/2014.json"))) == 1
    assert ",2," in (space / "table2.csv").read_text()  # both seeds that could be trained
    with pytest.raises(UserError, match="--jobs works with the engine local only"):
        bttr([7, 8], placing=Placing("ray", 2))


def test_damaged_weights_of_one_run_stop_no_other(done: RunFolder, bttr) -> None:
    done.weights_file.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"best\.safetensors: damaged"):
        bttr([7, 9])
    assert len(list(done.path.parent.glob("*seed9*/scores/2014.json"))) == 1


def test_a_run_whose_process_keeps_dying_is_given_up(bttr, stages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """How often it was stopped for the death of another does not count."""
    began: list[str] = []

    class Dying:
        def start(self, name: str, *_: object) -> None:
            began.append(name)

        def ended(self, _: float) -> dict[str, BaseException]:
            error = Bystander("stopped") if len(began) <= 7 else Died("killed by SIGKILL")
            return {began[-1]: error if len(began) < 99 else KeyboardInterrupt("for ever")}

        def stop(self) -> None: ...

    monkeypatch.setattr(Placing, "open", lambda *_: Dying())
    with pytest.raises(UserError, match="a run failed: killed by SIGKILL"):
        bttr(placing=Placing(jobs=2))
    assert len(began) == 7 + job.ATTEMPTS == 11


def test_a_job_that_is_refused_discards_nothing(archive: Path, preset: str, tmp_path: Path, stages: list[str]) -> None:
    """A process works in its second folder, or that folder is of other settings."""
    reproduce(["bttr", "comer-self"], preset, [7], archive, tmp_path)
    bttr, other = (path.parent for path in sorted(tmp_path.glob("local/*/runs/*/*/checkpoint.json")))
    stages.clear()
    with locked(other), pytest.raises(UserError, match="is working in it"):
        reproduce(["bttr", "comer-self"], preset, [7], archive, tmp_path, force=True)
    (other / "config.yaml").write_text((other / "config.yaml").read_text().replace("seed: 7", "seed: 8"))
    with pytest.raises(UserError, match=r"comer-self.*seed"):
        reproduce(["bttr", "comer-self"], preset, [7], archive, tmp_path, force=True)
    assert (bttr / "checkpoint.json").exists() and RunFolder(bttr).history and not stages


def test_no_other_job_slips_in_while_trainings_are_forgotten(tmp_path: Path, monkeypatch) -> None:
    runs = [RunFolder(tmp_path / str(seed), resolve("bttr", "smoke", seed)) for seed in (7, 8)]

    def another(run: RunFolder, *_: object) -> None:
        for other in runs:
            with pytest.raises(UserError, match="is working in it"), locked(other.path):
                pass

    monkeypatch.setattr(RunFolder, "write", another)
    forget_trainings(runs)


def test_lost_weights_of_a_finished_run_are_written_again(archive: Path, tmp_path: Path, bttr, stages) -> None:
    tiny_config(archive, {"select": "last", "training": {"schedule": {"name": "cosine"}}})
    bttr()
    (weights,) = tmp_path.glob("local/*/runs/*/*/best.safetensors")
    before = weights.read_bytes()
    weights.unlink()
    stages.clear()
    bttr()
    assert weights.read_bytes() == before and stages == ["train"]  # what was read with them stays


def test_only_what_is_stale_is_repeated(done: RunFolder, bttr, stages: list[str]) -> None:
    (done.path / "scores/2014.json").unlink()
    bttr(years=["2014"])
    assert stages == ["score"]
    stages.clear()
    (done.path / "predictions/2014.tsv").unlink()
    bttr()
    assert stages == ["predict"]  # the same predictions as before, whose score is there
    stages.clear()
    bttr([8])
    assert stages == ["train", "predict", "score"]


def test_stale_is_what_was_made_from_other_contents(done: RunFolder, bttr, stages: list[str]) -> None:
    weights = done.weights_file
    predictions, scores = (done.path / name for name in ("predictions/2014.tsv", "scores/2014.json"))
    tomorrow = time.time() + 86400

    def unchanged() -> None:
        for path in (weights, predictions):
            os.utime(path, (tomorrow, tomorrow))

    def other_weights() -> None:
        model = load_weights(weights)
        torch.nn.init.zeros_(model.get_parameter("decoder.proj.bias"))
        weights.write_bytes(pack_weights(model))

    def other_predictions() -> None:
        predictions.write_text(tsv({"w0_0": ["1"]}))

    def no_record() -> None:  # as in a folder that an older version made
        (done.path / "sources.json").unlink()

    def older_scorer() -> None:
        scores.write_text(scores.read_text().replace("|v:", "|v:0"))

    def damaged_score() -> None:
        scores.write_text("{")

    expected = {unchanged: [], other_weights: ["predict"], other_predictions: ["score"]}
    expected |= {older_scorer: ["score"], damaged_score: ["score"], no_record: []}
    for change, first in expected.items():
        stages.clear()
        change()
        bttr()
        assert stages[:1] == first, change.__name__


def test_each_stage_alone(archive: Path, preset: str, tmp_path: Path, stages: list[str], capsys) -> None:
    given = ["--crohme", str(archive), "--results", str(tmp_path)]
    named = ["--recipe", "bttr", "--preset", preset]
    cli.app(["train", *named, *given], standalone_mode=False)
    (folder,) = tmp_path.glob("local/foreign-*/runs/bttr/*")
    cli.app(["predict", str(folder), *given], standalone_mode=False)
    cli.app(["score", str(folder), *given], standalone_mode=False)
    tools = "conv:1.4|pandoc:1.19|lgeval:0.3.5"
    signature = f"ExpRate|set:foreign2014|n:5|metric:symlg|{tools}|search:joint2|select:2014"
    assert signature in capsys.readouterr().out
    assert stages == ["train", "predict", "score"]
    with pytest.raises(UserError, match="give the archive with --crohme"):
        cli.app(["predict", str(folder)], standalone_mode=False)
    other = tiny_archive(tmp_path / "other", train=8)
    with pytest.raises(UserError, match="their digests differ"):
        cli.app(["train", str(folder), "--crohme", str(other)], standalone_mode=False)


def test_missing_input_is_named(archive: Path, tmp_path: Path) -> None:
    given = ["--crohme", str(archive), "--results", str(tmp_path)]
    folder = tmp_path / "runs/bttr"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(tiny_config(archive).to_yaml())
    with pytest.raises(UserError, match=r"best\.safetensors: there are no trained weights"):
        cli.app(["predict", str(folder), *given], standalone_mode=False)
    with pytest.raises(UserError, match=r"2014\.tsv: there is nothing to score"):
        cli.app(["score", str(folder), "--years", "2014", *given], standalone_mode=False)
    with pytest.raises(UserError, match="no test set '2016', only 2014"):
        cli.app(["reproduce", "--years", "2016", *given], standalone_mode=False)
    shutil.copytree(archive, tmp_path / "mine", ignore=shutil.ignore_patterns("2014"))
    with pytest.raises(UserError, match="mine: it has no test set; put the captions of one"):  # not "done"
        cli.app(["reproduce", "--crohme", str(tmp_path / "mine")], standalone_mode=False)


def test_a_subset_is_scored_as_such(archive: Path, tmp_path: Path, stages: list[str]) -> None:
    config = tiny_config(archive, {"training": {"epochs": 1}, "search": {"limit": 3}})
    opened = open_archive(archive)
    reproduce(["comer-fusion"], str(archive / "tiny.yaml"), [7], archive, tmp_path)
    space = workspace(opened, tmp_path)
    assert json.loads((space / "runs" / config.run_name / "scores/2014.json").read_text())["n"] == 3
    assert "foreign 2014 [3 evenly spaced]" in (space / "table2.csv").read_text()


def test_interrupted_training_keeps_earlier_results(done: RunFolder, bttr, capsys, monkeypatch) -> None:
    """But they are not its own: nothing shows them as what it reads."""
    kept = {p: p.read_bytes() for p in [*done.path.glob("predictions/*"), *done.path.glob("scores/*")]}
    monkeypatch.setattr(trainer, "train", Mock(side_effect=[KeyboardInterrupt, Diverged("no longer finite")]))
    with pytest.raises(KeyboardInterrupt):
        bttr(force=True)
    capsys.readouterr()
    with pytest.raises(Diverged):
        bttr()
    assert "this job" not in capsys.readouterr().out and RunFolder(done.path).status == ("untrained", "")
    assert kept and all(path.read_bytes() == content for path, content in kept.items())


def test_epochs_are_chosen_for_all_runs(archive: Path, preset: str, tmp_path: Path, stages: list[str]) -> None:
    """Another number is another run, which is not repeated; the preset's own number is the preset."""
    config = tiny_config(archive, {"training": {"epochs": 3}})
    assert job.with_epochs(config, 3) == config
    smoke = resolve("bttr", "smoke", 7)
    named, other = (RunFolder(tmp_path / "run", it).command for it in (smoke, job.with_epochs(smoke, 2)))
    assert named.endswith("--preset smoke --seed 7") and other == f"hmerbench train {tmp_path / 'run'}"
    given = ["--crohme", str(archive), "--results", str(tmp_path), "--preset", str(archive / "tiny.yaml")]
    for _ in range(2):
        cli.app(["reproduce", "--recipes", "bttr", "--epochs", "2", *given], standalone_mode=False)
    assert stages == ["train", "predict", "score"]
    (run,) = tmp_path.glob("local/foreign-*/runs/bttr/tiny-2-epochs-seed7-*")
    assert len((run / "history.jsonl").read_text().splitlines()) == 2
    assert "tiny-2-epochs" in (run.parents[2] / "table2.csv").read_text()


def test_the_plan_estimates_training_time_from_earlier_runs(archive: Path, done: RunFolder, tmp_path: Path) -> None:
    config = tiny_config(archive, {"training": {"epochs": 1}})
    assert expected_seconds(RunFolder(tmp_path / "elsewhere/runs" / config.run_name, config)) is None
    assert (expected_seconds(RunFolder(done.path.parents[1] / config.run_name, config)) or 0) > 0


def test_a_job_without_rows_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recipe or no seed is given"):
        reproduce(["bttr"], "smoke", [], archive, tmp_path)


def test_a_lack_of_what_the_tables_need_is_told_before_the_training(bttr, stages: list[str], monkeypatch) -> None:
    monkeypatch.delattr("hmerbench.benchmarks.report.tables", raising=False)
    monkeypatch.setitem(sys.modules, "hmerbench.benchmarks.report.tables", None)
    with pytest.raises(ModuleNotFoundError):
        bttr()
    assert stages == []


def test_torchrun_is_for_training_alone(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="with torchrun and the command train"):
        job.reproduce([], open_archive(archive), [], tmp_path, Placing())
