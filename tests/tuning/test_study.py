"""Tuning: valid spaces, sampling, recovery from kills, and the resulting recipe."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock
from zipfile import ZipFile

import optuna
import pandas as pd
import pytest
import sqlalchemy.exc
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.config import SEED_LIMIT
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import evenly, hold_out
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.place import Bystander, Died, Place
from hmerbench.benchmarks.resolve import load, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.tuning import study as driver
from hmerbench.benchmarks.tuning.results import heldout_size, trial_table
from hmerbench.benchmarks.tuning.space import Parameter, pose, read_space
from hmerbench.benchmarks.tuning.trials import FINISHED_STATES, Job, KeyedTPE, Retry
from tests.helpers.paths import NO_STORE, ROOT
from tests.helpers.studies import SPACE, fake_train, posed, with_
from tests.helpers.tiny import tiny_archive


def tune(given: dict[str, Any], trials: int, workers: int, storage: str = "", engine: str = "local") -> Path:
    """Tune as the command does."""
    driver.refuse_storage(engine, storage)
    archive = open_archive(given["crohme"])
    return driver.tune(posed(given), archive, given["results"], trials, Placing(engine, workers), storage)


class Killed(BaseException):
    """A kill of a worker, after which no handler runs: a BaseException, so that no code under test catches it."""


class Inline:
    """An engine without processes: a job runs when the driver polls for ended jobs."""

    def __init__(self, archive: Path, space: Path, *_: Any):
        self.place, self.queue = Place(archive, space), []

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        self.queue.append((name, job, arguments))

    def ended(self, seconds: float) -> dict[str, Exception | None]:
        name, job, arguments = self.queue.pop(0)
        try:
            job(self.place, *arguments)
        except Killed:
            return {name: Died("killed by SIGKILL")}
        except Exception as error:
            return {name: error}
        return {name: None}

    def stop(self) -> None:
        self.queue.clear()


@pytest.fixture
def logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies in this process, of trainings that are none."""
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.Processes", Inline)
    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", fake_train)


@pytest.fixture
def inline(logging, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("track", "set_status"):
        monkeypatch.setattr(f"hmerbench.benchmarks.tracking.track.{name}", lambda *_, **__: None)


def opened(folder: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return optuna.load_study(study_name=folder.name, storage=storage)


# ------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize("preset", ["smoke", "small", "paper", "gpu"])
def test_shipped_spaces_fit_their_presets(tmp_path: Path, preset: str) -> None:
    archive = tiny_archive(tmp_path / "tiny")
    (tmp_path / "inkml").mkdir()
    ZipFile(tmp_path / "inkml/train.zip", "w").close()  # gpu names the digest of the pen strokes
    problem = pose("comer-fusion", preset, 7, open_archive(archive))
    assert problem.left_out == () and problem.base.select == "heldout"
    full = resolve("comer-fusion", preset, 7, open_archive(archive)).training.epochs
    first = problem.space.pruning.epochs + 1  # after which a trial may be stopped
    assert first < problem.base.training.epochs < full
    assert problem.base.changed(problem.defaults) == problem.base
    assert pose("bttr", preset, 7, open_archive(archive)).left_out[0].startswith("augmentation.")


def test_the_space_of_small_names_its_studies_as_before() -> None:
    """What is renamed begins again."""
    text = read_space("small")[1].model_dump_json()
    assert hashlib.sha256(text.encode()).hexdigest()[:8] == "44c23827"


def only(name: str, parameter: Any) -> dict[str, Any]:
    return SPACE | {"parameters": {name: parameter}}


NULL = {"budget": {"augmentation": None}}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (with_(trials=3), "space.yaml: trials: no such key"),
        ({"budget": {}}, "space.yaml: parameters: Field required"),
        (only("training.optimizer.lr", {"low": 1.0}), "lr: give low and high"),
        (only("training.optimizer.lr", {"low": 1.0, "high": 0.1}), "lr: give low and high, low below high"),
        (only("training.optimizer.lr", {"low": 0.0, "high": 0.1, "log": True}), "lr: with log, low must be above 0"),
        (only("training.optimizer.lr", {"low": 0.001, "high": 0.1, "step": 1.0}), "lr: a step leads beyond high"),
        (only("model.dc", {"choices": [2, 4], "high": 4}), "dc: give either choices or a range"),
        (only("model.dc", {"choices": [4]}), "dc.choices: List should have at least 2 items"),
        (only("model.kernel", {"choices": [3, 5]}), "parameters.model.kernel: there is no such setting"),
        (only("training.fixed_statistics", {"low": 0.0, "high": 0.5}), "fixed_statistics are measured on `recal"),
        (only("model.dc", {"choices": [2, 8]}), "parameters.model.dc: the default, 4, lies outside"),
        (only("model.dropout", {"low": 0.0, "high": 0.1}), "parameters.model.dropout: the default, 0.3, lies outside"),
        (only("model.dc", {"choices": [4, "many"]}), "parameters.model.dc: model.dc: Input should be a valid integer"),
        (only("training.label_smoothing", {"low": 0.0, "high": 1.5}), "label_smoothing: Input should be less than 1"),
        (only("training.schedule.name", {"choices": ["cosine", "plateau"]}), "schedule.name: select: last never"),
        (only("seed", {"low": 7, "high": 9}), "parameters.seed: trials are compared by it"),
        (with_(budget={"select": "2014"}), "select: 2014: tuning looks at held-out training data only"),
        (only("select", {"choices": ["heldout", "2016"]}), "select: 2016: tuning looks at held-out training data"),
        (with_(budget={"training": {"epoch": 1}}), "budget: training.epoch: no such key; did you mean training.epochs"),
        (with_(budget={"seed": 3}), "budget: seed: this is not a setting of a recipe or preset"),
        (only("model.self_coverage", {"choices": [True, False]}), "sets or lacks all of these"),
        (only("data.ink", {"choices": ["a", "b"]}), "parameters.data.ink: trials are compared by it"),
        (only("training.epochs.x", {"low": 0, "high": 9}), "parameters.training.epochs.x: there is no such setting"),
        (only("augmentation.rotation", {"low": 0, "high": 9}) | NULL, "augmentation.rotation: its section is null"),
        (only("training.batching.size", {"low": 1, "high": 64, "step": 0.5}), "size: it is a whole number"),
    ],
)
def test_an_invalid_space_is_refused_at_once(space, message: str, given) -> None:
    Path(given["space"]).write_text(yaml.safe_dump(space))
    with pytest.raises(UserError, match=message):
        tune(given, trials=1, workers=1)
    assert not (given["results"] / "local").exists()


def test_the_largest_seed_is_refused_before_the_trials(given) -> None:
    """The result is checked at the next one."""
    with pytest.raises(UserError, match="the result is checked at the next seed"):
        tune(given | {"seed": SEED_LIMIT - 1}, trials=1, workers=1)


def test_a_preset_without_a_space_requires_one(given) -> None:
    with pytest.raises(UserError, match=r"no space is shipped for the preset '.*tiny.yaml'.*--space FILE"):
        tune(given | {"space": ""}, trials=1, workers=1)
    none, own = ["--space", "none.yaml"], ["--space", given["space"]]
    for more in ([], none, [*own, "--storage", "x"], [*own, "--engine", "ray"]):  # before the embedded set is made
        with pytest.raises(UserError, match=r"no space is shipped|no such file|not a URL|needs a storage"):
            options = ["--preset", given["preset"], "--results", str(given["results"]), *more]
            cli.app(["tune", *options], standalone_mode=False)
    assert not (given["results"] / "local").exists()


def test_a_gpu_tunes_a_preset_that_has_a_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(FAULTS, match=r"missing\.zip"):  # not that there is no space
        cli.app(["tune", "--crohme", str(tmp_path / "missing.zip")], standalone_mode=False)


# ------------------------------------------------------------------------------------------------------ studies


def test_samples_do_not_depend_on_workers_or_stops() -> None:
    def objective(trial: optuna.Trial) -> float:
        return -((trial.suggest_float("x", -5, 5) - 2) ** 2) + trial.suggest_categorical("y", [0, 1])

    def drawn(*parts: int) -> list[dict[str, Any]]:
        storage = optuna.storages.InMemoryStorage()
        optuna.create_study(storage=storage, study_name="s", direction="maximize")
        for part in parts:  # each by a worker of its own
            study = optuna.load_study(storage=storage, study_name="s", sampler=KeyedTPE(7, 4))
            study.optimize(objective, n_trials=part)
        return [trial.params for trial in study.trials]

    assert drawn(12) == drawn(1, 6, 5)
    assert len({trial["x"] for trial in drawn(12)}) == 12


@pytest.mark.parametrize("seed", range(7, 12))
def test_a_check_is_judged_by_expressions_that_judged_no_trial(given, archive: Path, seed: int) -> None:
    data = open_archive(archive)
    problem = posed(given | {"seed": seed})
    job = Job(problem, "", 1, "", "")
    assert job.samples(data) is None  # a trial takes all
    samples = evenly(data.samples("train"), problem.base.data.limit)
    _, judges = hold_out(samples, problem.base.heldout, seed)
    check = job.on_other_data()
    recorded: Any = Mock(**{"samples.side_effect": data.samples})
    _, others = hold_out(check.samples(recorded) or [], check.problem.base.heldout, check.problem.base.seed)
    limits = problem.base.data.max_area, problem.base.data.limit  # of images of one's own, as in a trial
    recorded.samples.assert_called_once_with("train", *limits)
    assert check.problem.base.seed == seed + 1 and judges and others
    assert not {sample.id for sample in judges} & {sample.id for sample in others}
    assert len(others) == heldout_size(check.problem.base, data, checks=True)


@pytest.mark.parametrize("recipe", ["bttr-original", "densewap", "densewap-td"])
def test_settings_that_a_network_lacks_are_left_out(archive: Path, recipe: str) -> None:
    problem = pose(recipe, "smoke", 7, open_archive(archive))
    assert "model.dc" in problem.left_out and "training.optimizer.lr" in problem.parameters


def test_a_default_is_what_a_trial_with_it_gets(given, tmp_path: Path) -> None:
    """So that the study knows its default again, to which the best is compared."""
    (preset := tmp_path / "mine.yaml").write_text(
        f"base: {given['preset']}\ntraining: {{optimizer: {{lr: 0.0123456}}}}\n"
    )
    name = "training.optimizer.lr"
    Path(given["space"]).write_text(yaml.safe_dump(only(name, {"low": 0.001, "high": 0.1})))
    problem = posed(given | {"preset": str(preset)})
    assert problem.values({name: problem.parameters[name].stored(problem.defaults[name])}) == problem.defaults


def test_a_default_is_found_among_choices_however_its_number_is_written(given) -> None:
    name = "training.label_smoothing"
    Path(given["space"]).write_text(yaml.safe_dump(only(name, {"choices": [0, 0.1]})))
    problem = posed(given)
    assert problem.defaults == {name: 0} and problem.parameters[name].stored(0.0) == "0"  # as suggested to a trial


def test_one_step_is_enough_as_it_is_written() -> None:
    assert Parameter(low=0.1, high=0.3, step=0.2).step == 0.2


def test_a_study_from_the_default_to_a_recipe(inline, given, archive: Path, capsys) -> None:
    folder = tune(given, trials=14, workers=2)
    assert folder.parent.name == "tuning" and folder.parents[1].name.startswith("foreign-")
    said = capsys.readouterr().out
    assert "NOT CROHME numbers" in said and "gain     +" in said and "on another held-out part" in said
    assert "the intervals of default and best overlap" in said  # of so few expressions
    assert f"browse   optuna-dashboard {folder}/journal.log" in said
    rows = pd.read_csv(folder / "trials.csv")
    first, finished = rows.iloc[0], rows[rows.state.isin(["complete", "pruned"])]
    assert bool(first.default) and first["training.optimizer.lr"] == 0.01 and first.state == "complete"
    assert len(finished) == 14 and rows.value.max() > first.value and "pruned" in set(rows.state)
    assert rows[rows.state == "pruned"].epochs.between(2, 4).all()
    assert {load(path).select for path in folder.glob("*/config.yaml")} == {"heldout"}
    assert {load(path).seed for path in folder.glob("*/config.yaml")} == {7, 8}  # seed 8: the check

    best = resolve(str(folder / "best.yaml"), given["preset"], 7, open_archive(archive))
    plain = resolve("comer-fusion", given["preset"], 7, open_archive(archive))
    winner = rows.iloc[opened(folder).best_trial.number]
    assert best.training.optimizer.lr == winner["training.optimizer.lr"]
    assert (best.select, best.training.epochs, best.heldout) == ("last", plain.training.epochs, plain.heldout)
    assert vars(best.model)["self_coverage"] and vars(best.model)["cross_coverage"]

    lines = (folder / "best.yaml").read_text().splitlines()
    heading = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    checks = {each["name"]: each["value"] for path in folder.glob("*-seed8-*") if (each := RunFolder(path).trial)}
    assert checks.keys() == {"check 0", "check 1"}  # of the default and of the best
    assert "did not select it, {check 1:.2f} and {check 0:.2f} %. Found".format_map(checks) in heading
    assert heading.endswith("--crohme ARCHIVE")

    before = (folder / "best.yaml").read_bytes(), len(opened(folder).trials)
    tune(given, trials=14, workers=2)
    assert ((folder / "best.yaml").read_bytes(), len(opened(folder).trials)) == before
    tune(given, trials=16, workers=1)
    assert sum(trial.state in FINISHED_STATES for trial in opened(folder).trials) == 16


def test_a_stopped_trial_has_its_best_epochs_value_as_a_complete_one_has(given) -> None:
    def objective(trial: optuna.Trial) -> float:
        for epoch, rate in enumerate((40.0, 30.0, 5.0), 1):
            trial.report(rate, epoch)
        raise optuna.TrialPruned

    driver.quiet_optuna()
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=1)
    assert trial_table(study, posed(given)).value.tolist() == [40.0]


def test_the_best_value_never_falls_in_whichever_order_trials_end(given, tmp_path: Path) -> None:
    job, study, reported = Job(posed(given), "", 2, str(tmp_path), ""), optuna.create_study(direction="maximize"), set()
    folders = [tmp_path / name for name in ("first", "second", "stopped")]
    for folder in folders:
        folder.mkdir()
        (trial := study.ask()).set_user_attr("folder", folder.name)
    trial.report(60.0, 1)
    for number, value, state in ((1, 50.0, None), (0, 10.0, None), (2, None, TrialState.PRUNED)):
        study.tell(number, value, state)
        driver._report(job, study, reported, Mock())
    first, second, stopped = (RunFolder(folder).trial for folder in folders)
    assert second and (second["number"], second["value"], second["ended"], second["best"]) == (1, 50.0, 1, 50.0)
    assert first and (first["number"], first["value"], first["ended"], first["best"]) == (0, 10.0, 2, 50.0)
    assert stopped and (stopped["value"], stopped["best"]) == (60.0, 50.0)  # a study chooses among complete trials


def test_a_storage_that_is_out_of_reach_for_a_moment_costs_no_report(given, tmp_path: Path) -> None:
    job, study, reported = Job(posed(given), "", 1, str(tmp_path), ""), optuna.create_study(direction="maximize"), set()
    (tmp_path / "first").mkdir()
    (trial := study.ask()).set_user_attr("folder", "first")
    study.tell(trial.number, 50.0)
    failure, logger = sqlalchemy.exc.OperationalError("", {}, Exception()), Mock()
    failing: Any = Mock(**{"get_trials.side_effect": failure})
    type(failing).trials = PropertyMock(side_effect=[study.trials, failure, study.trials])
    for _ in range(3):
        with suppress(sqlalchemy.exc.OperationalError):
            driver._report(job, failing, reported, logger)
    assert RunFolder(tmp_path / "first").trial and logger.queue.put.call_count == 1


def test_a_trial_that_ended_just_before_a_kill_is_reported_by_the_next_command(inline, given) -> None:
    folder = tune(given, trials=2, workers=1)
    outcomes = {path: path.read_bytes() for path in folder.glob("*/trial.json")}
    for path in outcomes:
        path.unlink()
    tune(given, trials=2, workers=1)
    assert len(outcomes) >= 2 and {path: path.read_bytes() for path in folder.glob("*/trial.json")} == outcomes


def test_a_diverged_loss_is_a_result(inline, given) -> None:
    space = with_(parameters={"training.optimizer.lr": {"low": 0.0095, "high": 0.9}})
    Path(given["space"]).write_text(yaml.safe_dump(space))
    folder = tune(given, trials=5, workers=1)
    rows = pd.read_csv(folder / "trials.csv")
    assert rows.diverged.any() and set(rows[rows.diverged].value) == {0.0} and len(rows) == 5


def test_a_dead_worker_costs_no_trial(inline, given, monkeypatch) -> None:
    begun: list[Path] = []

    def killed(run: RunFolder, archive, on_epoch, samples) -> None:
        def at_epoch_2(line: dict) -> None:
            on_epoch(line)
            if line["epoch"] == 2 and len(begun) < 1:
                begun.append(run.path)
                raise Killed

        fake_train(run, archive, at_epoch_2, samples)

    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", killed)
    folder = tune(given, trials=4, workers=1)
    trials = opened(folder).trials
    (failed,) = [trial for trial in trials if trial.state == TrialState.FAIL]
    (again,) = [trial for trial in trials if trial.system_attrs.get("failed_trial") == failed.number]
    assert again.params == failed.params and again.state in FINISHED_STATES
    assert again.user_attrs["folder"] == failed.user_attrs["folder"] == begun[0].name
    assert len([t for t in trials if t.state in FINISHED_STATES]) == 4
    assert pd.read_csv(folder / "trials.csv").retry_of.dropna().tolist() == [failed.number]


def test_a_full_disk_ends_tuning_and_loses_no_trial(inline, given, monkeypatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device", "checkpoint.safetensors"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("hmerbench.benchmarks.training.trainer.train", full)
        tune(given, trials=3, workers=1)
    folder = tune(given, trials=3, workers=1)
    assert bool(pd.read_csv(folder / "trials.csv").iloc[1].default)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_is_no_workers_death(inline, given, monkeypatch, stop: type[BaseException]) -> None:
    """However often Ctrl-C or anything else ends the study, which says that the same command resumes."""
    with monkeypatch.context() as patch:
        patch.setattr("hmerbench.benchmarks.training.trainer.train", Mock(side_effect=stop))
        for _ in range(6):
            with pytest.raises(stop):
                tune(given, trials=2, workers=1)
    rows = pd.read_csv(tune(given, trials=2, workers=1) / "trials.csv")
    assert (rows.state == "fail").sum() == 6 and rows[rows.state == "complete"].default.any()


def test_a_worker_stopped_for_the_death_of_another_has_not_died(inline, given, monkeypatch) -> None:
    """Nor has its trial failed, however often that happens."""
    stops = iter(range(9))

    def stopped(*arguments: Any, **options: Any) -> Any:
        if next(stops, None) is not None:
            raise Killed
        return fake_train(*arguments, **options)

    monkeypatch.setattr("tests.tuning.test_study.Died", Bystander)
    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", stopped)
    rows = pd.read_csv(tune(given, trials=1, workers=1) / "trials.csv")
    assert rows[rows.state == "complete"].default.any()


def test_a_trial_that_kills_its_workers_is_given_up_until_the_next_command(inline, given, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hmerbench.benchmarks.training.trainer.train", Mock(side_effect=Killed))
        for _ in range(2):
            with pytest.raises(UserError, match="the workers keep dying"):
                tune(given, trials=1, workers=1)
    (folder,) = given["results"].glob("local/*/tuning/comer-fusion-*")
    assert len(opened(folder).trials) == 8  # the trial and its retries, by each command
    rows = pd.read_csv(tune(given, trials=1, workers=1) / "trials.csv")
    assert rows.iloc[-1].state == "complete" and rows.iloc[-1].default


def test_a_worker_that_dies_after_every_epoch_loses_no_trial(inline, given, monkeypatch) -> None:
    """As on machines that are taken away without warning: each attempt got further, so none counts as a failure."""

    def train(run: RunFolder, archive, on_epoch, samples) -> None:
        def killed(line: dict) -> None:
            on_epoch(line)
            raise Killed

        fake_train(run, archive, killed, samples)

    Path(given["space"]).write_text(yaml.safe_dump(with_(budget={"training": {"epochs": 7}})))
    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", train)
    monkeypatch.setattr(driver, "RETRIES", 99)  # of workers, who also die by themselves
    rows = pd.read_csv(tune(given, trials=1, workers=1) / "trials.csv")
    assert rows.state.tolist() == ["fail"] * 7 + ["complete"]


def test_a_trial_that_was_given_up_on_lost_machines_is_tried_by_the_next_command(inline, given) -> None:
    url = f"sqlite:///{given['results'] / 'study.db'}"
    folder = tune(given, trials=1, workers=1, storage=url)
    study = optuna.load_study(study_name=folder.name, storage=url)
    (done,) = study.trials
    optuna.delete_study(study_name=folder.name, storage=url)
    study = optuna.create_study(study_name=folder.name, storage=url, direction="maximize")
    study.enqueue_trial(done.params, user_attrs={"default": True})
    for _ in range(4):  # another machine's workers, found dead by their heartbeats
        trial = study.ask()
        trial.set_user_attr("owner", "a lost machine")
        study.tell(trial.number, state=TrialState.FAIL)
        Retry()(study, study.trials[-1])
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 4
    rows = pd.read_csv(tune(given, trials=1, workers=1, storage=url) / "trials.csv")
    assert rows.state.tolist() == ["fail"] * 4 + ["complete"] and rows.iloc[-1].default


def test_a_truncated_journal_is_repaired_and_a_damaged_one_reported(inline, given) -> None:
    folder = tune(given, trials=2, workers=1)
    journal = folder / "journal.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 6, "trial')
    os.symlink(journal, f"{journal}.lock")
    assert len(pd.read_csv(tune(given, trials=3, workers=1) / "trials.csv")) == 3
    journal.write_bytes(journal.read_bytes()[:50] + b"\n" + journal.read_bytes()[60:])
    with pytest.raises(UserError, match=r"journal\.log: the journal is damaged .*; move it away"):
        tune(given, trials=4, workers=1)


def test_running_trials_of_a_machine_with_the_same_path_are_left_to_it(inline, given, monkeypatch) -> None:
    url = f"sqlite:///{given['results'] / 'study.db'}"
    folder = tune(given, trials=1, workers=1, storage=url)
    here = optuna.load_study(study_name=folder.name, storage=url)
    running = here.ask()
    posed(given).suggest(running)
    running.set_user_attr("owner", here.trials[0].user_attrs["owner"])

    def train(*arguments: Any) -> None:  # on the other machine, while the trial here comes to its end
        here.tell(running.number, 20.0, skip_if_finished=True)
        fake_train(*arguments)

    monkeypatch.setattr("hmerbench.benchmarks.training.trainer.train", train)
    folder.rename(folder.with_name("on-this-machine"))
    tune(given, trials=3, workers=1, storage=url)
    assert here.trials[running.number].state == TrialState.COMPLETE


def test_a_study_has_one_driver_per_machine(inline, given) -> None:
    folder = tune(given, trials=1, workers=1)
    with locked(folder, ".tuning"), pytest.raises(UserError, match=r"process \d+ on .* is working in it; wait"):
        tune(given, trials=2, workers=1)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("postgresql+psycopg2://me:secret@127.0.0.1:9/x", r"^postgresql.psycopg2://127.0.0.1:9/x: .*reached.*refused"),
        ("postgresql+psycopg2://127.0.0.1:9/x?user=me&password=secret", r"127.0.0.1:9/x: the .* be reached"),
        ("postgresql+psycopg2://me:se/secret@?127.0.0.1:9/x", r"^postgresql.psycopg2://…: this storage cannot|reached"),
        ("postgresql+psycopg2://me:secret/x", r"^postgresql.psycopg2://…: this storage cannot be used"),
        ("postgresql:me:secret@127.0.0.1/x", r"^--storage: this is not a URL"),
        ("nosuch://host/x", r"nosuch://host/x: this storage cannot be used"),
    ],
)
def test_an_unusable_storage_is_reported(inline, given, storage: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tune(given, trials=1, workers=1, storage=storage)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_hanging_tracking_store_delays_nothing(inline, given, monkeypatch, capsys) -> None:
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: threading.Event().wait())
    monkeypatch.setattr(driver, "MIRROR_SECONDS", 0.2)
    folder = tune(given, trials=3, workers=1)
    assert len(pd.read_csv(folder / "trials.csv")) == 3 and "warning: MLflow hangs" in capsys.readouterr().out


def test_trials_are_children_of_their_study_in_mlflow(logging, given, monkeypatch) -> None:
    from mlflow import MlflowClient

    from hmerbench.benchmarks.tracking import track, tracking_store

    began, real = [], track.track

    def spied(folder: Path) -> None:
        real(folder)
        client = MlflowClient(tracking_store.tracking_uri(folder))
        found = client.search_runs([e.experiment_id for e in client.search_experiments()], "status = 'RUNNING'")
        began.extend(run.info.run_name for run in found)

    monkeypatch.setattr(track, "track", spied)
    folder = tune(given, trials=2, workers=1)
    client = MlflowClient(tracking_store.tracking_uri(folder / "trial"))
    assert set(began) == {f"tuning/{folder.name}"}
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (study,) = [run for run in runs if run.info.run_name == f"tuning/{folder.name}"]
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == study.info.run_id]
    assert sorted(run.data.tags["trial"] for run in below) == ["0", "1"]
    values = {run.data.tags["trial"]: run.data.metrics["trial_value"] for run in below}
    assert values["0"] == pytest.approx(opened(folder).trials[0].value)
    assert {run.info.run_name for run in below} == {"trial 0", "trial 1"}
    assert {run.info.status for run in runs} == {"FINISHED"}
    points = client.get_metric_history(study.info.run_id, "trial_value")
    assert [(point.step, point.value) for point in points] == [(1, values["0"]), (2, max(values.values()))]


def test_the_trials_of_a_check_are_found_again(logging, given) -> None:
    """By `track` and `remove`, in the group where the study put them."""
    from mlflow import MlflowClient

    from hmerbench.benchmarks.tracking.track import track
    from hmerbench.benchmarks.tracking.tracking_store import tracking_uri

    folder = tune(given, trials=4, workers=1)
    checks = [*folder.glob("*-seed8-*")]
    client = MlflowClient(tracking_uri(checks[0]))
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments)
    before = {run.info.run_id for run in runs}
    assert {run.info.status for run in runs} == {"FINISHED"}  # the study and its check, too
    assert {track(check) for check in checks} < before
    assert {run.info.run_id for run in client.search_runs(experiments)} == before


@pytest.mark.long
def test_a_killed_driver_resumes(given, monkeypatch, capsys) -> None:
    """With real processes, a tiny network and kill -9."""
    space = with_(budget={"training": {"epochs": 8, "validate_every": 4}})
    Path(given["space"]).write_text(yaml.safe_dump(space))
    options = [f"--{name}={value}" for name, value in given.items()] + ["--trials=2", "--workers=1"]
    store = {"MLFLOW_TRACKING_URI": NO_STORE}
    process = subprocess.Popen([sys.executable, "-m", "hmerbench", "tune", *options], cwd=ROOT, env=os.environ | store)
    pattern = "local/*/tuning/*/*/history.jsonl"
    while not (found := [p for p in given["results"].glob(pattern) if len(p.read_text().splitlines()) > 2]):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.kill()
    process.wait()
    time.sleep(0.5)  # its workers end with it
    begun = found[0].read_text().splitlines()[:2]
    monkeypatch.setattr("hmerbench.benchmarks.tracking.track.track", lambda *_, **__: None)
    monkeypatch.setattr("hmerbench.benchmarks.jobs.engine.Processes", Inline)
    cli.app(["tune", *options], standalone_mode=False)
    folder = found[0].parents[1]
    assert found[0].read_text().splitlines()[:2] == begun, "the trial began again"
    rows = pd.read_csv(folder / "trials.csv")
    assert (rows.state == "fail").sum() == len(rows.retry_of.dropna()) >= 1
    assert rows.state.isin(["complete", "pruned"]).sum() == 2 and not (rows.state == "running").any()
    assert not list(folder.glob("*/*.safetensors")) and "comer-fusion-tiny-seed7" in capsys.readouterr().out
    shutil.rmtree(folder)


def test_make_passes_its_variables_on() -> None:
    given = ["PRESET=small", "OPTIONS=--recipe bttr --trials 3 --storage sqlite:///x --engine ray --cpus 2"]
    given += ["CROHME="]  # the environment may set it for other tests
    said = subprocess.check_output(["make", "-n", "--no-print-directory", "tune", *given], cwd=ROOT, text=True)
    words = " ".join(said.replace('"', "").split("hmerbench tune ")[1].split())
    assert words == "--preset small --recipe bttr --trials 3 --storage sqlite:///x --engine ray --cpus 2"
