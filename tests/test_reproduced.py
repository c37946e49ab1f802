"""The reproduced runs: complete, readable, and with scores that follow from their predictions."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.augmentation import Substitution
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.benchmarks.recognition.predict import recognize
from hmerbench.benchmarks.regression_gate import baseline, fixed_job
from hmerbench.benchmarks.report import summary, tables
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.score import evaluated, score
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.scoreboard.card import read_cards
from hmerbench.evaluation.scoring import outcome
from hmerbench.evaluation.scoring.metrics import METRICS
from hmerbench.evaluation.scoring.score import Score
from hmerbench.models.weights import load_weights
from tests.helpers.paths import INK, MEDIUM, ROOT

RUNS = RunFolder.under(ROOT / "results/reproduced")
CONTROL = RunFolder.under(ROOT / "results/control")  # in no table
LARGE = [run for run in (*RUNS, *CONTROL) if run.path.name.startswith("large-")]
READ = [(year, run) for run in LARGE for year in run.sets("predictions/*.tsv")]
READ.sort(key=lambda each: each[0])  # by year, as all runs read much alike


def newer_than(file: Path, score: Score) -> set[str]:
    """The counts and rates of a score that a committed file is older than."""
    newer = asdict(score).keys() - json.loads(file.read_text()).keys()
    younger = (metric for metric in METRICS if not metric.always and metric.count != "token_exact")
    assert newer <= {name for metric in younger for name in (metric.count, metric.rate)}
    return newer


def named(value):
    return f"{value.path.parent.name}/{value.path.name}" if isinstance(value, RunFolder) else value


@pytest.mark.parametrize("run", RUNS, ids=named)
def test_a_reference_run_is_complete(run):
    config = run.settings
    assert run.path == ROOT / "results/reproduced" / config.name
    years = run.sets("predictions/*.tsv")
    assert "2014" in years and years == run.sets("scores/*.json")
    assert [line["epoch"] for line in run.history] == list(range(1, config.training.epochs + 1))
    assert run.environment.get("revision")
    assert (run.path / "README.md").exists() == (run.path / "errors").exists() == run.has_weights
    if run.has_weights:
        row = [other for other in RUNS if (other.recipe, other.preset) == (run.recipe, run.preset)]
        assert run is row[0]  # the first seed
        assert load_weights(run.weights_file, config.model).settings == config.model


@pytest.fixture(scope="module")
def opened(crohme) -> Iterator[Archive]:
    """CROHME, which keeps its ground truth; what runs read alike is converted once."""
    archive = open_archive(crohme)
    archive.ground_truth = cache(archive.ground_truth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "converted", cache(outcome.converted))
        patch.setattr(label_graph, "read", cache(label_graph.read))
        yield archive


@pytest.mark.parametrize(("year", "run"), READ, ids=named)
def test_a_reference_run_is_scored_to_the_same_counts(year, run, opened):
    """The rows of one preset; `make regress` counts those of all."""
    found = evaluated(run, opened, year)
    newer = newer_than(run.path / f"scores/{year}.json", found.score)
    assert replace(found.score, **dict.fromkeys(newer)) == run.scores[year]
    assert {row.id: row for row in found.expressions} == run.expressions(year)


def test_all_scores_are_those_that_the_gate_counts():
    """`make regress` scores all predictions again, and compares counts and verdicts with these of its baseline."""
    gate = baseline.read(ROOT / "results/baseline.json").scores
    for run in RUNS:
        for year, committed in run.scores.items():
            name = f"{run.path.parent.name} {run.path.name}, {year}"
            counts = {key: value for key, value in asdict(committed).items() if key in fixed_job.COUNTS}
            for key in counts.keys() - newer_than(run.path / f"scores/{year}.json", committed):
                assert gate[f"{name}: {key}"] == counts[key], name
            assert gate[f"{name}: every expression"] == fixed_job.verdicts(run.expressions(year).values()), name


@pytest.mark.parametrize(("recipe", "year"), [("bttr", "2014"), ("comer-fusion", "2019")])
def test_the_scripts_write_the_same_files(recipe, year, tmp_path, opened):
    """For two rows; the summary, which is dated, aside."""
    run = next(run for run in RUNS if (run.recipe, run.preset) == (recipe, "medium"))
    (tmp_path / "predictions").symlink_to(run.path / "predictions")
    scored = score(RunFolder(tmp_path, run.settings), opened, [year])[year]
    newer, written = newer_than(run.path / f"scores/{year}.json", scored), tmp_path / f"scores/{year}.json"
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if line.partition(":")[0].strip(' "') not in newer))
    names = [f"scores/{year}.json", f"scores/{year}.csv", f"errors/{year}.json"]
    for name in (name for name in names if (run.path / name).exists()):
        assert (tmp_path / name).read_bytes() == (run.path / name).read_bytes(), name


def test_the_committed_tables_are_what_make_tables_writes(tmp_path):
    rows = tables.committed_rows(ROOT / "results")
    for path in tables.write_tables(tables.paper_tables(rows, ROOT / "results"), tmp_path):
        assert path.read_text() == (ROOT / "results" / path.name).read_text(), f"{path.name}: run make tables"
    results, readme = tmp_path / "results", tmp_path / "README.md"
    results.mkdir()
    for name in ("reproduced", "scoreboard.csv", "leaderboard.json", "language.csv"):  # what they are made from
        (results / name).symlink_to(ROOT / "results" / name)
    readme.write_text((ROOT / "README.md").read_text())
    (results / "speed").mkdir()
    for name in ("recipe.csv", "search_tricks.csv"):
        (results / "speed" / name).symlink_to(ROOT / "results/speed" / name)
    (results / "speed/README.md").write_text((ROOT / "results/speed/README.md").read_text())
    for path in summary.write_summary(results, readme, rows):
        assert path.read_text() == (ROOT / path.relative_to(tmp_path)).read_text(), f"{path.name}: run make tables"


@pytest.mark.long
@pytest.mark.skipif(not INK.exists(), reason=f"no {INK}")
def test_four_scales_recognize_more_than_one(crohme):
    """The criterion for the scales of the preset medium: training expressions, a quarter of their symbols replaced."""
    run, archive = RunFolder(MEDIUM), open_archive(crohme)
    some = evenly([(id_, tokens) for id_, tokens in archive.captions("train").items() if len(tokens) <= 30], 30)
    samples = [Sample(id_, tuple(tokens), archive.image("train", id_)) for id_, tokens in some]
    samples = [s for s in with_ink(samples, archive.inkml) if s.ink]
    write = Substitution(samples, run.settings.data.substitution)
    fresh = [write(sample, np.random.default_rng(number)) for number, sample in enumerate(samples)]
    model, read = load_weights(run.weights_file, run.settings.model).eval(), {}
    for scales in ((1.0,), run.settings.search.scales):
        found = recognize(model, run.settings.changed({"search.scales": scales}), fresh, torch.device("cpu"), "train")
        read[scales] = sum(found[s.id][0] == s.tokens for s in fresh)
    assert read[1.0, 1.15, 1.3, 1.45] > read[1.0,]


def test_cards_of_the_scoreboard_say_which_runs_are_external() -> None:
    for system in read_cards():
        for file in system.card.files.values():
            if file.path.startswith("results/reproduced/"):
                run = RunFolder(ROOT / Path(file.path).parents[1])
                assert system.card.status == ("external" if run.external else "trained here"), system.key
