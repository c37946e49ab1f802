"""The figures: reproducible bytes, nothing cut off, every point at its value."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import tables
from hmerbench.benchmarks.report.figures import from_tables
from hmerbench.benchmarks.report.figures import results as plots
from hmerbench.benchmarks.report.figures import write as figures
from hmerbench.benchmarks.report.paper import reference
from hmerbench.benchmarks.report.presets import describe_preset
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoreboard.card import read_cards
from hmerbench.evaluation.scoring.metrics import BUCKETS, Bucket
from tests.helpers.made_up import put, put_config, put_environment, put_expressions, put_history, put_score
from tests.helpers.paths import MEDIUM, ROOT

RESULTS = ROOT / "results"
RUN = RESULTS / "reproduced/comer-fusion/hour-seed7"
COMMITTED = ("exprate-minutes", "exprate-nesting", "fig3-by-length", "language-curves")
COMMITTED += ("reliability", "risk-coverage", "scoreboard", "speed-growth", "table1-forest")


@pytest.fixture(autouse=True)
def style():
    with matplotlib.style.context(figures.STYLE, after_reset=True):
        yield


def put_run(results: Path, recipe: str = "bttr", preset: str = "paper", seed: int = 7, more: int = 0) -> Path:
    """A complete made-up run; `more` adds correct expressions to the shortest bucket."""
    folder = results / "reproduced" / recipe / f"{preset}-seed{seed}"
    put_config(folder, recipe=recipe, preset=preset, seed=seed, data={})
    put_environment(folder)
    put_history(folder, [{"seconds": 1.0} | ({"val_token_exprate": 31.5} if last else {}) for last in (0, 0, 0, 1)])
    for year, n in (("2014", 986), ("2019", 1199)):
        paper = reference()["fig3"]
        right = [k // 2 + more * (k == paper["n"][0]) for k in paper["n"]]
        length = [Bucket(b, k, r, None) for b, k, r in zip(BUCKETS, paper["n"], right, strict=True)]
        put_score(folder, year, n, sum(right), le1=sum(right) + 60, le2=sum(right) + 90, by_length=length)
        verdicts = [(bucket, j < r) for bucket, k, r in zip(BUCKETS, paper["n"], right, strict=True) for j in range(k)]
        verdicts += [("", False)] * (n - len(verdicts))
        wrong = iter([1] * 60 + [2] * 30 + [9] * n)
        counts = [0 if exact else next(wrong) for _, exact in verdicts]
        put_expressions(folder, year, counts, [bucket for bucket, _ in verdicts])
        errors = {
            "n": n,
            "symbols": [
                {"truth": "x", "prediction": "\\times", "count": 9, "aligned": 5, "expressions": 4},
                {"truth": "$", "prediction": "_", "count": 9, "aligned": 0, "expressions": 4},
            ],
            "relations": [{"truth": "Sub", "prediction": "_", "count": 70, "aligned": 0, "expressions": 60}],
            "structure": [{"structure": "line", "n": 20, "exact": 5}, {"structure": "root", "n": 0, "exact": 0}],
            "length": [asdict(row) for row in length],
        }
        put(folder / f"errors/{year}.json", json.dumps(errors))
    return folder


def put_growth(results: Path) -> None:
    lines = ["axis,value,plain,fast,unit,n"]
    for axis in from_tables.GROWTH:
        lines += [f"{axis},{x},{x * x / 100},{x / 20},s,3" for x in (10, 20, 40)]
    (results / "speed").mkdir()
    (results / "speed/growth.csv").write_text("\n".join(lines) + "\n")


def crowd(results: Path) -> None:
    for recipe in plots.LOOKS:
        for preset in ("paper", "gpu"):
            for seed in (7, 8):
                put_run(results, recipe, preset, seed, more=seed)


def points(figure: Figure, gid: str) -> tuple[list[float], list[float]]:
    """The points of the line with this gid."""
    (line,) = [line for axes in figure.axes for line in axes.lines if line.get_gid() == gid]
    return [float(x) for x in np.asarray(line.get_xdata())], [float(y) for y in np.asarray(line.get_ydata())]


def bars(figure: Figure, gid: str) -> list[float]:
    patches: list[Any] = [p for axes in figure.axes for p in axes.patches if p.get_gid() == gid]
    return [float(bar.get_width()) for bar in patches]


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    put_run(tmp_path)
    paths = [line for line in figures.figures(tmp_path) if isinstance(line, Path)]
    assert len(paths) == 15 and {path.suffix for path in paths} == {".pdf", ".svg", ".png"}
    before = {path: path.read_bytes() for path in paths}
    environment = os.environ | {"PYTHONHASHSEED": "5", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "hmerbench", "figures", "--results", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    assert {path: path.read_bytes() for path in paths} == before
    for path, content in before.items():
        assert not any(word in content for word in (b"CreationDate", b"ModDate", b"dc:date", b"tIME", b"/Type3"))
        if path.suffix == ".pdf":
            assert content.count(b"/FontFile2") == content.count(b"/Type /FontDescriptor") > 0
        if path.suffix == ".svg":
            assert b"<text" not in content


def test_the_committed_figures_are_what_make_figures_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("training", "taxonomy"):  # dozens that are not committed; a notebook draws them
        monkeypatch.setattr(plots, name, lambda *_: Figure())
    (tmp_path / "results").mkdir()
    read = ("nested", "confidence", "scoreboard", "language", "language_curves")
    for name in ("reproduced", "speed", *(f"{table}.csv" for table in read)):
        (tmp_path / "results" / name).symlink_to(RESULTS / name)
    drawn = dict(figures.draw(tmp_path / "results"))
    for name in COMMITTED:
        figure = drawn[name]
        assert isinstance(figure, Figure)
        same = figures.rendered(figure, "png") == (RESULTS / f"figures/{name}.png").read_bytes()
        assert same, f"{name}: run make figures"


def test_rates_by_length_match_paper_and_scores() -> None:
    figure = plots.by_length(figures.read_runs(RUN))
    assert points(figure, "comer-fusion, reported")[1] == [74.25, 52.26, 54.69, 35.71, 30.77, 20.0]
    assert points(figure, "comer-self, reported")[1] == reference()["fig3"]["rates"]["CoMER (Self)"]
    drawn = points(figure, "comer-fusion, preset hour")[1]
    score = json.loads((RUN / "scores/2014.json").read_text())
    assert [round(rate, 2) for rate in drawn] == [row["exprate"] for row in score["by_length"]]


def test_presets_with_a_single_row_are_left_out_of_fig_3(tmp_path: Path) -> None:
    put_run(tmp_path)
    assert len(plots.by_length(figures.read_runs(tmp_path)).axes) == 2  # there is nothing better to show
    for recipe in ("bttr", "comer-self"):
        put_run(tmp_path, recipe, preset="gpu")
    titles = [axis.get_title("left") for axis in plots.by_length(figures.read_runs(tmp_path)).axes]
    assert titles == ["reported", "preset gpu"]
    put_environment(tmp_path / "reproduced/bttr/gpu-seed7", versions={"torch": "2.11.0"})  # no version of the suite
    titles = [axis.get_title("left") for axis in plots.by_length(figures.read_runs(tmp_path)).axes]
    assert titles == ["reported", "preset gpu (in part external)"]


def test_the_legend_of_fig_3_shows_reported_rates_as_the_panels_do(tmp_path: Path) -> None:
    def entry() -> list[Any]:
        (legend,) = plots.by_length(figures.read_runs(tmp_path)).legends
        shown = zip(legend.get_texts(), legend.get_lines(), strict=True)
        return [line.get_linestyle() for text, line in shown if text.get_text() == "the same, reported"]

    put_run(tmp_path)
    assert entry() == []  # the paper has no rates by length of it
    put_run(tmp_path, "comer-self")
    assert entry() == [":"]
    put_run(tmp_path, "comer-cross")
    assert entry() == ["None"]


def test_rates_near_100_by_length_stay_within_their_panel(tmp_path: Path) -> None:
    put_run(tmp_path, more=190)  # 390 of 400
    figure = plots.by_length(figures.read_runs(tmp_path))
    drawn = [line for axis in figure.axes for line in axis.lines]
    assert max(np.asarray(line.get_ydata(), float).max() for line in drawn) > 97
    assert all(axis.get_ylim() == (0, 102) and max(axis.get_yticks()) == 100 for axis in figure.axes)


def test_the_reported_lengths_add_up_to_table_1() -> None:
    """Counts from the rates by length sum up to Table 1's, but for the row with the misprint."""
    table = {row["model"]: row["exprate"] for row in reference()["table1"]}
    paper = reference()["fig3"]
    assert sum(paper["n"]) == crohme().n("2014")
    for model, rates in paper["rates"].items():
        count = sum(round(rate * n / 100) for rate, n in zip(rates, paper["n"], strict=True))
        assert count - round(table[model] * 9.86) == (4 if model == "BTTR (baseline)" else 0)


def test_the_forest_shows_rates_intervals_and_seeds(tmp_path: Path) -> None:
    score = json.loads((RUN / "scores/2014.json").read_text())
    figure = plots.forest(figures.read_runs(RUN))
    (row,) = (row for row in tables.committed(RESULTS)["table1"].to_dict("records") if row["preset"] == "hour")
    for key, rate in (("exact", "exprate"), ("le1", "exprate_le1"), ("le2", "exprate_le2")):
        (x,), (y,) = points(figure, f"CoMER (Fusion), hour, {key}")
        assert round(x, 2) == score[rate]
        if key == "exact":
            spans = [line.get_xdata() for line in figure.axes[0].lines if list(np.asarray(line.get_ydata())) == [y, y]]
            assert np.asarray(spans[0]).tolist() == [row["ci_low"], row["ci_high"]]
    assert points(figure, "CoMER (Fusion), reported, le2")[0] == [75.66]
    assert points(figure, "BTTR (reported), reported, le1")[0] == [66.02]
    with pytest.raises(ValueError):  # Table 2 does not report this row
        points(figure, "BTTR, reported, le1")
    for seed in (7, 8, 9):
        put_run(tmp_path, seed=seed, more=seed)
    axes = plots.forest(figures.read_runs(tmp_path / "reproduced")).axes[0]
    seeds = [np.asarray(line.get_xdata()).tolist() for line in axes.lines if line.get_marker() == "|"]
    assert len(seeds) == 3 and np.round(np.diff(seeds[0]), 4).tolist() == [round(100 / 986, 4)] * 2


def test_rows_that_the_paper_does_not_have_are_named_and_told_apart(tmp_path: Path) -> None:
    for recipe in ("comer-fusion", "mine", "other"):
        put_run(tmp_path, recipe)
    runs = figures.read_runs(tmp_path / "reproduced")
    labels = [text.get_text() for text in plots.forest(runs).axes[0].get_yticklabels()]
    assert labels[-4:] == ["CoMER (Fusion)", "paper, 1 seed", "mine: paper, 1 seed", "other: paper, 1 seed"]
    looks = plots.looks_of(run.recipe for run in runs)
    assert looks["mine"] != looks["other"]
    (legend,) = plots.minutes(runs).legends
    markers = [handle.get_marker() for handle in legend.legend_handles]  # pyright: ignore
    assert len(set(markers)) == 3


def test_runs_without_a_history_have_no_curves(tmp_path: Path) -> None:
    (put_run(tmp_path) / "history.jsonl").unlink()
    assert dict(figures.draw(tmp_path))["training-paper"] == "no history.jsonl"


@pytest.mark.parametrize(
    ("began", "resumed", "threads", "hardware"),
    [
        (8, [], 8, "EPYC"),
        (8, [8, 8], 8, "EPYC"),
        (8, [1], 0, "EPYC"),
        ("GPU", [], 0, "H200"),
        ("GPU", [8], 0, "H200, then EPYC"),
        (8, ["GPU", 8], 0, "EPYC, then H200"),
    ],
)
def test_core_minutes_need_one_number_of_threads_and_no_gpu(
    tmp_path: Path, began, resumed, threads: int, hardware: str
) -> None:
    there = {"device": "H200", "threads": 8, "gpu": True}
    first, *rest = (there if n == "GPU" else {"device": "EPYC", "threads": n, "gpu": False} for n in (began, *resumed))
    put_environment(put_run(tmp_path), **first, resumed=rest)
    (run,) = figures.read_runs(tmp_path / "reproduced")
    assert run.core_minutes == pytest.approx(threads * run.seconds[-1] / 60) and run.hardware == hardware
    assert ("exprate-minutes" in dict(figures.draw(tmp_path))) == bool(threads)


def test_networks_trained_in_other_runs_have_no_core_minutes(tmp_path: Path) -> None:
    put_run(tmp_path)
    (run,) = figures.read_runs(tmp_path / "reproduced")
    assert run.core_minutes > 0 and describe_preset(run.settings, [run])["read at"] == "1"
    assert describe_preset(run.settings, [run, run])["seeds"] == "1"  # two trainings of one seed
    run.settings = run.settings.changed({"search.together.runs": ["other"], "search.scales": [1.0, 1.2]})
    described = describe_preset(run.settings, [run])
    assert run.core_minutes == 0 and described["core-minutes"] == ""
    assert described["read at"] == "1, 1.2 by 2 networks"


def test_training_matches_the_history() -> None:
    history = [json.loads(line) for line in (RUN / "history.jsonl").read_text().splitlines()]
    figure = plots.training(figures.read_runs(RUN), "hour")
    assert len(figure.axes) == 3  # token match was not measured
    for key in ("loss", "lr", "images_per_s"):
        epochs, values = points(figure, f"comer-fusion, seed 7, {key}")
        assert (epochs, values) == ([line["epoch"] for line in history], [line[key] for line in history])


def test_minutes_match_the_history(tmp_path: Path) -> None:
    for seed in (7, 8):
        put_run(tmp_path, seed=seed, more=seed)
    put_run(tmp_path, preset="gpu")
    figure = plots.minutes(figures.read_runs(tmp_path / "reproduced"))
    n, exact = 986, [json.loads(path.read_text())["exact"] for path in sorted(tmp_path.rglob("scores/2014.json"))]
    (x,), (y,) = points(figure, "bttr, paper")
    assert (x, y) == pytest.approx((4 / 60, 100 * (exact[1] + exact[2]) / 2 / n))
    assert points(figure, "bttr, paper, seeds")[1] == pytest.approx([100 * k / n for k in exact[1:]])
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["gpu", "paper"]
    (x,), (y,) = points(plots.minutes(figures.read_runs(RUN)), "comer-fusion, hour")
    assert x == pytest.approx(2 * RunFolder(RUN).seconds[-1] / 60) and round(y, 2) == 39.15  # on two threads


def test_errors_are_drawn_for_the_first_seed_of_a_row(tmp_path: Path) -> None:
    for seed in (8, 7):
        put_run(tmp_path, seed=seed)
    put_run(tmp_path, preset="gpu", seed=8)
    other = put_run(tmp_path, preset="gpu", seed=9)
    drawn = {name for name, _ in figures.draw(tmp_path) if name.startswith("errors")}
    assert drawn == {"errors-bttr-paper-seed7", "errors-bttr-gpu-seed8"}
    put_config(other, data={"scale": 0.5})
    drawn = {re.sub(r"gpu-\w{8}", "gpu-DIGEST", name) for name, _ in figures.draw(tmp_path)}
    assert drawn >= {"errors-bttr-gpu-DIGEST-seed8", "errors-bttr-gpu-DIGEST-seed9", "training-gpu-DIGEST"}


def test_a_run_with_the_weights_of_another_is_not_drawn(tmp_path: Path) -> None:
    put_run(tmp_path)
    other = put_run(tmp_path, preset="gpu")
    (other / "environment.json").write_text(json.dumps(RunFolder(other).environment | {"trained_in": "paper-seed7"}))
    drawn = {name: figure for name, figure in figures.draw(tmp_path) if not isinstance(figure, str)}
    assert drawn.keys() >= {"training-paper", "errors-bttr-paper-seed7"}
    assert not {"training-gpu", "errors-bttr-gpu-seed7"} & drawn.keys()
    assert [text.get_text() for text in drawn["exprate-minutes"].axes[0].texts] == ["paper"]


def test_errors_match_the_tables(tmp_path: Path) -> None:
    put_run(tmp_path)
    (run,) = figures.read_runs(tmp_path / "reproduced")
    assert plots.confusions(run) == [("x → \\times", 10)]  # over two sets; aligned only
    figure = plots.taxonomy(run)
    assert bars(figure, "confusions") == [10]
    assert bars(figure, "missed") == pytest.approx([0, 0, 100 * 120 / (986 + 1199), 0, 0, 0])
    assert bars(figure, "invented") == [0] * 6
    assert points(figure, "structure, 2014, line")[0] == [25.0]
    assert points(figure, "length, 2019, 50+")[0] == [48.0]
    with pytest.raises(ValueError):  # no rate without expressions
        points(figure, "structure, 2014, root")


def test_committed_tables_of_errors_agree_with_the_scores() -> None:
    for year in ("2014", "2016", "2019"):
        errors, score = (json.loads((MEDIUM / kind / f"{year}.json").read_text()) for kind in ("errors", "scores"))
        assert sum(row["exact"] for row in errors["length"]) == score["exact"] and errors["n"] == score["n"]
        assert all(row["expressions"] > 1 or row["aligned"] for row in errors["symbols"])


def test_growth_matches_the_measurements(tmp_path: Path) -> None:
    put_growth(tmp_path)
    (figure,) = [drawn for name, drawn in figures.draw(tmp_path) if name == "speed-growth"]
    assert isinstance(figure, Figure)
    assert points(figure, "beam_width, plain") == ([10, 20, 40], [1, 4, 16])
    assert points(figure, "image_area, fast") == ([10, 20, 40], [0.5, 1, 2])
    legend = figure.axes[0].get_legend()
    assert legend and [text.get_text() for text in legend.get_texts()] == ["plain, slope 2.0", "fast, slope 1.0"]


def test_figures_without_data_are_reported_not_drawn(tmp_path: Path) -> None:
    lines = list(figures.figures(tmp_path))
    drawn = [line.name for line in lines if isinstance(line, Path) and line.suffix == ".svg"]
    assert drawn == ["fig3-by-length.svg", "table1-forest.svg"]
    said = [line for line in lines if isinstance(line, str)]
    assert all("not drawn, there is no" in line for line in said)
    first, *others = (line.split(":")[0] for line in said)
    told = ["speed-growth", "exprate-nesting", "reliability", "risk-coverage", "scoreboard", "language-curves"]
    assert (first, others) == ("training, errors", told)
    axes = plots.by_length([]).axes
    assert [axis.get_title(loc="left") for axis in axes] == ["reported"]


def test_a_table_without_what_a_figure_shows_costs_that_figure_alone(tmp_path: Path) -> None:
    """As where `nested` found runs of `small` alone, `calibrate` had no --check, and no language model is packed."""
    (tmp_path / "nested.csv").write_text("recipe,preset,depth 0 (9)\ncomer-fusion,small,50.0 (40.0–60.0)\n")
    (tmp_path / "confidence.csv").write_text("network,set,read,right,per_token,confidence\na,heldout,1,1,0.5,0.5\n")
    (tmp_path / "language.csv").write_text("model,recipe,reported,reproduced\nSmall,lm-char-small,92.3,\n")
    (tmp_path / "language_curves.csv").write_text("recipe,seed,epoch,validation\n")
    drawn = dict(figures.draw(tmp_path))
    assert drawn["exprate-nesting"] == f"{tmp_path}/nested.csv has no rows of large and medium"
    assert "calibrate --check RUN" in str(drawn["reliability"]) and drawn["reliability"] == drawn["risk-coverage"]
    assert str(drawn["language-curves"]).startswith(f"{tmp_path}/language_curves.csv has no runs")


def test_the_legend_of_nesting_is_where_lines_are(tmp_path: Path) -> None:
    text = (RESULTS / "nested.csv").read_text().splitlines(keepends=True)
    (tmp_path / "nested.csv").write_text("".join(line for line in text if ",medium" not in line))
    large, medium = from_tables.by_depth(tmp_path / "nested.csv").axes
    assert large.get_legend() and not medium.get_legend()


@pytest.mark.parametrize("fill", [put_run, crowd], ids=["one run", "all rows twice"])
def test_nothing_is_cut_off_or_too_small(tmp_path: Path, fill: Any) -> None:
    fill(tmp_path)
    put_growth(tmp_path)
    for name, figure in figures.draw(tmp_path):
        if isinstance(figure, str) or name.endswith("seed8"):
            continue
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert figure.get_figwidth() == plots.WIDTH and figure.get_figheight() < 8
        assert box.x0 > -0.01 and box.y0 > -0.01, f"{name}: {box}"
        assert box.x1 < figure.get_figwidth() + 0.01 and box.y1 < figure.get_figheight() + 0.01, f"{name}: {box}"
        for text in figure.findobj(Text):
            assert isinstance(text, Text) and float(text.get_fontsize()) >= 6


def test_the_scoreboard_has_every_system_at_its_rate() -> None:
    figure = from_tables.scoreboard(RESULTS / "scoreboard.csv")
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert sorted(names) == sorted(system.card.name for system in read_cards() if system.card.files)
    cards = {system.key: system.card for system in read_cards()}
    right, years = dict[str, list[float]](), crohme().tests
    for row in read_table(RESULTS / "scoreboard.csv"):
        if row["year"] in years and (row["reading"], row["edition"]) == ("pandoc-1.19", "crohme2019"):  # the paper's
            right.setdefault(row["system"], []).append(int(row["exact"]) / int(row["n"]))
    kinds = list(from_tables.KINDS)
    whole = [key for key, rates in right.items() if len(rates) == len(years)]
    best = sorted(whole, key=lambda key: (kinds.index(cards[key].training), -sum(right[key])))
    assert [name for name in names if name in {cards[key].name for key in whole}] == [cards[key].name for key in best]
    drawn = [np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines]
    for points in ([100 * 585 / 986], [55.31, 63.23], [59.33]):  # the released CoMER: rate, interval, reported
        assert points in drawn


def test_a_system_with_fewer_sets_stands_after_those_with_all(tmp_path: Path) -> None:
    text = (RESULTS / "scoreboard.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "scoreboard.csv").write_text("".join(line for line in text if not line.startswith("unimumer,2014,")))
    figure = from_tables.scoreboard(tmp_path / "scoreboard.csv")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    cards = {system.key: system.card for system in read_cards()}
    name, kind, files = (getattr(cards["unimumer"], key) for key in ("name", "training", "files"))
    same = [card.name for card in cards.values() if card.training == kind and card.files.keys() == files.keys()]
    assert name == max(same, key=names.index) and len(same) > 1


def test_a_system_without_a_card_is_named(tmp_path: Path) -> None:
    text = (RESULTS / "scoreboard.csv").read_text(encoding="utf-8")
    (tmp_path / "scoreboard.csv").write_text(text.replace("unimumer", "renamed"), encoding="utf-8")
    with pytest.raises(UserError, match=r"scoreboard.csv: there is no card renamed; run make scoreboard$"):
        from_tables.scoreboard(tmp_path / "scoreboard.csv")


@pytest.mark.parametrize("content", ["recipe,recipe\n1,2\n", "recipe\nsmall\n", 'recipe,system\n"1,2\n', ""])
@pytest.mark.parametrize("name", ["speed/growth.csv", "nested.csv", "scoreboard.csv", "language.csv"])
def test_a_damaged_table_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "speed").mkdir()
    (tmp_path / "language_curves.csv").write_text("recipe,seed,epoch,validation\nsmall,7,1,200\n")
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=rf"{name}: damaged.*; restore it") as caught:
        list(figures.draw(tmp_path))
    assert "\n" not in str(caught.value)


def test_curves_of_language_models_are_those_of_the_tables(tmp_path: Path) -> None:
    """A line for every seed; recipes that the paper does not have, such as a port's mistakes, are left out."""
    curves = "recipe,seed,epoch,validation\nsmall,7,1,200\nsmall,7,2,100\nsmall,8,1,190\nsmall,8,2,99\nport,7,1,300\n"
    (tmp_path / "language_curves.csv").write_text(curves)
    table = "model,recipe,reported,reproduced\nSmall,small,92.3,93.5\nLarge,large,78.9,\n"
    (tmp_path / "language.csv").write_text(table)
    figure = dict(figures.draw(tmp_path))["language-curves"]
    assert isinstance(figure, Figure)
    assert points(figure, "small, seed 7") == ([1, 2], [200, 100])
    assert points(figure, "small, seed 8") == ([1, 2], [190, 99])
    assert points(figure, "small, test") == ([2], [93.5])
    assert points(figure, "small, reported")[1] == [92.3, 92.3]
    assert len(figure.axes[0].lines) == 4
