"""The official CROHME scorer's own numbers: every pair, probe, case and released file must give the same.

GOLDEN_DIR names the folder (its README.md says what it holds), CROHME the archive with the ground truth of the
released predictions. There is no list of exceptions.
"""

import csv
import gzip
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmerbench.evaluation import symlg
from hmerbench.evaluation.commands import under_all_rules
from hmerbench.evaluation.lgeval import metrics
from hmerbench.evaluation.scoring import outcome
from hmerbench.evaluation.scoring.inputs import matched, read_ground_truth, read_predictions
from hmerbench.evaluation.scoring.score import evaluate
from tests.helpers.graphs import content
from tests.helpers.paths import GOLDEN

YEARS = sorted(path.stem.split("_")[1] for path in GOLDEN.glob("comer_released/predictions_*.zip"))
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden folder {GOLDEN}")

# From the paper's figure and the official Summary.txt: exact, <= 1, <= 2, <= 3.
RELEASED = {"2014": (585, 707, 746, 768), "2016": (687, 853, 921, 948)}
# LgEval 0.3.8 alone costs two expressions of 2016, convert2symLG 1.5 another fifty.
OF_EDITIONS = {
    "2014": {"mixed": RELEASED["2014"], "current": (547, 697, 743, 767)},
    "2016": {"mixed": (685, 853, 921, 948), "current": (635, 840, 914, 948)},
}
BY_LENGTH_2014 = [297, 150, 105, 20, 8, 5]


def pairs() -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / "pairs.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


def converted(latex: str | None) -> symlg.SymLG | None:
    try:
        return None if latex is None else symlg.from_latex(latex)
    except symlg.Unconverted as reason:
        assert str(reason)
        return None


def official(graph: symlg.SymLG | str | None) -> object:
    return None if graph is None else content(graph)


def compare(prediction: symlg.SymLG | None, truth: symlg.SymLG | None) -> metrics.Comparison:
    assert truth is not None
    return metrics.compare_graphs(prediction or symlg.EMPTY_GRAPH, truth)


def differences(found: dict[str, int | float], expected: dict[str, Any]) -> dict[str, tuple]:
    assert set(expected) == set(metrics.FIELDS)
    return {key: (found[key], value) for key, value in expected.items() if abs(found[key] - float(value)) > 1e-9}


def test_every_pair_in_the_reading_of_pandoc_119():
    wrong, row = [], None
    for row in pairs():
        prediction, truth = converted(row["pred_latex"]), converted(row["gt_latex"])
        for side, graph in (("pred", prediction), ("gt", truth)):
            if official(graph) != official(row.get(f"{side}_symlg_pandoc119", row[f"{side}_symlg"])):
                wrong.append((row["id"], side, row[f"{side}_latex"]))
        comparison = compare(prediction, truth)
        if bad := differences(comparison.metrics, row.get("metrics_pandoc119", row["metrics"])):
            wrong.append((row["id"], bad))
        if comparison.metrics["D_B"] != row["n_errors_pandoc119"]:
            wrong.append((row["id"], "n_errors", comparison.metrics["D_B"]))
        if (not comparison.diff()) != row["correct_pandoc119"]:
            wrong.append((row["id"], "correct"))
        if "metrics_pandoc119" not in row and sorted(comparison.diff().splitlines()) != sorted(row["diff"]):
            wrong.append((row["id"], "diff"))
        line = ",".join(f"{name},{value}" for name, value in row["metrics"].items()) + "\n"
        if row["correct_pandoc119"] and comparison.csv() != line:
            wrong.append((row["id"], "csv"))
    assert row
    assert not wrong, f"{len(wrong)} differences: {wrong[:5]}"


def test_every_probe():
    probes = rows("symlg_probes.jsonl")
    wrong = [
        (row["id"], row["latex"])
        for row in probes
        if official(converted(row["latex"])) != official(row["symlg_pandoc119"])
    ]
    assert probes
    assert not wrong, f"{len(wrong)} differences: {wrong[:5]}"


def test_every_score_case():
    cases = rows("score_cases.jsonl")
    wrong = []
    for row in cases:
        prediction, truth = converted(row["pred_latex"]), converted(row["gt_latex"])
        if [official(prediction), official(truth)] != [official(row["pred_symlg"]), official(row["gt_symlg"])]:
            wrong.append((row["id"], "symlg"))
        comparison = compare(prediction, truth)
        if bad := differences(comparison.metrics, row["metrics"]):
            wrong.append((row["id"], bad))
        if sorted(comparison.diff().splitlines()) != sorted(row["diff"]):
            wrong.append((row["id"], "diff"))
        if comparison.metrics["D_B"] != row["n_errors"] or (row["n_errors"] == 0) != row["correct"]:
            wrong.append((row["id"], "verdict"))
    assert cases
    assert not wrong, f"{len(wrong)} differences: {wrong[:5]}"


def test_every_official_symlg_has_the_paths_that_lg2symlg_gives():
    texts = [text for row in pairs() for text in (row["pred_symlg"], row["gt_symlg"]) if text is not None]
    assert texts and all(symlg.with_paths(text) == text for text in texts)


@pytest.fixture(scope="module", params=YEARS)
def scored(request: pytest.FixtureRequest, tmp_path_factory, crohme: Path) -> tuple[str, Path]:
    """A year's released predictions, scored by the scripts: the year and the folder of all results."""
    folder = tmp_path_factory.mktemp(f"released{request.param}")
    predictions = read_predictions(GOLDEN / f"comer_released/predictions_{request.param}.zip")
    truth = read_ground_truth(f"{crohme}:{request.param}").symlg
    outcome.run_scripts({key: text for key, text in predictions.items() if key in truth}, truth, folder)
    return request.param, folder


def test_released_symlg_contents(scored: tuple[str, Path]):
    year, folder = scored
    with zipfile.ZipFile(GOLDEN / f"comer_released/symlg_{year}.zip") as archive:
        expected = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".lg")}
    found = {path.name: path.read_text(encoding="utf-8") for path in (folder / "pred_symlg").glob("*.lg")}
    assert found.keys() == expected.keys()
    wrong = [name for name in expected if official(found[name]) != official(expected[name])]
    assert not wrong


def test_released_file_metrics(scored: tuple[str, Path]):
    year, folder = scored
    with gzip.open(GOLDEN / f"comer_released/file_metrics_{year}.csv.gz", "rt", encoding="utf-8") as file:
        expected = {Path(row["File"]).name: row for row in csv.DictReader(file)}
    with (folder / "Results_pred_symlg/FileMetrics.csv").open(encoding="utf-8") as file:
        found = {Path(row["File"]).name: row for row in csv.DictReader(file)}
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name]["Result"] == row["Result"], name
        for field in metrics.FIELDS:
            assert abs(float(found[name][field]) - float(row[field])) < 1e-9, (name, field)


def test_released_summary(scored: tuple[str, Path]):
    year, folder = scored

    def lines(path: Path) -> list[str]:
        text = path.read_text(encoding="utf-8").splitlines()
        return [line for k, line in enumerate(text) if k != 1 and "Directory:" not in line]  # date and folders

    summary = folder / "Results_pred_symlg/Summary.txt"
    expected = lines(GOLDEN / f"comer_released/summary_{year}.txt")
    assert len([number for line in expected for number in re.findall(r"[\d.]+", line)]) > 120
    assert lines(summary) == expected


def test_released_score(crohme: Path):
    score = evaluate(GOLDEN / "comer_released/predictions_2014.zip", f"{crohme}:2014").score
    assert (score.exact, score.le1, score.le2, score.le3) == RELEASED["2014"]
    assert [row.exact for row in score.by_length or []] == BY_LENGTH_2014
    assert [row.n for row in score.by_length or []] == [400, 287, 192, 56, 26, 25]
    assert str(score).endswith("= 59.33 (56.2–62.4)")
    assert (score.structure, score.missing) == (765, 1)


@pytest.mark.parametrize("year", [year for year in YEARS if year in RELEASED])
def test_released_score_by_edition(year: str, crohme: Path):
    spec = f"{crohme}:{year}"
    texts, truth, _ = matched(GOLDEN / f"comer_released/predictions_{year}.zip", spec)
    found = under_all_rules(texts, truth, spec)
    assert len(found) == 6
    for rules, (counts, _, _) in found.items():
        expected = ({"crohme2019": RELEASED[year]} | OF_EDITIONS[year])[rules.edition.name]
        assert tuple(counts[name] for name in ("exact", "le1", "le2", "le3")) == expected, rules


def test_released_symlg_of_the_current_converter():
    texts = read_predictions(GOLDEN / "comer_released/predictions_2014.zip")
    with zipfile.ZipFile(GOLDEN / "convert15/symlg_2014.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".lg")]
        expected = {Path(name).stem: official(archive.read(name).decode()) for name in names}
    found = {key: outcome.converted(text, symlg.rules("pandoc-2.17", "current")) for key, text in texts.items()}
    assert len(expected) == 951
    assert {key: content(graph) for key, graph in found.items() if not isinstance(graph, str)} == expected
