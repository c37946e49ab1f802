"""The main job: train, recognize, score and log every row of the ablation table, then write the tables.

Each stage reads the files of the one before and is skipped if its own exist and were made from those contents
(sources.json), so the job resumes where it was stopped, and any stage can be repeated alone
(`hmerbench train|predict|score`).
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.here import Here
from hmerbench.benchmarks.jobs.place import Died, Place
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.report.plan import show_plan
from hmerbench.benchmarks.resolve import check_folder
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import announce, remember, report_command, workspace

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.engine import Engine

MIRROR_SECONDS = 30  # at most between two updates of parallel runs in MLflow
ATTEMPTS = 4  # to complete a run whose process or node dies


@dataclass(frozen=True)
class Options:
    """How to do the main job. Raises UserError for options that only the engine `local` supports."""

    force: bool = False  # repeat what is done
    placing: Placing = field(default_factory=Placing)

    def __post_init__(self) -> None:
        if (self.placing.jobs or 1) > 1 and self.placing.engine != "local":
            raise UserError("--jobs works with the engine local only: a cluster runs as many jobs as have room")


def reproduce(
    configs: Sequence[Config], archive: Archive, splits: Sequence[str], results: Path, options: Options
) -> None:
    """Train, recognize and score what is not done yet (with `force`, everything), and write the tables.

    Results on data other than CROHME go to results/local/<name>/. On this machine, `placing.jobs` runs are done at a
    time, one in this process; on a cluster, all at once. A run that fails does not stop the others; in the end, the
    first error is raised.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("reproduce is one process: train every row with torchrun and the command train first")
    if not configs:
        raise UserError("no recipe or no seed is given: omit --recipes and --seeds for all rows of seed 7")
    space, placing, began = workspace(archive, results), options.placing, time.perf_counter()
    runs = [RunFolder(space / "runs" / config.run_name, config) for config in configs]
    for run in runs:
        check_folder(run.settings, run.path)
    with ExitStack() as locks:  # before any run is discarded
        for run in runs if options.force else ():
            locks.enter_context(locked(run.path))
    for run in runs if options.force else ():
        run.forget_training()
    announce(archive)
    remember(archive, results)
    show_plan(runs, splits)
    if words := _advice(archive, runs):
        console.print(words)
    left = [run for run in runs if not _done(run, splits)]
    jobs = placing.at_once(len(left)) if placing.engine == "local" else len(runs)
    if jobs == 1 and placing.engine == "local":
        engine = Here(archive, space)
    else:
        engine = placing.open(archive, space, space / "runs/logs", jobs)
    for run in runs:
        if run not in left:
            console.print(f"{_name(run)}: already done ({run.path})")
    errors = _work(left, splits, engine, jobs)
    if scored := [run for run in runs if run.sets("scores/*.json")]:
        _finish(archive, scored, results, time.perf_counter() - began)
    if errors:
        wrong = isinstance(errors[0], (*FAULTS, OSError))
        raise errors[0] if wrong else UserError(f"a run failed: {errors[0]}")


def with_epochs(config: Config, epochs: int) -> Config:
    """The settings with another number of epochs, which are another run, of another preset's name."""
    if epochs == config.training.epochs:
        return config
    return config.changed({"training.epochs": epochs, "preset": f"{config.preset}-{epochs}-epochs"})


def _train(run: RunFolder, archive: Archive, _: Sequence[str], after_each: Callable[[], None]) -> None:
    from hmerbench.benchmarks.training.trainer import train

    train(run, archive, lambda _: after_each())


def _predict(run: RunFolder, archive: Archive, splits: Sequence[str], _: Callable[[], None]) -> None:
    from hmerbench.benchmarks.recognition.predict import predict

    predict(run, archive, splits)


def _score(run: RunFolder, archive: Archive, splits: Sequence[str], _: Callable[[], None]) -> None:
    from hmerbench.benchmarks.score import score

    for result in score(run, archive, splits).values():
        console.print(f"{_name(run)}: {result}")


# whether a stage is done for a test set -> how to do it for those for which it is not
STAGES = {(lambda run, _: run.trained): _train, RunFolder.recognized: _predict, RunFolder.scored: _score}


def _done(run: RunFolder, splits: Sequence[str]) -> bool:
    return run.trained and all(done(run, split) for done in STAGES for split in splits)


def _on_node(place: Place, settings: Config, splits: Sequence[str]) -> None:
    """Do the stages of a run that are not done yet, sending its files to the driver after every epoch and stage."""
    name = f"runs/{settings.run_name}"
    archive, run = place.archive(), RunFolder(place.pull(name), settings)
    for done, do in STAGES.items():
        if left := [split for split in splits if not done(run, split)]:
            do(run, archive, left, lambda: place.push(name))
            place.push(name)


def _here(place: Place, settings: Config, splits: Sequence[str]) -> None:
    """Do a run in this process, mirrored by another while it trains."""
    from hmerbench.benchmarks.tracking.live import live

    run = RunFolder(place.pull(f"runs/{settings.run_name}"), settings)
    if not run.trained:
        console.rule(f"{_name(run)}: training", align="left")
    with nullcontext() if run.trained else live(run.path):
        _on_node(place, settings, splits)


def _work(runs: Sequence[RunFolder], splits: Sequence[str], engine: "Engine | Here", at_once: int) -> list[Exception]:
    """Do at most `at_once` runs at a time. A run whose process or node dies is restarted from the files it left.
    Returns the errors of those that failed."""
    from hmerbench.benchmarks.tracking.track import track
    from hmerbench.benchmarks.training.checkpoint import adopt_training

    elsewhere = not isinstance(engine, Here)
    for run in runs if elsewhere else ():  # here, as a node sees its own run alone
        if not run.trained:
            with suppress(UserError), locked(run.path):  # if another process trains it, the job says so
                adopt_training(run)
    attempts, epochs, errors = Counter[str](), Counter[str](), list[Exception]()
    waiting, running = {run.settings.run_name: run for run in runs}, dict[str, RunFolder]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)
                engine.start(name, _on_node if elsewhere else _here, running[name].settings, splits)
            ended = engine.ended(MIRROR_SECONDS)
            for name, run in running.items() if elsewhere else ():
                epochs[name] = _show_epoch(run, epochs[name])
                if epochs[name] and name not in ended:
                    track(run.path, running=True)
            for name, error in ended.items():
                run = running.pop(name)
                attempts[name] += 1
                if isinstance(error, Died) and attempts[name] < ATTEMPTS:
                    console.print(f"{_name(run)}: {error}; restarting it")
                    waiting[name] = run
                    continue
                if not error or (elsewhere and RunFolder(run.path).history):
                    track(run.path)
                console.print(f"{_name(run)}: {error or 'done'}")
                errors += [error] if error else []
    finally:
        engine.stop()
        for run in running.values() if elsewhere else ():
            if RunFolder(run.path).history:
                track(run.path)
    return errors


def _show_epoch(run: RunFolder, shown: int) -> int:
    """Print the last epoch of a run, if more than `shown` are done; the progress bars of other processes are not
    visible. Returns how many are done."""
    history = RunFolder(run.path).history
    if len(history) > shown:
        last = history[-1]
        epoch = f"epoch {last['epoch']}/{run.settings.training.epochs}"
        console.print(f"{_name(run)}: {epoch}, loss {last['loss']:.4f}, {last['images_per_s']:.0f} images/s")
    return len(history)


def _name(run: RunFolder) -> str:
    return f"{run.settings.recipe}, seed {run.settings.seed}"


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
    console.print(f"MLflow   {store(runs[0].path)} (make mlflow-ui RESULTS={quote(str(space))})")
    console.print(f"page     {report_command(archive, results)}")
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
