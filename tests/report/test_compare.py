"""The comparison of rows over seeds and writers, on made-up runs with known rates."""

import json
import os
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.compare import CLAIM, Comparison, as_text, compare, what_a_difference_means
from hmerbench.benchmarks.report.paper import ORDER
from hmerbench.benchmarks.report.scored_runs import Step, correct
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring import stats
from tests.helpers.made_up import put_environment, put_expressions, put_score


def make_run(
    root: Path,
    recipe: str,
    seed: int,
    rate: float,
    n: int = 400,
    preset: str = "small",
    split: str = "2014",
    spread: float = 0.0,
) -> Path:
    """A scored run with `rate` of n expressions right, give or take the spread of runs; easier ones more often, as in
    real networks."""
    rate += np.random.default_rng((seed, *f"{preset}{split}{recipe}".encode())).normal(0, spread)
    folder = root / recipe / f"{preset}-seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(resolve(recipe, preset, seed).to_yaml())
    hard = np.linspace(-1, 1, n) + np.random.default_rng((seed, *recipe.encode())).normal(0, 0.25, n)
    wrong = hard > np.quantile(hard, rate)
    put_expressions(folder, split, map(int, wrong))
    search = resolve(recipe, preset, seed).search.name
    signature = f"ExpRate|set:crohme{split}|n:{n}|metric:symlg|search:{search}|select:last|v:2"
    put_score(folder, split, n, n - int(wrong.sum()), signature=signature)
    return folder


def compare_rows(root: Path, rates: dict[str, float], seeds: Sequence[int], spread: float = 0.004) -> Comparison:
    for recipe, seed in product(rates, seeds):
        make_run(root / "runs", recipe, seed, rates[recipe], spread=spread)
    (comparison,) = compare([], root, "2014")
    return comparison


def test_of_a_thousand_runs_only_verdicts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rows of expressions took a minute and 1.6 GB."""

    def whole(*_: object) -> None:
        raise AssertionError("read whole")

    monkeypatch.setattr(RunFolder, "expressions", whole)
    found = compare_rows(tmp_path, dict.fromkeys(ORDER, 0.5), [7])
    assert len(found.rows) == 5


def test_your_own_run_counts_rather_than_the_committed_one_of_its_seed(tmp_path: Path) -> None:
    for folder, rate in (("reproduced", 0.3), ("runs", 0.5)):
        make_run(tmp_path / folder, "bttr", 7, rate)
    make_run(tmp_path / "reproduced", "comer-fusion", 7, 0.6)
    (comparison,) = compare([], tmp_path, "2014")
    found = {row.recipe: (row.mean, row.seeds) for row in comparison.rows}
    assert found == {"bttr": (50.0, "7"), "comer-fusion": (60.0, "7")}


def test_an_ordering_that_holds(tmp_path: Path) -> None:
    found = compare_rows(tmp_path, dict(zip(ORDER, (0.3, 0.4, 0.5, 0.6, 0.7), strict=True)), range(5))
    assert found.verdict == "holds" and as_text(found).endswith("\nThe paper's order: holds\n")
    assert as_text(found).count("<0.001  significant") == len(found.every_step) == 5
    names = ["BTTR", "BTTR (baseline)", "CoMER (Self)", "CoMER (Cross)", "CoMER (Fusion)"]
    assert [row.model for row in found.rows] == names
    assert [(step.lower, step.upper) for step in found.steps] == list(pairwise(ORDER))
    for step in found.steps:
        assert step.verdict == "significant" and 0 < step.low < step.difference < step.high
        assert step.tested and step.p_alone <= step.p < 0.05
    assert found.claim and (found.claim.lower, found.claim.upper) == CLAIM
    assert found.claim.p == found.claim.p_alone and found.claim.difference == pytest.approx(30, abs=2)


@pytest.mark.parametrize(
    ("rates", "seeds", "says"),
    [
        ({"bttr": 0.227, "comer-fusion": 0.173}, [7], "over images; 1 seed in common: no order)"),
        ({"bttr": 0.227, "comer-fusion": 0.173}, [7, 8], "over seeds and images; corrected p"),
        ({"bttr": 0.2, "comer-fusion": 0.5}, [7, 8, 9], "over seeds and images; corrected p<0.001"),
        ({"bttr": 0.227}, [7], "An interval of one seed leaves out how much trainings differ"),
    ],
)
def test_the_words_after_a_job_say_what_its_differences_mean(tmp_path: Path, rates, seeds, says: str) -> None:
    runs = [RunFolder(make_run(tmp_path, *row, rates[row[0]], 300)) for row in product(rates, seeds)]
    words = what_a_difference_means(runs, tmp_path)
    assert says in words and f"hmerbench compare {tmp_path} tests the rows" in words
    if len(rates) > 1 and len(seeds) == 1:
        (step,) = compare([tmp_path], tmp_path, every_pair=True)[0].steps
        assert f"{step.difference:+.1f} points (95 %: {step.low:+.1f} to {step.high:+.1f} over" in words


def test_an_ordering_that_does_not_hold(tmp_path: Path) -> None:
    found = compare_rows(tmp_path, dict(zip(ORDER, (0.3, 0.4, 0.5, 0.7, 0.6), strict=True)), range(5))
    assert found.verdict == "does not hold"
    assert [step.name for step in found.steps if step.verdict == "opposite"] == ["CoMER (Cross) → CoMER (Fusion)"]


def test_data_that_cannot_tell(tmp_path: Path) -> None:
    """The paper's own differences with three seeds and a realistic spread: whatever their order, nothing is claimed."""
    rates = dict(zip(ORDER, (0.5345, 0.5517, 0.5751, 0.5811, 0.5933), strict=True))
    found = compare_rows(tmp_path, rates, range(3), spread=0.01)
    assert found.verdict == "cannot tell"
    assert [f"{step.reported:.2f}" for step in found.steps] == ["1.72", "2.34", "0.60", "1.22"]
    assert any(step.verdict == "not significant" for step in found.steps)


@pytest.mark.parametrize(
    ("p", "difference", "verdict"),
    [(0.049, 1.0, "significant"), (0.051, 1.0, "not significant"), (0.049, -1.0, "opposite")],
)
def test_a_difference_is_significant_below_5_percent(p: float, difference: float, verdict: str) -> None:
    step = Step("bttr", "comer-self", difference, -2, 2, "seeds and images", images=400, seeds=3, p_alone=p)
    correct([step])
    assert (step.p, step.verdict) == (p, verdict)


def test_equal_rates_are_never_an_ordering(tmp_path: Path) -> None:
    """Five families of rows that do not differ: none is claimed to."""
    for family in range(5):
        seeds = range(10 * family, 10 * family + 4)
        found = compare_rows(tmp_path / str(family), dict.fromkeys(ORDER, 0.5), seeds, spread=0.02)
        assert found.verdict == "cannot tell"


def test_too_few_seeds_are_reported(tmp_path: Path) -> None:
    found = compare_rows(tmp_path, {"bttr": 0.3, "comer-fusion": 0.7}, [7])
    (step,) = found.steps
    assert found.verdict == "cannot tell" and step.verdict == "too few seeds"
    assert not step.tested and step.p_alone == step.p < 1e-6
    assert step.low < 40 < step.high and step.over == found.rows[0].over == "images"  # the ids name no writers
    assert found.rows[0].sd is None and found.rows[0].low < 30 < found.rows[0].high
    assert "cannot tell; there is no run of BTTR (baseline), CoMER (Self), CoMER (Cross)\n" in as_text(found)


def test_a_set_of_one_expression_says_nothing(tmp_path: Path) -> None:
    for recipe, rate in (("bttr", 0.0), ("bttr-baseline", 1.0)):
        make_run(tmp_path / "runs", recipe, 7, rate, n=1)
    (found,) = compare([], tmp_path, "2014")
    assert (found.steps[0].low, found.steps[0].high, found.steps[0].p) == (-100, 100, 1)


def test_a_single_row_and_missing_rows(tmp_path: Path) -> None:
    alone = compare_rows(tmp_path / "a", {"comer-fusion": 0.5}, [7])
    assert alone.verdict == "cannot tell" and not alone.steps
    own = compare_rows(tmp_path / "own", {"comer-fusion": 0.5, "densewap": 0.7}, [7])
    (step,) = own.steps  # rows that the paper does not order are compared all the same
    assert (step.lower, step.upper) == ("comer-fusion", "densewap") and step.difference == pytest.approx(20, abs=3)
    gaps = compare_rows(tmp_path / "b", {"bttr": 0.3, "comer-fusion": 0.7}, range(4))
    assert gaps.steps[0].verdict == "significant"
    assert gaps.verdict == "cannot tell" and gaps.missing[0] == "BTTR (baseline)"


def test_years_are_pooled(tmp_path: Path) -> None:
    """One set of 300 images cannot show a difference of two points, three such sets can."""
    rates = {"bttr": 0.5, "comer-fusion": 0.52}
    for seed, recipe, split in product(range(4), rates, ("2014", "2016", "2019")):
        make_run(tmp_path / "runs", recipe, seed, rates[recipe], 300, split=split, spread=0.002)
    (pooled,) = compare([], tmp_path, "all")
    assert "crohme2014 + crohme2016 + crohme2019 (900 expressions)" in pooled.conditions
    every = compare([], tmp_path)
    sets = [f"crohme{year}" for year in ("2014", "2016", "2019", "2014")]
    assert [one.conditions.partition(" ")[0] for one in every] == sets and every[-1] == pooled
    alone = [one.steps[0].p for one in every[:3]]
    assert pooled.steps[0].p < min(alone)
    assert pooled.steps[0].difference == pytest.approx(np.mean([one.steps[0].difference for one in every[:3]]))
    widths = [one.steps[0].high - one.steps[0].low for one in (pooled, every[0])]
    assert widths[0] < widths[1]


def test_runs_on_different_sets_are_pooled_separately(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "bttr", 7, 0.3)
    make_run(tmp_path / "runs", "comer-self", 7, 0.3)
    make_run(tmp_path / "runs", "comer-self", 7, 0.3, split="2016")
    assert [len(one.rows) for one in compare([], tmp_path, "all")] == [1, 1]


def test_only_runs_with_equal_conditions_are_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "bttr", 7, 0.3)
    make_run(tmp_path / "runs", "comer-self", 7, 0.3, preset="smoke")
    make_run(tmp_path / "runs", "comer-self", 8, 0.3, n=300)
    other = make_run(tmp_path / "runs", "comer-self", 9, 0.3)
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("epochs: 9", "epochs: 5"))
    found = compare([], tmp_path, "2014")
    assert [len(one.rows) for one in found] == [1, 1, 1, 1]
    presets = {one.conditions.partition("preset ")[2].partition(",")[0] for one in found}
    assert len(presets) == 3 and "smoke" in presets  # two settings called small, told apart by a digest


def test_scores_of_different_scorers_are_never_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "bttr", 7, 0.3)
    path = make_run(tmp_path / "runs", "comer-self", 7, 0.4) / "scores/2014.json"
    path.write_text(path.read_text().replace("metric:symlg", "metric:symlg|conv:1.5"))
    found = compare([], tmp_path, "2014")
    assert [len(one.rows) for one in found] == [1, 1] and "conv 1.5" in found[0].conditions


def test_a_seed_whose_predictions_had_dollars_is_one_of_its_row(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "bttr", 7, 0.3)
    path = make_run(tmp_path / "runs", "bttr", 8, 0.4) / "scores/2014.json"
    path.write_text(path.read_text().replace("|select:", "|tok:split|wrap:removed|select:"))
    (found,) = compare([], tmp_path, "2014")
    assert [row.seeds for row in found.rows] == ["7 8"] and "wrap" not in found.conditions


def test_presets_of_their_own_weights_share_one_correction(tmp_path: Path) -> None:
    """Steps of all presets are one family; a preset that reads with another's weights adds none, nor do steps of one
    seed, which have no verdict."""
    rates = {"bttr": 0.3, "comer-self": 0.32}
    for seed, preset, recipe in product(range(3), ("small", "medium", "gpu"), rates):
        folder = make_run(tmp_path / "runs", recipe, seed, rates[recipe], preset=preset, spread=0.004)
        if preset == "gpu":
            put_environment(folder, threads=1, trained_in="medium-seed7-12345678")
    for recipe in rates:
        make_run(tmp_path / "runs", recipe, 7, 0.3, preset="large")
    found = {each.preset: each.steps[0] for each in compare([], tmp_path, "2014")}
    assert found["gpu"].p == found["gpu"].p_alone and found["large"].p == found["large"].p_alone
    both = [found["small"], found["medium"]]
    assert [step.p for step in both] == pytest.approx(stats.holm([step.p_alone for step in both]))
    assert min(step.p for step in both) == pytest.approx(2 * min(step.p_alone for step in both))


def test_rows_of_other_seeds_are_compared_by_those_in_common(tmp_path: Path) -> None:
    for recipe, seeds in (("bttr", (1, 2, 3)), ("comer-self", (2, 3, 4)), ("comer-cross", (5, 6))):
        for seed in seeds:
            make_run(tmp_path / "runs", recipe, seed, 0.3 + 0.1 * (recipe != "bttr") + 0.01 * (seed == 4))
    (found,) = compare([], tmp_path, "2014")
    first, second = found.steps
    assert (first.seeds, first.over, first.verdict) == (2, "seeds and images", "significant")
    assert first.difference == pytest.approx(10)  # without seed 4
    assert (second.seeds, second.over, second.verdict) == (0, "images", "too few seeds")
    assert second.difference == pytest.approx(100 * (0.4 - (0.4 + 0.4 + 0.41) / 3), abs=0.01)


def test_one_writer_or_all_right_is_told(tmp_path: Path) -> None:
    """Ids of a single writer leave images to sample from; where nothing varies, too."""
    for seed in (1, 2):
        for recipe, rate in (("bttr", 0.5), ("comer-self", 1.0)):
            make_run(tmp_path / "runs", recipe, seed, rate - 0.01 * (seed == 2 and rate < 1))
    (found,) = compare([], tmp_path, "2014")
    low, high = (row for row in found.rows)
    text = as_text(found)
    few = "the ids name fewer than 10 writers or nearly one per image"
    assert f"over images: {few}, or nothing differs between writers and seeds\n" in text
    assert f"over seeds and images: {few}\n" in text and "over writers" not in text
    assert (low.over, high.over) == ("seeds and images", "images") and high.mean == high.high == 100 and high.low > 98
    assert found.steps[0].over == "seeds and images" and found.steps[0].low > 30


@pytest.mark.parametrize("seeds", [(7,), (7, 8)])
def test_rows_that_read_all_are_not_known_to_be_equal(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """The difference has a width, that of so many images alike."""
    for recipe, seed in product(("bttr", "comer-self"), seeds):
        make_run(tmp_path / "runs", recipe, seed, 1.0)
    (found,) = compare([], tmp_path, "2014")
    (step,) = found.steps
    assert step.verdict == ("too few seeds" if len(seeds) == 1 else "not significant")
    assert (step.difference, step.p, step.over) == (0, 1, "images")
    assert step.high == -step.low == pytest.approx(0.95, abs=0.01)


def test_the_last_scored_run_of_a_seed_counts(tmp_path: Path) -> None:
    """As in the tables, whatever its name."""
    make_run(tmp_path / "runs/a", "bttr", 7, 0.3)
    old = make_run(tmp_path / "runs/b", "bttr", 7, 0.5)
    os.utime(old / "scores/2014.json", (1, 1))
    (found,) = compare([], tmp_path, "2014")
    assert [(row.mean, row.seeds) for row in found.rows] == [(30.0, "7")]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        make_run(tmp_path / "some", "bttr", seed, 0.4 + 0.01 * seed)
        make_run(tmp_path / "more", "comer-self", seed, 0.6 + 0.01 * seed)
    where = [str(tmp_path / "some"), str(tmp_path / "more/comer-self")]
    cli.app(["compare", *where], standalone_mode=False)
    output = capsys.readouterr().out
    assert "BTTR → CoMER (Self) +20.00" in output and "± 1.00" in output and "there is no run of" in output
    cli.app(["compare", *where, "--json"], standalone_mode=False)
    (parsed,) = json.loads(capsys.readouterr().out)
    assert [row["mean"] for row in parsed["rows"]] == pytest.approx([41, 61]) and len(parsed["steps"]) == 1
    assert parsed["verdict"] == "cannot tell" and parsed["steps"][0]["difference"] == pytest.approx(20)


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run scored on 2014"):
        compare([tmp_path], tmp_path, "2014")
    with pytest.raises(UserError, match="nowhere: there is no such folder; `hmerbench ls` lists"):
        compare([tmp_path / "nowhere"], tmp_path)
    folder = make_run(tmp_path / "runs", "bttr", 7, 0.3)
    for name, text in (("2014.csv", "id,errors\ne1,many\n"), ("2014.csv", ""), ("2014.json", "{")):
        kept = (folder / "scores" / name).read_text()
        (folder / "scores" / name).write_text(text)
        with pytest.raises(UserError, match=rf"{name}: damaged"):
            compare([], tmp_path, "2014")
        (folder / "scores" / name).write_text(kept)
    (folder / "scores/2014.csv").unlink()
    with pytest.raises(UserError, match=r"2014\.csv: missing"):
        compare([], tmp_path, "2014")


def test_rows_of_other_expressions_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "bttr", 7, 0.3)
    other = make_run(tmp_path / "runs", "comer-self", 7, 0.3) / "scores/2014.csv"
    other.write_text(other.read_text().replace("e399,", "f399,"))
    with pytest.raises(UserError, match=r"bttr/small-seed7 and .*comer-self/small-seed7: scored on different express"):
        compare([], tmp_path, "2014")


def test_an_invalid_signature_is_reported_with_its_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "bttr", 7, 0.5)
    path = folder / "scores/2014.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signature": "nonsense"}))
    with pytest.raises(UserError, match=r"scores/2014\.json: 'nonsense': this is not .*; score the run again"):
        compare([tmp_path], tmp_path)


def test_pairs_of_other_networks_are_tested_as_their_own_family(tmp_path: Path) -> None:
    rates = {"densewap": 0.3, "densewap-td": 0.4, "bttr-uni": 0.4, "comer-fusion": 0.6, "bttr-baseline": 0.5}
    found = compare_rows(tmp_path, rates, [7])
    names = ["DenseWAP → DenseWAP-TD", "DenseWAP → CoMER (Fusion)"]  # there is no run of bttr-original
    assert [step.name for step in found.pairs] == names
    assert [step.difference for step in found.pairs] == pytest.approx([10, 30], abs=2)
    # one of two: Holm doubles the smaller p-value of the pairs, whatever the steps of the paper's order are
    assert found.pairs[1].p == pytest.approx(2 * found.pairs[1].p_alone) and len(found.steps) == 1
    assert "  DenseWAP → DenseWAP-TD " in as_text(found) and found.pairs[0] in found.every_step
    (every,) = compare([], tmp_path, "2014", every_pair=True)
    assert not every.pairs and len(every.steps) == 10
