"""The main job: train, recognize, score and log every row of the ablation table, then write the tables.

Each stage reads the files of the one before and is skipped if its own exist and were made from those contents
(sources.json), so the job resumes where it was stopped, and any stage can be repeated alone
(`hmerbench train|predict|score`).
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt, TypeAdapter

from hmerbench.benchmarks.config import Config, check_folder
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.files import locked, write_atomically
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.place import Died, Place
from hmerbench.benchmarks.printing import console, counted, show
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.schemas import Epoch
from hmerbench.benchmarks.runs.workspace import announce, workspace
from hmerbench.benchmarks.strict_files import read_plain

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.engine import Engine

TRAINING_SHARE = 0.8  # of the time limit; the rest is for recognition, scoring and tables
MIRROR_SECONDS = 30  # at most between two updates of parallel runs in MLflow
ATTEMPTS = 4  # to complete a run whose process or node dies


class OutOfTime(Exception):
    """The time limit is reached; everything done so far is in the run folders."""


@dataclass(frozen=True)
class Options:
    """How to do the main job. Raises UserError for options that only the engine `local` supports."""

    force: bool = False  # repeat what is done
    minutes: float | None = None  # time limit
    placing: Placing = field(default_factory=Placing)
    began: float = field(default_factory=lambda: time.perf_counter())  # start of the time limit

    def __post_init__(self) -> None:
        if self.minutes is not None and self.placing.engine != "local":
            raise UserError("--minutes works with the engine local only: a cluster has limits of its own")
        if (self.placing.jobs or 1) > 1 and self.placing.engine != "local":
            raise UserError("--jobs works with the engine local only: a cluster runs as many jobs as have room")


def reproduce(
    configs: Sequence[Config], archive: Archive, splits: Sequence[str], results: Path, options: Options
) -> bool:
    """Train, recognize and score what is not done yet (with `force`, everything), and write the tables.

    Results on data other than CROHME go to results/local/<name>/. On this machine, runs are done one after another or
    `placing.jobs` in parallel; on a cluster, all at once. With `minutes`, all runs get as many epochs as fit
    (`fitted`), and the job stops after the epoch or stage in which the time is up; parallel runs are killed at once and
    resume from their checkpoints later. Returns whether everything is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("reproduce is one process: train every row with torchrun and the command train first")
    if not configs:
        raise UserError("no recipe or no seed is given: omit --recipes and --seeds for all rows of seed 7")
    space, placing = workspace(archive, results), options.placing
    runs: list[RunFolder] = []
    errors: list[Exception] = []
    deadline = math.inf if options.minutes is None else options.began + 60 * options.minutes
    with suppress(OutOfTime):
        if options.minutes is not None:
            configs = fitted(configs, archive, space / "runs", options.minutes, deadline, force=options.force)
        runs = [RunFolder(space / "runs" / config.run_name, config) for config in configs]
        for run in runs:
            check_folder(run.settings, run.path)
        with ExitStack() as locks:  # before any run is discarded
            for run in runs if options.force else ():
                locks.enter_context(locked(run.path))
        for run in runs if options.force else ():
            run.forget_training()
        announce(archive)
        _print_plan(runs, splits)
        if words := _advice(archive, runs):
            console.print(words)
        jobs = placing.at_once(sum(not _done(run, splits) for run in runs)) if placing.engine == "local" else len(runs)
        if jobs == 1 and placing.engine == "local":
            _sequentially(runs, archive, splits, deadline, errors)
        else:
            engine = placing.open(archive, space, space / "runs/logs", jobs)
            _in_parallel(runs, splits, engine, jobs, deadline, errors)
    if scored := [run for run in runs if run.sets("scores/*.json")]:
        _finish(archive, scored, results, time.perf_counter() - options.began)
    if errors:
        wrong = isinstance(errors[0], (*FAULTS, OSError))
        raise errors[0] if wrong else UserError(f"a run failed: {errors[0]}")
    done = sum(_done(run, splits) for run in runs)
    if done < len(configs):
        without = " without --force (FORCE=1)" if options.force else ""
        console.print(f"out of time: {done} of {len(configs)} runs are done; the same command{without} resumes")
    return done == len(configs)


def fitted(
    configs: Sequence[Config], archive: Archive, runs: Path, minutes: float, deadline: float, *, force: bool = False
) -> list[Config]:
    """The settings with as many epochs as fit into `minutes`, the same number for all, so that rows can be compared.

    Another number of epochs is another run, so the choice is kept in runs/fitted.json, where the same command finds it;
    with `force` it is made anew, and no epoch counts as trained. Raises UserError if not even the curriculum fits,
    OutOfTime if the deadline passes while an epoch is measured.
    """
    path = runs / "fitted.json"
    chosen = _chosen(path)
    key = f"{minutes:g} minutes: {' '.join(sorted(config.run_name for config in configs))}"
    if key not in chosen or force:
        least = 1 + configs[0].training.batching.curriculum
        longest = TRAINING_SHARE * 60 * minutes / least / len(configs)
        seconds, measured = _measured_epoch(configs, archive, runs, deadline, longest)
        left = TRAINING_SHARE * (deadline - time.perf_counter())
        trained = [0 if force else len(RunFolder(runs / config.run_name).history) for config in configs]
        remaining = [config.training.epochs - count for config, count in zip(configs, trained, strict=True)]
        epochs = int(left / seconds / len(configs))
        if sum(remaining) * seconds <= left:
            epochs = max(config.training.epochs for config in configs)
        elif epochs < least:
            needed = math.ceil(least * len(configs) * seconds / TRAINING_SHARE / 60)
            if measured and needed <= minutes:  # enough when the same command does not have to measure again
                raise OutOfTime
            needed = max(needed, math.floor(minutes) + 1)
            raise UserError(
                f"--minutes {minutes:g}: {counted(len(configs), 'run')} at {seconds:.3g} s an epoch: no time for "
                f"{counted(least, 'epoch')} each, which the preset {configs[0].preset} needs; give {needed} or more "
                "(MINUTES=)"
            )
        console.print(
            f"{minutes:g} minutes: up to {counted(epochs, 'epoch')} for each run, at {seconds:.3g} s an epoch"
        )
        with locked(runs, ".fitted", seconds=60):  # another job may have chosen meanwhile
            chosen = _chosen(path) | {key: epochs}
            write_atomically(path, json.dumps(chosen, indent=1) + "\n")
    epochs = chosen[key]
    shorter = {"training.epochs": epochs}
    return [
        config.changed(shorter | {"preset": f"{config.preset}-{epochs}-epochs"})
        if epochs < config.training.epochs
        else config
        for config in configs
    ]


def _chosen(path: Path) -> dict[str, int]:
    """Epochs by job, as kept in fitted.json. Raises UserError if it is damaged."""
    if not path.exists():
        return {}
    try:
        return TypeAdapter(dict[str, PositiveInt]).validate_python(read_plain(path), strict=True)
    except ValueError:
        raise UserError(f"{path}: damaged; restore it, or delete it to measure again") from None


def _measured_epoch(
    configs: Sequence[Config], archive: Archive, runs: Path, deadline: float, longest: float
) -> tuple[float, bool]:
    """Seconds of the first epoch after the curriculum, for the network with the most parameters, taken for the slowest;
    and whether it was trained now. An epoch of the curriculum that takes more than `longest` seconds is enough.

    It is trained in its own folder, set up for all epochs of its preset, which a command without minutes resumes.
    """
    import torch

    from hmerbench.benchmarks.training.trainer import train
    from hmerbench.models.network import build

    class Measured(Exception):
        pass

    with torch.device("meta"):
        networks = [build(config.model) for config in configs]
    sizes = [sum(parameter.numel() for parameter in network.parameters()) for network in networks]
    config = configs[sizes.index(max(sizes))]
    folder, needed = runs / config.run_name, min(config.training.batching.curriculum + 1, config.training.epochs)

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] >= needed or line["seconds"] > longest:
            raise Measured
        _check_time(deadline)

    known = RunFolder(folder).history
    if fresh := len(known) < needed and not any(line["seconds"] > longest for line in known):
        _check_time(deadline)
        check_folder(config, folder)
        console.print(f"measuring an epoch of {config.recipe}")
        with suppress(Measured):
            train(RunFolder(folder, config), archive, stop)
        torch.cuda.empty_cache()  # parallel runs need that memory
    return epoch_seconds(RunFolder(folder).history[:needed]), fresh


def _check_time(deadline: float) -> None:
    if time.perf_counter() > deadline:
        raise OutOfTime


def epoch_seconds(history: Sequence[Epoch]) -> float:
    """Seconds of the last epoch, plus the mean time per epoch of all validations."""
    return history[-1]["seconds"] + sum(line.get("val_seconds", 0.0) for line in history) / len(history)


def _sequentially(
    runs: Sequence[RunFolder], archive: Archive, splits: Sequence[str], deadline: float, errors: list[Exception]
) -> None:
    """Do one run after another. A run that fails does not stop the others, unless the disk is full; its error is added
    to `errors`.

    Raises OutOfTime after the deadline, a value of time.perf_counter.
    """
    from hmerbench.benchmarks.tracking.live import live
    from hmerbench.benchmarks.tracking.track import track

    check_time = partial(_check_time, deadline)
    for run in runs:
        check_time()
        if not run.trained:
            console.rule(f"{_name(run)}: training", align="left")
        try:
            with nullcontext() if run.trained else live(run.path):
                if not _stages(run, archive, splits, check_time):
                    console.print(f"{_name(run)}: already done ({run.path})")
        except FAULTS as error:
            console.print(f"{_name(run)}: {error}")
            errors.append(error)
        else:
            track(run.path)


def _stages(run: RunFolder, archive: Archive, splits: Sequence[str], after_each: Callable[[], None]) -> bool:
    """Do the stages of a run that are not done yet, and call `after_each` after every epoch and stage.

    Returns whether there was anything to do.
    """
    from hmerbench.benchmarks.recognition.predict import predict
    from hmerbench.benchmarks.score import score
    from hmerbench.benchmarks.training.trainer import train

    if _done(run, splits):
        return False
    if not run.trained:
        train(run, archive, lambda _: after_each())
    if unrecognized := [split for split in splits if not run.recognized(split)]:
        after_each()
        predict(run, archive, unrecognized)
    if unscored := [split for split in splits if not run.scored(split)]:
        after_each()
        for result in score(run, archive, unscored).values():
            console.print(f"{_name(run)}: {result}")
    after_each()
    return True


def _in_parallel(
    runs: Sequence[RunFolder],
    splits: Sequence[str],
    engine: "Engine",
    at_once: int,
    deadline: float,
    errors: list[Exception],
) -> None:
    """Do at most `at_once` runs in parallel until all are done or the deadline has passed.

    A run whose process or node dies is restarted from the files it left. A run that fails does not stop the others;
    its error is added to `errors`.
    """
    from hmerbench.benchmarks.tracking.track import track
    from hmerbench.benchmarks.training.checkpoint import adopt_training

    for run in runs:  # here, as a node sees its own run alone
        if not run.trained:
            with suppress(UserError), locked(run.path):  # if another process trains it, the job says so
                adopt_training(run)
    attempts, epochs = Counter[str](), Counter[str]()
    waiting = {run.settings.run_name: run for run in runs if not _done(run, splits)}
    running: dict[str, RunFolder] = {}
    try:
        while (waiting or running) and (left := deadline - time.perf_counter()) > 0:
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)
                engine.start(name, _on_node, running[name].settings, splits)
            ended = engine.ended(min(MIRROR_SECONDS, left))
            for name, run in running.items():
                if history := RunFolder(run.path).history:
                    if len(history) > epochs[name]:  # the progress bars of other processes are not visible
                        epochs[name], last = len(history), history[-1]
                        epoch = f"epoch {last['epoch']}/{run.settings.training.epochs}"
                        rates = f"loss {last['loss']:.4f}, {last['images_per_s']:.0f} images/s"
                        console.print(f"{_name(run)}: {epoch}, {rates}")
                    if name not in ended:
                        track(run.path, running=True)
            for name, error in ended.items():
                run = running.pop(name)
                attempts[name] += 1
                if isinstance(error, Died) and attempts[name] < ATTEMPTS:
                    console.print(f"{name}: {error}; restarting it")
                    waiting[name] = run
                    continue
                if RunFolder(run.path).history:
                    track(run.path)
                console.print(f"{name}: {error or 'done'}")
                errors += [error] if error else []
    finally:
        engine.stop()
        for run in running.values():
            if RunFolder(run.path).history:
                track(run.path)


def _on_node(place: Place, settings: Config, splits: Sequence[str]) -> None:
    """Do a run in another process or on a node, sending its files to the driver after every epoch and stage."""
    name = f"runs/{settings.run_name}"
    archive, folder = place.archive(), place.pull(name)
    _stages(RunFolder(folder, settings), archive, splits, lambda: place.push(name))


def _done(run: RunFolder, splits: Sequence[str]) -> bool:
    return run.trained and all(run.scored(split) for split in splits)


def _name(run: RunFolder) -> str:
    return f"{run.settings.recipe}, seed {run.settings.seed}"


def _print_plan(runs: Sequence[RunFolder], splits: Sequence[str]) -> None:
    rows = []
    for run in runs:
        done = ["trained", *(split for split in splits if run.scored(split))] if run.trained else []
        row = {"row": run.settings.recipe, "seed": run.settings.seed, "already done": ", ".join(done) or "-"}
        rows.append(row | {"training time": "-" if run.trained else _expected(run)})
    show(f"plan: preset {runs[0].settings.preset}, test sets {', '.join(splits)}", rows)


def expected_seconds(run: RunFolder) -> float | None:
    """Median duration of finished trainings at this preset in the same workspace; None if there are none."""
    others = map(RunFolder, run.path.parents[1].glob(f"*/{run.settings.preset}-seed*"))
    durations = list[float]()
    for other in others:
        with suppress(UserError):  # a damaged file there is no fault of this run
            durations += other.seconds[-1:] if other.trained else []
    return median(durations) if durations else None


def _expected(run: RunFolder) -> str:
    """How long a training will take, by those finished here, or else by the committed ones."""
    from hmerbench.benchmarks.report.ladder import measured_cost

    if (seconds := expected_seconds(run)) is not None:
        return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"
    committed = run.settings.data.name == "crohme" and measured_cost(run.settings.preset, run.settings.recipe)
    return committed or "unknown"


def _advice(archive: Archive, runs: Sequence[RunFolder]) -> str:
    from hmerbench.benchmarks.report.ladder import advice

    return advice(runs[0].settings.preset) if archive.name == "crohme" else ""


def _finish(archive: Archive, runs: Sequence[RunFolder], results: Path, seconds: float) -> None:
    """Write and print the tables, then the paths of all results and, last, what this job made."""
    from hmerbench.benchmarks.report import tables
    from hmerbench.benchmarks.report.compare import what_a_difference_means
    from hmerbench.benchmarks.tracking.track import track
    from hmerbench.benchmarks.tracking.tracking_store import store
    from hmerbench.evaluation.scoring.interval import interval_text

    crohme, space = archive.name == "crohme", workspace(archive, results)
    built = tables.local(results) if crohme else tables.apart(space)
    folder = results / "local" if crohme else space
    tables.write(built, folder, crohme=crohme)
    for run in runs:
        track(run.path, tables=folder)
    tables.show(built, crohme=crohme)
    announce(archive)
    console.print(f"tables   {folder}/table*.csv, .md, .tex")
    console.print(f"runs     {space / 'runs'}")
    console.print(f"MLflow   {store(runs[0].path)} (make mlflow-ui RESULTS={space})")
    console.print(
        f"page     make report CROHME={archive.path}{'' if results == Path('results') else f' RESULTS={results}'}"
    )
    console.print(f"seconds  {seconds:.0f}")
    if words := _advice(archive, runs):
        console.print(words)
    splits = sorted({split for run in runs for split in run.scores})
    rates = [
        {split: f"{score.exprate:.2f} ({interval_text(score.exact, score.n)})" for split, score in run.scores.items()}
        for run in runs
    ]
    rows = [{"row": run.recipe, "seed": run.seed} for run in runs]
    rows = [row | {split: rate.get(split) for split in splits} for row, rate in zip(rows, rates, strict=True)]
    show("this job: ExpRate in percent", rows)
    console.print(what_a_difference_means(runs, space / "runs"))
