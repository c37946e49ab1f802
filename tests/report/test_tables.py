"""The tables, made from made-up score files: their rows and labels, and which files they change."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import summary, tables
from hmerbench.benchmarks.report.paper import YEARS, reference
from hmerbench.benchmarks.report.presets import preset_labels
from hmerbench.benchmarks.report.summary import provenance
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation import csv_text, datasets
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.metrics import TABULATED, WITHIN
from tests.helpers.made_up import put_config, put_environment, put_expressions, put_history, put_score
from tests.helpers.paths import ROOT

RESULTS = ROOT / "results"
CROHME = {"name": "crohme", "digest": "ab" * 32}


def put_run(
    root: Path,
    recipe: str,
    preset: str = "smoke",
    seed: int = 7,
    exact: int = 493,
    n: int = 986,
    split: str = "2014",
    data: dict | None = None,
    limit: int | None = None,
    scales: tuple[float, ...] = (1.0,),
    suffix: str = "-00000000",
) -> Path:
    folder = root / recipe / f"{preset}-seed{seed}{suffix}"
    search = {"limit": limit, "beam_size": 10, "scales": list(scales)}
    put_config(folder, recipe=recipe, preset=preset, seed=seed, data=data or CROHME, search=search)
    put_score(folder, split, n, exact, le1=exact + 10, le2=exact + 20, le3=exact + 30)
    put_expressions(folder, split, (int(k >= exact) for k in range(n)))
    return folder


def put_years(root: Path, recipe: str, preset: str, seed: int = 7, exact: int = 493, **given: Any) -> Path:
    """A run with so many right of each year that the papers report."""
    for split in YEARS:
        folder = put_run(root, recipe, preset, seed, exact, crohme().n(split), split, **given)
    return folder


def write_csv(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text(csv_text(list(lines[0]), lines))


def rows(path: Path, **wanted: str) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[k] == v for k, v in wanted.items())]


def local_rows(results: Path) -> list[dict[str, Any]]:
    """The rows of Table 1 that are runs of this machine."""
    return tables.local(results)["table1"].query("source == 'local'").to_dict("records")  # pyright: ignore


def test_another_table_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    table = tables.Table("what was read of 2016", lambda runs: [row for row in runs if row["split"] == "2016"])
    monkeypatch.setitem(tables.TABLES, "nested", table)
    for recipe in ("comer-fusion", "bttr", "mine"):
        put_years(tmp_path / "reproduced", recipe, "small")
    built = tables.committed(tmp_path)
    files = [path.name for path in tables.write_tables(built, tmp_path)]
    assert files[-3:] == ["nested.csv", "nested.md", "nested.tex"]
    tables.show(built)
    written = [(row["dataset"], row["model"]) for row in rows(tmp_path / "nested.csv")]
    assert written == [("2016", "BTTR"), ("2016", "CoMER (Fusion)"), ("2016", "mine")]
    assert "Table nested: what was read of 2016" in capsys.readouterr().out


def test_a_test_year_more_has_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = crohme()
    more = known.model_copy(update={"splits": known.splits | {"2031": known.splits["2019"]}})
    monkeypatch.setattr(datasets, "datasets", lambda: {"crohme": more})
    put_run(tmp_path / "reproduced", "bttr", "small", exact=5, n=crohme().n("2031"), split="2031")
    tables.write_tables(tables.committed(tmp_path), tmp_path)
    assert [row["exprate"] for row in rows(tmp_path / "table2.csv", dataset="2031")] == ["0.42"]


def test_reported_counts_are_the_papers() -> None:
    """Rates in Table 1 are multiples of 1/986."""
    for row in reference()["table1"]:
        count = round(row["exprate"] * 986 / 100)
        assert round(100 * count / 986, 2) == row["exprate"]


def test_sources_are_side_by_side(tmp_path: Path) -> None:
    put_run(tmp_path / "reproduced", "comer-fusion", "small", exact=400, suffix="")
    put_run(tmp_path / "runs", "comer-fusion", "smoke", exact=100)
    put_run(tmp_path / "runs", "comer-self", "smoke", exact=90)
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    fusion = rows(tmp_path / "local/table1.csv", model="CoMER (Fusion)")
    assert [(r["source"], r["exprate"], r["preset"]) for r in fusion] == [
        ("reported", "59.33", ""),
        ("reproduced", "40.57", "small"),
        ("local", "10.14", "smoke"),
    ]
    assert fusion[2]["self_cov"] == fusion[2]["cross_cov"] == "True"
    comer = rows(tmp_path / "local/table2.csv", dataset="2014", model="CoMER")
    assert [r["source"] for r in comer] == ["reported", "reproduced", "local"]
    assert rows(tmp_path / "local/table2.csv", model="CoMER (Self)")[0]["exprate"] == "9.13"
    assert {*tables.committed(tmp_path)["table2"]["source"]} == {"reported", "reproduced"}


def test_seeds_are_averaged_and_counted(tmp_path: Path) -> None:
    for seed, exact in ((7, 100), (8, 200), (9, 300)):
        put_run(tmp_path / "runs", "bttr", seed=seed, exact=exact)
    put_run(tmp_path / "runs", "bttr-baseline", exact=200)
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    row, single = rows(tmp_path / "local/table1.csv", source="local")
    assert (row["exprate"], row["seeds"], row["n"], row["sd"]) == ("20.28", "3", "986", "10.14")
    assert r"20.28 $\pm$ 10.14" in (tmp_path / "local/table1.tex").read_text()
    assert (row["ci_over"], single["ci_over"]) == ("seeds and images", "images")  # the ids name no writers
    assert float(row["ci_low"]) < float(single["ci_low"]) < float(single["ci_high"]) < float(row["ci_high"])


@pytest.mark.parametrize("damage", ["", "id,status\n"])
def test_a_run_with_damaged_verdicts_is_named_and_keeps_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    folder = put_run(tmp_path / "runs", "bttr", exact=100)
    put_run(tmp_path / "runs", "comer-self", exact=200)
    tables.local(tmp_path)
    assert not capsys.readouterr().err
    (folder / "scores/2014.csv").write_text(damage)
    assert [round(row["exprate"], 2) for row in local_rows(tmp_path)] == [10.14, 20.28]
    told = " ".join(capsys.readouterr().err.split())
    assert str(folder) in told and "its interval is over images" in told


def test_counts_stand_beside_the_neutral_ones_and_the_ceilings(tmp_path: Path) -> None:
    """The mean of seeds if each has one; a score of before they were counted has a dash."""
    for seed, exact in ((7, 100), (8, 101), (9, 101)):
        put_run(tmp_path / "reproduced", "bttr", "small", seed, exact)
    put_run(tmp_path / "reproduced", "comer-self", "small", exact=90)
    old = put_run(tmp_path / "reproduced", "comer-cross", "small", exact=80) / "scores/2014.json"
    old.write_text(json.dumps({key: value for key, value in json.loads(old.read_text()).items() if key != "neutral"}))
    best = {"2014": {"n": 986, "exact": 895, "neutral": 945}}
    (tmp_path / "leaderboard.json").write_text(json.dumps({"ceilings": best}))
    tables.write_tables(tables.committed(tmp_path), tmp_path)
    found = {
        (row["model"], row["source"]): [row[name] for name in ("exact", "ceiling", "neutral", "neutral_ceiling")]
        for row in rows(tmp_path / "table1.csv")
    }
    assert found["BTTR", "reproduced"] == ["100.7", "895", "105.7", "945"]
    assert found["CoMER (Self)", "reproduced"] == ["90", "895", "95", "945"]
    assert found["CoMER (Cross)", "reproduced"] == ["80", "895", "", "945"]
    assert found["CoMER (Self)", "reported"] == ["", "895", "", "945"]
    text = summary.Summary(tmp_path).limits()
    assert re.search(r"\| BTTR +\| `small` +\| 3 +\| 100.7 +\| 105.7 +\|", text)
    assert re.search(r"\| CoMER \(Cross\) +\| `small` +\| 1 +\| 80 +\| – +\|", text)
    assert re.search(r"\| a perfect reader of the captions \| +\| +\| 895 +\| 945 +\|", text)
    for damaged in ("{", "[]", "{}", '{"ceilings": {"2014": {}}}', '{"ceilings": {"2014": {"exact": "many"}}}'):
        (tmp_path / "leaderboard.json").write_text(damaged)
        with pytest.raises(UserError, match=r"leaderboard\.json: damaged, or of another version; run make scoreboard"):
            tables.ceilings(tmp_path)


def test_runs_with_more_training_data_are_a_row_of_their_own(tmp_path: Path) -> None:
    put_run(tmp_path / "runs", "bttr", seed=7, exact=100)
    more = put_run(tmp_path / "runs", "bttr", seed=8, exact=200)
    put_config(more, data=CROHME | {"sub_expressions": 3, "substitution": 0.25})
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    found = rows(tmp_path / "local/table1.csv", source="local")
    cells = [(row["added"], row["exprate"], row["seeds"]) for row in found]
    assert cells == [("3 parts, 25% substituted", "20.28", "1"), ("nothing", "10.14", "1")]
    assert re.search(r"local, smoke \w{8}\+ &", (tmp_path / "local/table1.tex").read_text())


MARKS = [summary.README_MARK.format(name) for name in ("ladder", "Table 1")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """README and TABLES.md of two rows with three seeds at gpu, one at small and, not for all years, at brief."""
    tmp_path = tmp_path_factory.mktemp("written")
    for seed, exact in ((7, 493), (8, 503), (9, 498)):
        put_years(tmp_path / "reproduced", "comer-fusion", "gpu", seed, exact)
        cross = put_years(tmp_path / "reproduced", "comer-cross", "gpu", seed, exact - 100)
        put_history(cross, [{"seconds": 300 * seed}, {"seconds": 300 * seed}])
        put_environment(cross, threads=2)
    more = CROHME | {"scale": 0.5, "sub_expressions": 3, "substitution": 0.4}
    put_years(tmp_path / "reproduced", "comer-fusion", "small", data=more, scales=(1.0, 1.3))
    put_years(tmp_path / "reproduced", "comer-cross", "small", exact=393, data=more, scales=(1.0, 1.3))
    for recipe in ("comer-cross", "comer-fusion"):
        put_run(tmp_path / "reproduced", recipe, "brief", split="2016", n=1147)
    readme = tmp_path / "README.md"
    readme.write_text("above\n" + "".join(f"{mark}old\n{summary.README_END}between\n" for mark in MARKS) + "below\n")
    for _ in range(2):
        written = summary.write_summary(tmp_path, readme)
        assert written == [tmp_path / "TABLES.md", tmp_path / "PROVENANCE.md", tmp_path / "CLAIMS.md", readme]
    return readme.read_text(), (tmp_path / "TABLES.md").read_text()


def cells_of(text: str) -> list[list[str]]:
    """The cells of all tables in a document."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_only_what_is_between_a_readmes_marks_is_written(written: tuple[str, str], tmp_path: Path) -> None:
    assert written[0].startswith(f"above\n{MARKS[0]}|") and written[0].endswith(f"{summary.README_END}between\nbelow\n")
    assert written[0].count("between") == 2 and "old\n" not in written[0]
    (tmp_path / "README.md").write_text("no marks\n")
    with pytest.raises(UserError, match="add the lines"):
        summary.write_summary(tmp_path, tmp_path / "README.md")


def test_the_ladder_and_the_short_table(written: tuple[str, str]) -> None:
    ladder, short = map(cells_of, written[0].split("between\n")[:2])
    rungs = {preset: (cost, reads) for preset, cost, reads, *_ in ladder}
    assert rungs["`smoke`"] == ("minutes", "–")
    assert rungs["`small`"] == ("not measured", "50.0 % (an earlier form)")
    assert rungs["`gpu`"] == ("140–180 core-minutes (an earlier form), CoMER (Cross)", "50.5 % (an earlier form)")
    assert rungs["`paper`"][1] == "59.3 % (reported)"
    assert short[0] == ["model", "reported", "`gpu`, 3 seeds"]  # which reads most, and has most seeds
    assert short[-1] == ["CoMER (Fusion)", "59.33", "50.51 ± 0.51 (47.4–53.7)"]


def test_the_summary(written: tuple[str, str]) -> None:
    rows = [
        ["model", "reported", "`gpu`", "`small`"],
        ["CoMER (Fusion)", "59.33", "50.51 ± 0.51 (47.4–53.7)", "50.00 (46.9–53.1)"],
        ["CoMER (Self)", "57.51", "", ""],
        ["authors'", "48", "1", "8,834", "nothing", "300", "1", "", ""],
        ["`gpu`", "48", "1", "8,834", "nothing", "300", "1", "140–180", "3"],
        ["`small`", "48", "0.5", "8,834", "3 parts, 40% substituted", "300", "1, 1.3", "", "1"],
        ["from → to", "reported, 2014", "`gpu`", "`small`"],
        [  # one seed: no verdict
            *("CoMER (Cross) → CoMER (Fusion)", "+1.22"),
            *("**+9.00 (+8.1 to +10.0)**, p<0.001", "+9.00 (images: +8.0 to +10.0)"),
        ],
    ]
    found = cells_of(written[1])
    assert [row for row in rows if found.count(row) != 1] == []
    # five more or fewer right of each year, or 15 of 3,332: t(4) = 2.776 times the root of 2 times 0.450
    assert "Two runs of a row differ by less than 1.8 points with `gpu`, in 95" in written[1]


def test_trials_and_tricks_are_tables(tmp_path: Path) -> None:
    """A line for each training, its readings side by side; other readings and tricks a line each. Missing files are
    left out."""
    assert summary.speed_tables(tmp_path) == {}
    row = {"recipe": "r", "preset": "medium", "epochs": 8, "seed": 7, "n": 200, "core_minutes": 9.5}
    done = [
        {"trial": "data.limit=9", "reading": "as it is", "exact": 50, "loss": "", "word_accuracy": ""},
        {"trial": "as it is", "reading": "as it is", "exact": 101, "loss": 0.4422, "word_accuracy": 89.42},
        {"trial": "as it is", "reading": "search.scales=[1.0]", "exact": 91, "loss": "", "word_accuracy": ""},
        {"trial": "as it is", "reading": "search.alpha=0.0", "exact": 103, "loss": "", "word_accuracy": ""},
    ]
    write_csv(tmp_path / "recipe.csv", [row | each for each in done])
    trick = {"trick": "t", "kept": "yes", "search": "s", "precision": "bf16", "saves": -0.004, "spread": 0.115}
    write_csv(tmp_path / "search_tricks.csv", [trick])
    found = {name: cells_of(text)[2:] for name, text in summary.speed_tables(tmp_path).items()}
    assert found == {
        "trials": [
            ["as it is", "8", "50.5", "45.5", "", "9.5", "0.4422", "89.42"],
            ["data.limit=9", "8", "25.0", "", "", "9.5", "", ""],
        ],
        "readings": [["as it is", "search.alpha=0.0", "51.5"]],
        "tricks": [["t", "yes", "s", "0 (12)"]],
    }
    other = done[1] | {"seed": 8, "loss": "", "word_accuracy": "", "exact": 90}  # trained with another seed
    done += [other, other | {"reading": "search.alpha=0.0"}]
    write_csv(tmp_path / "recipe.csv", [row | each for each in done])
    found = {name: cells_of(text)[2:] for name, text in summary.speed_tables(tmp_path).items()}
    assert found["trials"][:2] == [
        ["as it is", "7", "8", "50.5", "45.5", "", "9.5", "0.4422", "89.42"],
        ["as it is", "8", "8", "45.0", "", "", "9.5", "", ""],
    ]
    assert found["readings"][1] == ["as it is", "8", "search.alpha=0.0", "45.0"]


def test_who_made_a_run_is_told(tmp_path: Path) -> None:
    """The suite, which records its version, or another program, in whole or in part; a network that reads with one of
    the latter is not the suite's alone. Such rows are not called reproduced."""
    other = {"torch": "2.11.0", "numpy": "2.5.2"}
    suite = {"versions": {"hmerbench": "0.1.0", "torch": "2.13.0"}, "device": "EPYC", "threads": 1}
    gpu = {"versions": other, "device": "H200", "gpu": True, "revision": "0123456789"}
    root = tmp_path / "reproduced"
    put_environment(own := put_run(root, "bttr", "small", suffix=""), **suite)
    put_environment(put_run(root, "comer-self", "small", suffix=""), **gpu)
    put_environment(put_run(root, "comer-cross", "small", suffix=""), **gpu, resumed=[suite])
    both = put_run(root, "comer-fusion", "small", suffix="")
    put_environment(both, **suite, trained_in="small-seed7-12345678")
    together = {"runs": ["results/reproduced/comer-self/small-seed7"], "digests": ["0" * 16]}
    put_config(both, search={"together": together})
    put_history(own, [{"seconds": 90.0}, {"seconds": 30.0}])
    sources = {row["model"]: row["source"] for row in tables.committed(tmp_path)["table1"].to_dict("records")}
    models = ("BTTR", "CoMER (Self)", "CoMER (Cross)", "CoMER (Fusion)")
    assert [sources[model] for model in models] == ["reproduced", "external", "external", "external"]
    lines = {row[0]: row for row in cells_of(provenance(root))}
    programs = {model: lines[model][3] for model in models}
    assert [*programs.values()] == ["suite", "external", "external, then suite", "suite, and external"]
    put_config(both, search={"together": together | {"runs": ["results/reproduced/nowhere/small-seed7"]}})
    assert RunFolder(both).external  # what is not here is not known
    assert lines["CoMER (Cross)"][4:7] == ["H200, then EPYC", "GPU, then no matrix unit", "2.11.0, then 2.13.0"]
    assert lines["CoMER (Self)"][9] == "0123456" and lines["BTTR"][-3:] == ["2 (core)", "20", "no"]
    assert lines["CoMER (Fusion)"][-1] == "of small-seed7"


def test_an_external_seed_stands_beside_those_of_the_suite(tmp_path: Path) -> None:
    for seed, exact, versions in ((7, 493, {}), (8, 500, {"hmerbench": "0.1.0"})):
        put_environment(put_run(tmp_path / "reproduced", "bttr", "small", seed, exact, suffix=""), versions=versions)
    short = summary.Summary(tmp_path)
    assert re.search(r"50\.00† \(.*\); 50\.71 \(", short.board(["small"]).loc["BTTR", "small"])
    assert re.findall(r"BTTR(†?) .* (\d{3}) +\| +\d{3} +\|", short.limits()) == [("†", "493"), ("", "500")]


def test_seeds_of_other_scorers_are_not_averaged(tmp_path: Path) -> None:
    for seed, exact, conv in ((7, 500, "1.4"), (8, 400, "1.5")):
        path = put_run(tmp_path / "runs", "bttr", seed=seed, exact=exact) / "scores/2014.json"
        path.write_text(path.read_text().replace("metric:symlg", f"metric:symlg|conv:{conv}"))
    local = local_rows(tmp_path)
    assert [(row["preset"], row["seeds"]) for row in local] == [("smoke", 1), ("smoke conv:1.5", 1)]


def test_a_run_of_settings_that_are_gone_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of one's own, with a warning; a committed one is refused."""
    put_run(tmp_path / "runs", "bttr")
    put_config(put_run(tmp_path / "runs", "comer-fusion"), training={"undistorted": 0.2}, schema_version=5)
    local = local_rows(tmp_path)
    assert [row["model"] for row in local] == ["BTTR"]
    assert "training.undistorted: no such key" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "runs").rename(tmp_path / "reproduced")
    with pytest.raises(UserError, match=r"training\.undistorted: no such key"):
        tables.committed(tmp_path)


def test_a_readme_tells_no_more_than_there_is(tmp_path: Path) -> None:
    """A part of 2014 is not 2014; without three seeds of any row nothing is told of them; a claim may stand alone."""
    put_run(tmp_path / "a/reproduced", "comer-fusion", n=200, exact=20, limit=200)
    assert "10.00" not in summary.Summary(tmp_path / "a").page()
    for recipe, exact in (("comer-cross", 493), ("comer-fusion", 593)):
        put_years(tmp_path / "b/reproduced", recipe, "gpu", exact=exact)
    text = summary.Summary(tmp_path / "b").page()
    assert "`gpu`, 1 seed |" in summary.Summary(tmp_path / "b").short()
    assert "(images: " in text and "Two runs" not in text
    for seed in (7, 8, 9):
        put_years(tmp_path / "c/reproduced", "bttr-baseline", "gpu", seed, 493 + seed)
        put_years(tmp_path / "c/reproduced", "comer-fusion", "gpu", seed, 593 + seed)
    put_years(tmp_path / "c/reproduced", "comer-self", "gpu", exact=550)
    page = summary.Summary(tmp_path / "c").page()
    assert re.search(r"BTTR \(baseline\) → CoMER \(Fusion\) \| +\+4.16 \| +\*\*\+9.", page)
    for recipe, exact in (("bttr-baseline", 393), ("comer-fusion", 400)):
        put_years(tmp_path / "c/reproduced", recipe, "small", exact=exact)
    (claim,) = summary.Summary(tmp_path / "c").claims()  # every preset, with its seeds
    assert re.search(r"years: `small` \+0.63 \(images: .*, 1 seed; `gpu` \*\*\+9.* 3 seeds\.$", claim)


def test_a_readme_without_scored_runs(tmp_path: Path) -> None:
    (put_run(tmp_path / "reproduced", "bttr") / "scores/2014.json").unlink()
    table = [line for line in summary.Summary(tmp_path).page().splitlines() if line.startswith("|")]
    assert table[0].split() == ["|", "model", "|", "reported", "|"] and len(table) == 8


def test_runs_of_other_settings_are_never_pooled(tmp_path: Path) -> None:
    """Neither as seeds of a row nor as rows of a preset, despite the same preset name; a custom recipe may differ."""
    for recipe, seed, scale in (("bttr", 7, 1.0), ("bttr", 8, 0.5), ("comer-self", 7, 0.5), ("mine", 7, 0.3)):
        put_run(tmp_path / "runs", recipe, seed=seed, data=CROHME | {"scale": scale})
    local = local_rows(tmp_path)
    presets = {(row["model"], row["preset"]) for row in local}
    assert len(local) == 4 and ("mine", "smoke") in presets and {row["seeds"] for row in local} == {1}
    (self_preset,) = {preset for model, preset in presets if model == "CoMER (Self)"}
    assert self_preset.startswith("smoke ") and ("BTTR", self_preset) in presets


BOTH = {"model": {"network": "bttr-original", "bidirectional": True}, "search": {"direction": "both"}}
ONE = {"model": {"network": "bttr-original", "bidirectional": False}, "search": {"direction": "l2r"}}


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([("mine", {"data": CROHME | {"scale": scale}}) for scale in (1.0, 0.5)], 2),  # two recipes of one name
        ([("mine", {}), ("mine", {})], 1),  # two seeds
        ([("mine", {"model": {"self_coverage": on}}) for on in (True, False)], 2),  # though the paper's rows differ so
        ([("bttr", {"augmentation": None}), ("comer-self", {"augmentation": {"scale": [0.7, 1.4]}})], 1),
        ([("bttr", {"augmentation": None}), ("comer-self", {"augmentation": {"rotation": 0.0}})], 1),
        ([("bttr-original", BOTH), ("bttr-uni", ONE)], 1),  # each is read in all directions that it has learned
        ([("bttr-original", BOTH | {"search": ONE["search"]}), ("bttr-uni", ONE)], 2),  # in one of two: another search
    ],
)
def test_which_runs_share_the_label_of_their_preset(
    tmp_path: Path, runs: list[tuple[str, dict[str, Any]]], labels: int
) -> None:
    folders = [put_run(tmp_path, recipe, seed=7 + number) for number, (recipe, _) in enumerate(runs)]
    for folder, (_, keys) in zip(folders, runs, strict=True):
        put_config(folder, **keys)
    assert len({*preset_labels(map(RunFolder, folders)).values()}) == labels


def test_the_last_scored_run_of_a_seed_counts(tmp_path: Path) -> None:
    old = put_run(tmp_path / "runs", "bttr", exact=300, suffix="-ffffffff")
    put_run(tmp_path / "runs", "bttr", exact=200, suffix="-00000000")
    os.utime(old / "scores/2014.json", (1, 1))
    (row,) = local_rows(tmp_path)
    assert row["exprate"] == pytest.approx(100 * 200 / 986) and row["seeds"] == 1


def test_a_partially_scored_set_is_labeled(tmp_path: Path) -> None:
    put_run(tmp_path / "runs", "bttr", n=200, exact=20, limit=200)
    put_run(tmp_path / "runs", "bttr", n=1147, exact=20, limit=1147, split="2016", preset="small")
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    local = rows(tmp_path / "local/table2.csv", source="local")
    assert [(r["dataset"], r["n"], r["exprate"]) for r in local] == [
        ("2014 [200 evenly spaced]", "200", "10.00"),
        ("2016", "1147", "1.74"),
    ]


def test_other_data_has_a_separate_labeled_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_run(tmp_path / "runs", "comer-fusion", n=300, exact=90, split="test", data={"name": "embedded", "digest": ""})
    built = tables.apart(tmp_path)
    paths = tables.write_tables(built, tmp_path)
    assert {path.name for path in paths} == {"table2.csv", "table2.md", "table2.tex"}
    (row,) = rows(tmp_path / "table2.csv")
    assert (row["dataset"], row["source"], row["exprate"], row["n"]) == ("embedded", "local", "30.00", "300")
    for name in ("table2.md", "table2.tex"):
        assert "NOT CROHME numbers" in (tmp_path / name).read_text()
    tables.show(built)
    assert "NOT CROHME numbers" in capsys.readouterr().out
    assert tables.apart(tmp_path / "nowhere")["table2"].empty


def test_csv_markdown_and_latex_agree(tmp_path: Path) -> None:
    """Markdown and LaTeX have the content of the CSV, escaped where necessary."""
    put_run(tmp_path / "runs", "my_recipe", exact=123)
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    (line,) = [text for text in (tmp_path / "local/table2.md").read_text().splitlines() if "my_recipe" in text]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    (row,) = rows(tmp_path / "local/table2.csv", model="my_recipe")
    assert cells == [value or "–" for value in row.values()]
    tex = (tmp_path / "local/table2.tex").read_text()
    cells = r"my\\_recipe & local, smoke & 1 & 12\.47 & 10\.6--14\.7 & 13\.49 & 14\.50 & 15\.52 "
    assert re.search(rf"{cells}(& \S+ ){{{len(TABULATED) - len(WITHIN)}}}\\\\", tex)
    sets, heading = 3, 1
    assert tex.count("\\\\") == len(rows(tmp_path / "local/table2.csv")) + sets + heading
    assert "reported}: the paper's numbers" in tex and "local}: runs of one machine" in tex and "reproduced}" not in tex


ENGINE = next(filter(None, map(shutil.which, ("pdflatex", "lualatex", "xelatex"))), None)
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs,longtable}
\begin{document}
\input{committed/table1} \input{committed/table2} \clearpage
\input{local/table1} \input{local/table2} \input{apart/table2} \input{none/table2}
\end{document}
"""


@pytest.mark.skipif(not ENGINE, reason="no LaTeX here: apt-get install texlive-latex-recommended")
def test_latex_compiles_the_tables(tmp_path: Path) -> None:
    """Committed, long and empty tables, with special characters in names; none overflows the column."""
    assert ENGINE
    for preset in ("smoke", "small", "gpu", "paper"):
        for recipe in ("bttr", "comer-self", "comer-fusion", "a%_50&#$~^{b}[c]<"):
            for split in crohme().tests:
                put_run(tmp_path / "runs", recipe, preset, n=crohme().n(split), split=split)
    put_run(tmp_path / "x/runs", "bttr", n=300, exact=90, split="test", data={"name": "embedded", "digest": ""})
    tables.write_tables(tables.committed(RESULTS), tmp_path / "committed")
    tables.write_tables(tables.local(tmp_path), tmp_path / "local")
    for place, folder in (("x", "apart"), ("y", "none")):
        tables.write_tables(tables.apart(tmp_path / place), tmp_path / folder)
    assert "longtable" in (tmp_path / "local/table2.tex").read_text()
    (tmp_path / "all.tex").write_text(DOCUMENT)
    command = [ENGINE, "-draftmode", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


@pytest.mark.parametrize("name", ["config.yaml", "scores/2014.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", "n: [", '{"n": 3}'])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    path = put_run(tmp_path / "runs", "bttr") / name
    path.write_text(content)
    fault = rf"{path.name}.*: (damaged|this is not YAML|must hold|recipe: Field)"
    with pytest.raises(UserError, match=fault) as caught:
        tables.local(tmp_path)
    assert "\n" not in str(caught.value)
