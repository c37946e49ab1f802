"""The main job: do every stage of every run that is not done yet, then write and show what came of it.

A recognizer is trained, recognizes and is scored, for a row of the tables; a language model is trained and tested. Each
stage reads the files of the one before and is skipped if its own exist and were made from those contents
(sources.json), so a job resumes where it was stopped, and any stage can be repeated alone
(`hmerbench train|predict|score`).
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from hmerbench.benchmarks import score as scoring
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import NO_MEMORY, UserError
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.jobs.place import Bystander, Died, Here, Place
from hmerbench.benchmarks.language_models import training as language_training
from hmerbench.benchmarks.language_models.corpus import Corpus, caption_corpus, read_corpus
from hmerbench.benchmarks.language_settings import LanguageSettings, tied
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.recognition import predict as recognition
from hmerbench.benchmarks.report.presets import advice, show_plan
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun, forget_trainings
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.runs.workspace import announce, remember, report_command, workspace
from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking.tracking_store import store
from hmerbench.benchmarks.training import trainer
from hmerbench.benchmarks.training.checkpoint import adopt_training

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.engine import Engine

MIRROR_SECONDS = 30  # at most between two updates of parallel runs in MLflow
ATTEMPTS = 4  # to complete a run whose process or node dies


def reproduce(
    configs: Sequence[Config],
    archive: Archive,
    splits: Sequence[str],
    results: Path,
    placing: Placing,
    force: bool = False,
) -> None:
    """Train, recognize and score what is not done yet (with `force`, everything), and write the tables.

    Results on data other than CROHME go to results/local/<name>/. On this machine, `placing.jobs` runs are done at a
    time (if 1, in this process); on a cluster, all. A run that fails does not stop the others; in the end, the
    first error is raised.
    """
    from hmerbench.benchmarks.report import tables  # noqa: F401  (needs pandas: refused before hours of training)

    space, began = workspace(archive, results), time.perf_counter()
    distinct = dict.fromkeys(configs)  # 7 and 07, or a recipe and its file, are one
    runs = [RunFolder(space / "runs" / config.run_name, config) for config in distinct]
    _begin(runs, placing, force)
    announce(archive)
    remember(archive, results)
    show_plan(runs, splits)
    if words := advice(runs[0].preset, runs[0].data):
        console.print(words)
    errors = _complete(runs, splits, Place(archive.path, space, archive), placing)
    if scored := [run for run in runs if any(map(run.scored, run.sets("scores/*.json")))]:
        _show_tables(archive, scored, results, time.perf_counter() - began)
    _raise_first(errors)


def reproduce_language_models(
    asked: Sequence[LanguageSettings], data: Path | Archive, results: Path, placing: Placing, force: bool = False
) -> None:
    """Train and test what is not done yet (with `force`, everything) on the texts in a folder, or on the LaTeX of an
    archive's training captions, in its workspace; likewise.

    Raises UserError for a recipe that reads no ends of lines on captions: a caption is a line, and rescoring needs its
    end.
    """
    captions = isinstance(data, Archive)
    place = Place(data.path, workspace(data, results), data) if captions else Place(data, results)
    if captions:
        if recipe := next((settings.recipe for settings in asked if not settings.text.line_ends), None):
            raise UserError(f"{recipe}: text.line_ends: false is for a text; give PTB=folder, or leave this recipe out")
        console.print(
            " LATEX OF THE TRAINING CAPTIONS: these are NOT the paper's perplexities. PTB=folder gives those. ",
            style="bold black on yellow",
        )
    corpora = {ends: _corpus(place, captions, ends) for ends in {settings.text.line_ends for settings in asked}}
    runs = []
    for settings in dict.fromkeys(asked):
        corpus = corpora[settings.text.line_ends]
        settings = tied(settings, corpus.name, corpus.digest)
        runs.append(LanguageRun(place.workspace / "runs" / settings.run_name, settings))
    _begin(runs, placing, force)
    show_plan(runs, ["test"])
    errors = _complete(runs, ["test"], place, placing)
    if tested := [run for run in runs if run.finished]:
        _show_perplexities(tested)
    _raise_first(errors)


def with_epochs(config: Config, epochs: int) -> Config:
    """The settings with another number of epochs, which are another run, of another preset's name."""
    if epochs == config.training.epochs:
        return config
    return config.changed({"training.epochs": epochs, "preset": f"{config.preset}-{epochs}-epochs"})


def _begin(runs: Sequence[AnyRun], placing: Placing, force: bool) -> None:
    """Refuse what cannot be done; with `force`, forget the trainings of all runs, or of none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("reproduce is one process: train every row with torchrun and the command train first")
    if placing.engine != "local" and (placing.jobs or 1) > 1:
        raise UserError("--jobs works with the engine local only: a cluster runs as many jobs as have room")
    if not runs:
        raise UserError("no recipe or no seed is given: omit --recipes and --seeds for the usual ones")
    for run in runs:
        run.refuse_training()
    if force:
        forget_trainings(runs)


def _corpus(place: Place, captions: bool, line_ends: bool) -> Corpus:
    return caption_corpus(place.archive()) if captions else read_corpus(place.data(), line_ends)


def _done(run: AnyRun, splits: Sequence[str]) -> bool:
    return run.trained_here and all(map(run.scored, splits))  # by its present weights and predictions


def _train(run: RunFolder, place: Place, splits: Sequence[str], send: Callable[..., None]) -> None:
    if not run.trained_here:
        trainer.train(run, place.archive(), send)


def _recognize(run: RunFolder, place: Place, splits: Sequence[str], send: Callable[..., None]) -> None:
    if left := [split for split in splits if not run.recognized(split)]:
        recognition.predict(run, place.archive(), left)


def _score(run: RunFolder, place: Place, splits: Sequence[str], send: Callable[..., None]) -> None:
    if left := [split for split in splits if not run.scored(split)]:
        for result in scoring.score(run, place.archive(), left).values():
            console.print(f"{run.title}: {result}")


def _train_language_model(run: LanguageRun, place: Place, splits: Sequence[str], send: Callable[..., None]) -> None:
    if not run.trained_here:
        text = run.settings.text
        language_training.train(run, _corpus(place, text.name == "captions", text.line_ends), send)


# each does what is left of it; a language model is tested by its training
STAGES: dict[type[AnyRun], tuple[Callable[..., None], ...]] = {
    RunFolder: (_train, _recognize, _score),
    LanguageRun: (_train_language_model,),
}


def _do_stages(place: Place, kind: type[AnyRun], settings: Any, splits: Sequence[str], here: bool) -> None:
    """Do the stages of a run that are not done yet, sending its files to the driver after every epoch and stage. In the
    driver's own process, `here`, it is mirrored by another one while it trains."""
    name = f"runs/{settings.run_name}"
    run = kind(place.pull(name), settings)

    def send(*_: object) -> None:
        place.push(name)

    begins = here and not run.trained_here
    if begins:
        console.rule(f"{run.title}: training", align="left")
    with tracking.live(run.path) if begins else nullcontext():
        for stage in STAGES[kind]:
            stage(run, place, splits, send)
            send()


def _complete(runs: Sequence[AnyRun], splits: Sequence[str], place: Place, placing: Placing) -> list[Exception]:
    """Do what is not done of these runs; return the errors of those that failed."""
    left = [run for run in runs if not _done(run, splits)]
    for run in runs:
        if run not in left:
            console.print(f"{run.title}: already done ({run.path})")
    if not left:
        return []
    if (jobs := placing.at_once(len(left))) == 1 and placing.engine == "local":
        return _work(left, splits, Here(place), 1)
    return _work(left, splits, placing.open(place.path, place.workspace, place.workspace / "runs/logs", jobs), jobs)


def _work(runs: Sequence[AnyRun], splits: Sequence[str], engine: "Engine | Here", at_once: int) -> list[Exception]:
    """Do at most `at_once` runs at a time. A run whose process or node dies is restarted from the files it left.
    Returns the errors of those that failed."""
    elsewhere = not isinstance(engine, Here)
    attempts, epochs, errors = Counter[str](), Counter[str](), list[Exception]()
    waiting, running = {run.settings.run_name: run for run in runs}, dict[str, AnyRun]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = next(iter(waiting))
                running[name] = run = waiting.pop(name)
                if isinstance(run, RunFolder):  # here: a node sees only its own run
                    with suppress(UserError):  # another process trains it: the job says so
                        adopt_training(run)
                engine.start(name, _do_stages, type(run), run.settings, splits, not elsewhere)
            ended = engine.ended(MIRROR_SECONDS)
            for name, run in running.items() if elsewhere else ():
                epochs[name] = _show_epoch(run, epochs[name])
                if epochs[name] and name not in ended:
                    tracking.track(run.path, running=True)
            for name, error in ended.items():
                run = running.pop(name)
                attempts[name] += not isinstance(error, Bystander)
                if isinstance(error, Died) and attempts[name] < ATTEMPTS:
                    if NO_MEMORY.search(str(error)):  # it waits until another has ended
                        at_once = max(1, len(running))
                    console.print(f"{run.title}: {error}; restarting it")
                    waiting[name] = run
                    continue
                if not error or (elsewhere and _history(run)):
                    tracking.track(run.path)
                console.print(f"{run.title}: {error or 'done'}")
                errors += [error] if error else []
    finally:
        engine.stop()
        for run in running.values() if elsewhere else ():
            if _history(run):
                tracking.track(run.path)
    return errors


def _history(run: AnyRun) -> list[dict[str, Any]]:
    """Its history; empty if damaged, which the process that trains it reports."""
    with suppress(UserError):
        return run.history
    return []


def _show_epoch(run: AnyRun, shown: int) -> int:
    """Print the last epoch of a run, if more than `shown` are done; the progress bars of other processes are not
    visible. Returns how many are done."""
    history = _history(run)
    if len(history) > shown:
        console.print(
            f"{run.title}: epoch {len(history)}/{run.settings.training.epochs}, {run.epoch_text(history[-1])}"
        )
    return len(history)


def _raise_first(errors: Sequence[Exception]) -> None:
    if errors:
        raise UserError(f"a run failed: {errors[0]}") if isinstance(errors[0], Died) else errors[0]


def _show_perplexities(runs: Sequence[LanguageRun]) -> None:
    rows = []
    for run in runs:
        tracking.track(run.path)
        scores, row = run.scores, {"recipe": run.recipe, "seed": run.seed}
        row |= {"test perplexity": scores["test_perplexity"], "words": scores["test_words"]}
        rows.append(row | {"validation": scores["valid_perplexity"], "minutes": run.seconds[-1] / 60, "run": run.path})
    show(f"language models on {runs[0].data}", rows)


def _show_tables(archive: Archive, runs: Sequence[RunFolder], results: Path, seconds: float) -> None:
    """Write and print the tables, then the paths of all results and, last, what this job made."""
    # these need pandas, which the processes of runs do without, on nodes of a cluster, too
    from hmerbench.benchmarks.report import tables
    from hmerbench.benchmarks.report.compare import what_a_difference_means
    from hmerbench.benchmarks.report.scored_runs import sampled_rate

    crohme, space = archive.name == "crohme", workspace(archive, results)
    built = tables.local(results) if crohme else tables.apart(space)
    folder = results / "local" if crohme else space
    tables.write_tables(built, folder)
    for run in runs:
        tracking.track(run.path, tables=folder)
    tables.show(built)
    announce(archive)
    console.print(f"tables   {folder}/table*.csv, .md, .tex")
    console.print(f"runs     {space / 'runs'}")
    console.print(f"MLflow   {store(runs[0].path)} (make mlflow-ui RESULTS={quote(str(space))})")
    console.print(f"page     {report_command(archive, results)}")
    console.print(f"seconds  {seconds:.0f}")
    if words := advice(runs[0].preset, runs[0].data):
        console.print(words)
    splits = sorted({split for run in runs for split in run.scores if run.scored(split)})
    rows = []
    for run in runs:
        found = {split: sampled_rate([run], split) for split in run.scores if run.scored(split)}
        rates = {split: f"{it.value:.2f} ({it.low:.1f}–{it.high:.1f}, {it.over})" for split, it in found.items()}
        rows.append({"row": run.recipe, "seed": run.seed} | {split: rates.get(split) for split in splits})
    show("this job: ExpRate in percent (95 % interval, over what)", rows)
    console.print(what_a_difference_means(runs, space / "runs"))
