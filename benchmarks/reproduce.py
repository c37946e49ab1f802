"""The main job: every row of the ablation table trained, recognized, scored and logged, then the tables.

Each stage reads the files of the one before and is skipped where its own are there and not older; so the job
resumes where it was stopped, and any stage can be run again alone (`python -m benchmarks train|predict|score`).
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.config import Config, check_folder, resolve
from benchmarks.data.archive import Archive
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.jobs.place import Engine, Place
from benchmarks.printing import console, show
from benchmarks.runs.folder import RunFolder
from benchmarks.runs.workspace import announce, open_data, test_splits, workspace

TRAINING = 0.8  # of the minutes granted; the rest is for recognition, scoring and tables
MIRROR_SECONDS = 30  # between two looks at what a cluster does
ATTEMPTS = 4  # at a run whose node dies, as often as that happens without the run being at fault


class OutOfTime(Exception):
    """The minutes granted are over; everything done lies in the run folders."""


def reproduce(
    recipes: Sequence[str],
    preset: str,
    seeds: Sequence[int],
    crohme: Path | None,
    years: Sequence[str],
    force: bool,
    results: Path,
    engine: str = "local",
    cpus: float = 1,
    gpus: float | None = None,
    minutes: float | None = None,
    jobs: int = 1,
) -> bool:
    """Runs what is not done yet of recipes x seeds, scores the `years` (none: all sets), writes the tables.

    Without `crohme` it works on the embedded set. What is not CROHME stays apart, in results/local/<name>/. The engine
    `local` does one run after another here, or `jobs` side by side with a share of the cores each; `ray` does all at
    once on a cluster, with so many `cpus` and `gpus` each. Given `minutes`, all runs get as many epochs as fit into
    them (`fitted`); after them it ends with the epoch or stage in hand (side by side: at once, from where the
    checkpoints resume). Whether everything was done is returned.
    """
    began = time.perf_counter()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("reproduce runs one process: torchrun the verb train for each row, reproduce does the rest")
    if minutes is not None and engine != "local":
        raise UserError("--minutes is for the engine local: a cluster's own limits end its jobs")
    if jobs > 1 and engine != "local":
        raise UserError("--jobs is for the engine local: a cluster places as many runs as have room")
    archive = open_data(crohme, results)
    space = workspace(archive, results)
    splits = test_splits(archive, years)
    configs = [resolve(recipe, preset, seed, archive) for recipe in recipes for seed in seeds]
    deadline = began + 60 * minutes if minutes is not None else math.inf
    if minutes is not None:
        try:
            configs = fitted(configs, archive, space / "runs", minutes, deadline)
        except OutOfTime:
            console.print(f"the time is over: 0 of {len(configs)} runs are done; the same command resumes")
            return False
    runs = [RunFolder(space / "runs" / config.run_name, config) for config in configs]
    for run in runs:
        check_folder(run.settings, run.path)
    announce(archive)
    _print_plan(runs, splits, force)
    if engine == "ray":
        from benchmarks.jobs.ray_cluster import Ray

        whole = _spread(runs, splits, force, Ray(archive, space, cpus, gpus), len(runs), deadline)
    elif jobs > 1:
        from benchmarks.jobs.processes import Processes

        whole = _spread(runs, splits, force, Processes(archive.path, space, space / "runs/logs", jobs), jobs, deadline)
    else:
        whole = _one_after_another(runs, archive, splits, force, deadline)
    if done := [run for run in runs if run.sets("scores/*.json")]:
        _finish(archive, done, results, time.perf_counter() - began)
    return whole


def fitted(configs: Sequence[Config], archive: Archive, runs: Path, minutes: float, deadline: float) -> list[Config]:
    """The settings with as many epochs as the minutes allow, the same for all, so that rows can be compared.

    Another number of epochs is another run, so the choice is kept in runs/fitted.json: the same command finds it again.
    Raises UserError where not even the curriculum fits, OutOfTime where the deadline passes while an epoch is measured.
    """
    path = runs / "fitted.json"
    chosen: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    key = f"{minutes:g} minutes: {' '.join(sorted(config.run_name for config in configs))}"
    if key not in chosen:
        seconds = _measured_epoch(configs, archive, runs, deadline)
        left = TRAINING * (deadline - time.perf_counter())
        todo = [config.training.epochs - len(RunFolder(runs / config.run_name).history) for config in configs]
        epochs, least = int(left / seconds / len(configs)), 1 + configs[0].training.batching.curriculum
        if sum(todo) * seconds <= left:
            epochs = max(config.training.epochs for config in configs)
        elif epochs < least:
            needed = math.ceil(least * len(configs) * seconds / TRAINING / 60)
            raise UserError(
                f"--minutes {minutes:g}: {len(configs)} runs at {seconds:.3g} s an epoch have no time for {least} "
                f"epochs each, the least that preset {configs[0].preset} learns in; give {needed} or more (MINUTES=)"
            )
        console.print(f"{minutes:g} minutes: up to {epochs} epochs for each run, at {seconds:.3g} s an epoch")
        write_atomically(path, json.dumps(chosen | {key: epochs}, indent=1) + "\n")
        chosen[key] = epochs
    return [_with_epochs(config, chosen[key]) for config in configs]


def _with_epochs(config: Config, epochs: int) -> Config:
    if epochs >= config.training.epochs:
        return config
    training = config.training.model_copy(update={"epochs": epochs})
    return config.model_copy(update={"preset": f"{config.preset}-{epochs}-epochs", "training": training})


def _measured_epoch(configs: Sequence[Config], archive: Archive, runs: Path, deadline: float) -> float:
    """Seconds of the first epoch after the curriculum, of the network with most coverage: it costs most.

    It is trained in its own folder, with all the epochs of its preset, which a command without minutes resumes.
    """
    from benchmarks.training.trainer import train

    class Measured(Exception):
        pass

    config = max(configs, key=lambda config: config.model.cross_coverage + config.model.self_coverage)
    folder, wanted = runs / config.run_name, min(config.training.batching.curriculum + 1, config.training.epochs)

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] >= wanted:
            raise Measured
        if time.perf_counter() > deadline:
            raise OutOfTime

    if len(RunFolder(folder).history) < wanted:
        if time.perf_counter() > deadline:
            raise OutOfTime
        check_folder(config, folder)
        console.print(f"measuring an epoch of {config.recipe}", markup=False)
        with suppress(Measured):
            train(config, archive, folder, stop)
    return epoch_seconds(RunFolder(folder).history[:wanted])


def epoch_seconds(history: Sequence[dict[str, Any]]) -> float:
    """Seconds of the last epoch, with its share of the validations until then."""
    return history[-1]["seconds"] + sum(line.get("val_seconds", 0.0) for line in history) / len(history)


def _one_after_another(
    runs: Sequence[RunFolder], archive: Archive, splits: Sequence[str], force: bool, deadline: float
) -> bool:
    """Whether all were done before the deadline (of time.perf_counter)."""

    def in_time() -> None:
        if time.perf_counter() > deadline:
            raise OutOfTime

    for number, run in enumerate(runs):
        try:
            in_time()
            _work(run, archive, splits, force, in_time)
        except OutOfTime:
            console.print(f"the time is over: {number} of {len(runs)} runs are done; the same command resumes")
            return False
    return True


def _work(run: RunFolder, archive: Archive, splits: Sequence[str], force: bool, in_time: Callable[[], None]) -> None:
    from benchmarks.tracking.live import live
    from benchmarks.tracking.track import track

    if force:
        run.forget_training()
    if not run.trained:
        console.rule(f"{run.settings.recipe}, seed {run.settings.seed}: training", align="left")
    with live(run.path) if not run.trained else nullcontext():
        changed = _stages(run, archive, splits, in_time)
    if not changed:
        console.print(f"{run.settings.recipe}, seed {run.settings.seed}: done already ({run.path})", markup=False)
    track(run.path)


def _stages(run: RunFolder, archive: Archive, splits: Sequence[str], keep: Callable[[], None] = lambda: None) -> bool:
    """Does what is not done yet of a run; whether there was anything. `keep` is called after every epoch and stage."""
    from benchmarks.recognition.predict import predict
    from benchmarks.score import score
    from benchmarks.training.trainer import train

    changed = False
    if not run.trained:
        train(run.settings, archive, run.path, lambda _: keep())
        changed = True
    if unrecognized := [split for split in splits if not run.recognized(split)]:
        keep()
        predict(run.settings, archive, run.path, unrecognized)
        changed = True
    if unscored := [split for split in splits if not run.scored(split)]:
        keep()
        for result in score(run.settings, archive, run.path, unscored).values():
            console.print(f"{run.settings.recipe}, seed {run.settings.seed}: {result}", markup=False)
        changed = True
    keep()
    return changed


def _spread(
    runs: Sequence[RunFolder], splits: Sequence[str], force: bool, engine: Engine, at_once: int, deadline: float
) -> bool:
    """Runs side by side, on this machine or on a cluster; whether all were done before the deadline. One whose process
    or node dies is started again from what it left here; one that fails lets the others end, and is told after."""
    from benchmarks.jobs.place import Died
    from benchmarks.tracking.track import track

    attempts, epochs, errors = Counter[str](), Counter[str](), []
    undone = [run for run in runs if force or not all(run.scored(split) for split in splits)]
    waiting = {run.settings.run_name: run for run in undone}
    running: dict[str, RunFolder] = {}
    try:
        if force:
            for run in undone:
                run.forget_training()
        while (waiting or running) and time.perf_counter() < deadline:
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                running[name] = waiting.pop(name)
                engine.start(name, _on_node, running[name].settings.model_dump_json(), splits)
            for ended in engine.ended(min(MIRROR_SECONDS, max(0.0, deadline - time.perf_counter()))):
                run = running.pop(ended.name)
                attempts[ended.name] += 1
                if isinstance(ended.error, Died) and attempts[ended.name] < ATTEMPTS:
                    console.print(f"{ended.name}: {ended.error}; it is started again", markup=False)
                    waiting[ended.name] = run
                    continue
                if (run.path / "config.yaml").exists():
                    track(run.path)
                console.print(f"{ended.name}: {ended.error or 'done'}", markup=False)
                errors += [ended.error] if ended.error else []
            for run in running.values():
                if (run.path / "history.jsonl").exists():
                    _tell_epoch(run, epochs)
                    track(run.path)
    finally:
        engine.stop()
    if errors:
        raise errors[0] if isinstance(errors[0], UserError) else UserError(f"a run failed: {errors[0]}")
    if undone := len(waiting) + len(running):
        console.print(f"the time is over: {undone} of {len(runs)} runs are not done; the same command resumes")
    return not undone


def _tell_epoch(run: RunFolder, told: Counter[str]) -> None:
    """A line for every epoch that is over, as nobody sees the bars of runs side by side."""
    history = RunFolder(run.path).history
    if len(history) > told[run.settings.run_name]:
        told[run.settings.run_name] = len(history)
        last = history[-1]
        console.print(
            f"{run.settings.recipe}, seed {run.settings.seed}: epoch {last['epoch']}/{run.settings.training.epochs}, "
            f"loss {last['loss']:.4f}, {last['images_per_s']:.0f} images/s",
            markup=False,
        )


def _on_node(place: Place, config: str, splits: Sequence[str]) -> None:
    """A run in a process or on a node of its own, which hands its files to the driver as it goes."""
    settings = Config.model_validate_json(config)
    name = f"runs/{settings.run_name}"
    archive, folder = place.archive(), place.pull(name)
    _stages(RunFolder(folder, settings), archive, splits, lambda: place.push(name))


def _print_plan(runs: Sequence[RunFolder], splits: Sequence[str], force: bool) -> None:
    rows = []
    for run in runs:
        trained = run.trained and not force
        done = ["trained"] if trained else []
        done += [split for split in splits if trained and run.scored(split)]
        takes = "-" if trained else _duration(expected_seconds(run))
        row = {"row": run.settings.recipe, "seed": run.settings.seed, "done already": ", ".join(done) or "-"}
        rows.append(row | {"training takes": takes})
    show(f"plan: preset {runs[0].settings.preset}, test sets {', '.join(splits)}", rows)


def expected_seconds(run: RunFolder) -> float | None:
    """What trainings at this preset on this data took here before: their median."""
    others = map(RunFolder, run.path.parents[1].glob(f"*/{run.settings.preset}-seed*"))
    took = [other.seconds[-1] for other in others if other.trained and other.history]
    return median(took) if took else None


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown yet"
    return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"


def _finish(archive: Archive, runs: Sequence[RunFolder], results: Path, seconds: float) -> None:
    """The tables, written and printed, and where everything lies."""
    from benchmarks.report import tables
    from benchmarks.tracking.store import store
    from benchmarks.tracking.track import track

    crohme, space = archive.name == "crohme", workspace(archive, results)
    built = tables.local(results) if crohme else tables.apart(space)
    folder = results / "local" if crohme else space
    tables.write(built, folder, crohme=crohme)
    for run in runs:
        track(run.path, tables=folder)
    tables.show(built, crohme=crohme)
    announce(archive)
    console.print(f"tables   {folder}/table*.csv, .md, .tex", markup=False)
    console.print(f"runs     {space / 'runs'}", markup=False)
    console.print(f"MLflow   {store(runs[0].path)}", markup=False)
    console.print(f"seconds  {seconds:.0f}", markup=False)
