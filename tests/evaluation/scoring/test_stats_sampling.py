"""Intervals over writers and seeds: they hold the truth as often as they say where it is known, and others do not."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats as reference

from hmerbench.evaluation.scoring import stats
from hmerbench.evaluation.scoring.metrics import proportion_interval
from hmerbench.evaluation.scoring.stats import Images, Spread, difference, rate, spread_between_runs
from tests.helpers.paths import ROOT

LEVELS = (0.0, 0.05, 0.1, 0.1, 0.2)  # of five rows
# Standard deviations of what decides whether an image is read: on the scale on which its own difficulty has about 1.
WORLDS = {
    "as measured": {"writer": 0.5, "seed": 0.03, "run": 0.03, "taste": 0.15},
    "unlike seeds": {"writer": 0.5, "seed": 0.08, "run": 0.05, "taste": 0.15},
    "unlike writers": {"writer": 0.5, "seed": 0.03, "run": 0.02, "taste": 0.3},
    "no writers": {"writer": 0.0, "seed": 0.03, "run": 0.03, "taste": 0.0},
}
WRITERS, SHEET = 80, 15


@cache
def coverage(world: str, seeds: int, worlds: int = 1000) -> dict[str, float]:
    """How often each 95 % interval holds the truth: that of all writers and all seeds."""
    size, rng = WORLDS[world], np.random.default_rng((seeds, *world.encode()))
    levels, n, rows = np.array(LEVELS), WRITERS * SHEET, len(LEVELS)
    images = Images([f"w{k // SHEET}_{k}" for k in range(n)])
    truth = 100 * reference.norm.cdf(levels / np.sqrt(1 + 0.6**2 + sum(sd**2 for sd in size.values())))
    step, held = truth[-1] - truth[0], dict[str, list[bool]]()
    extremes = np.empty((2, worlds, seeds))  # the rates of the last row and of the first

    def note(name: str, interval: tuple[float, float], value: float) -> None:
        held.setdefault(name, []).append(interval[0] <= value <= interval[1])

    for world_rates in np.moveaxis(extremes, 1, 0):
        writers = rng.normal(0, size["writer"], WRITERS) + rng.normal(0, size["taste"], (rows, 1, WRITERS))
        of_image = np.repeat(writers, SHEET, axis=2) + rng.normal(0, 1, n)
        of_run = rng.normal(0, size["seed"], (1, seeds, 1)) + rng.normal(0, size["run"], (rows, seeds, 1))
        right = levels[:, None, None] + of_image + of_run + rng.normal(0, 0.6, (rows, seeds, n)) > 0
        rates = 100 * right.mean(2)
        spread = spread_between_runs({str(row): dict(enumerate(each)) for row, each in enumerate(rates.tolist())})
        gains = 100.0 * (right[-1].astype(int) - right[0])
        found = difference(gains, images, spread)
        note("difference", (found.low, found.high), step)
        note("difference over images", stats.mean_interval(gains.mean(0).tolist()), step)
        world_rates[:] = rates[-1], rates[0]
        found = rate(right[-1], images)
        note("rate", (found.low, found.high), truth[-1])
        low, high = proportion_interval(float(right[-1].mean(0).sum()), n)
        note("rate over images", (100 * low, 100 * high), truth[-1])
    welch = reference.ttest_ind(*extremes, axis=1, equal_var=False).confidence_interval()
    held["difference over seeds"] = [*((welch.low <= step) & (step <= welch.high))]
    return {name: float(np.mean(inside)) for name, inside in held.items()}


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's, where the runs of a row are equally good
@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["difference", "rate"])
def test_intervals_over_seeds_and_writers_hold_the_truth(world: str, seeds: int, name: str) -> None:
    assert 0.93 <= coverage(world, seeds)[name] <= 0.97


@pytest.mark.filterwarnings("ignore:Precision loss")
@pytest.mark.parametrize(
    ("world", "told"),
    [
        ("as measured", "writers and seeds as here"),
        ("unlike seeds", "seeds differ more"),
        ("unlike writers", "networks please other writers"),
        ("no writers", "writers do not differ"),
    ],
)
def test_limitations_say_how_often(world: str, told: str) -> None:
    (line,) = re.findall(rf"^\| {told} \|(.*)\|$", (ROOT / "results/LIMITATIONS.md").read_text(), re.MULTILINE)
    names = ("difference", "difference over images", "difference over seeds", "rate", "rate over images")
    assert [cell.strip() for cell in line.split("|")] == [f"{100 * coverage(world, 3)[name]:.1f} %" for name in names]


def test_the_spread_of_runs_is_the_residual_of_rows_and_seeds() -> None:
    """Rows differ by 5 and seeds by 1, so what is left are the deviations of one cell: an interaction of 2 by 2."""
    rates = {"a": {7: 50.0, 8: 51.0}, "b": {7: 55.0, 8: 57.0}}
    spread = spread_between_runs(rates)
    assert spread and (spread.variance, spread.df) == (pytest.approx(4 * 0.25**2), 1)
    scattered = spread_between_runs(rates | {"c": {7: 1.0}})  # a row of one seed adds nothing
    assert scattered and scattered.df == 1 and scattered.variance == pytest.approx(spread.variance)
    assert spread_between_runs({"a": {7: 1.0}, "b": {7: 2.0}}) is None and spread_between_runs({}) is None


def test_seeds_that_read_as_many_are_in_no_interval() -> None:
    """A tie of seeds by chance shows no spread, so the interval is over writers alone."""
    images, right = Images([f"w{k // 3}_{k}" for k in range(60)]), np.arange(60) % 2 == 0
    assert rate(np.stack([right, np.arange(60) < 30]), images).over == "writers"
    assert rate(np.stack([right, np.arange(60) % 3 == 0]), images).over == "seeds and writers"


def test_a_paired_t_test_where_rows_are_two_and_every_image_is_a_writer() -> None:
    """With writers that do not differ, what is left are two rows paired by seed."""
    rng = np.random.default_rng(1)
    rates = rng.normal(50, 1, (2, 5))
    spread = spread_between_runs({str(row): dict(enumerate(each)) for row, each in enumerate(rates.tolist())})
    paired = reference.ttest_rel(rates[1], rates[0])
    gains = np.repeat((rates[1] - rates[0])[:, None], 4, axis=1)  # alike on every image
    found = difference(gains, Images(["a", "b", "c", "d"]), spread)
    assert found.p == pytest.approx(float(paired.pvalue))
    assert (found.low, found.high) == pytest.approx(tuple(paired.confidence_interval()))


@pytest.mark.parametrize(
    ("effect", "df_of_runs", "variance"),
    [(10.0, 8, 100 / 3 + 20 - 25 / 3), (1.0, 1, 20.0)],  # of two rows and two seeds: a little less than one is left
    ids=["images", "two rows, two seeds"],
)
def test_what_writers_and_seeds_both_hold_counts_once(effect: float, df_of_runs: int, variance: float) -> None:
    """Four images with effects of 10 and -10, which two seeds move by 5 and -5. The variances of the mean, by hand:
    over images 100 · 4/3 / 4, over seeds twice a run's 20 / 2, of single answers 50 · 4/3 / 4 / 2; never less than over
    seeds alone."""
    image, both = np.array([effect, effect, -effect, -effect]), np.array([5.0, -5.0, 5.0, -5.0])
    runs = Spread(20.0, df_of_runs)
    found = difference(np.stack([image + both, image - both]), Images(["a", "b", "c", "d"]), runs)
    df = variance**2 / ((effect**2 / 3) ** 2 / 3 + 20**2 / df_of_runs)
    width = float(reference.t.ppf(0.975, df)) * variance**0.5
    assert (found.over, found.low, found.high) == ("seeds and images", pytest.approx(-width), pytest.approx(width))


def test_with_one_seed_and_an_image_a_writer_it_is_students() -> None:
    gains = np.random.default_rng(2).choice([-100.0, 0.0, 100.0], 50)
    found = difference(gains[None], Images([f"{k:x}-x" for k in range(50)]), Spread(1.0, 8))
    assert found.over == "images" and (found.low, found.high) == pytest.approx(stats.mean_interval(gains.tolist()))
    student: Any = reference.ttest_1samp(gains, 0)
    assert found.p == pytest.approx(student.pvalue)


def test_years_are_strata() -> None:
    """What sets years apart is no difference between writers."""
    ids = [f"w{k // 2}_{k}" for k in range(40)]
    right = np.array([[k < 20 for k in range(40)]])  # the first half, all of a year
    apart = rate(right, Images(ids, ["2014"] * 20 + ["2016"] * 20))
    assert apart.over == "images" and rate(right, Images(ids)).over == "writers"  # within the years nothing varies


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_right_or_all_wrong_is_bounded_by_the_images(share: float) -> None:
    ids = [f"w{k // 4}_{k}" for k in range(80)]
    found = rate(np.full((3, 80), bool(share)), Images(ids))
    low, high = proportion_interval(80 * share, 80)
    assert found.over == "images" and (found.low, found.high) == (100 * low, 100 * high)


@pytest.mark.parametrize("moved", [(), (0, 5)], ids=["alike", "hardly unlike"])
def test_the_interval_of_a_rate_is_never_narrower_than_its_images_allow(moved: tuple[int, ...]) -> None:
    """By chance each writer, or each but two, has the same share right: the images would give a wider interval, and it
    is that."""
    right = np.array([[(k % 2 == 0) != (k in moved) for k in range(80)]])
    found = rate(right, Images([f"w{k // 4}_{k}" for k in range(80)]))
    low, high = proportion_interval(40, 80)
    assert found.over == ("writers" if moved else "images")
    assert (found.low, found.high) == pytest.approx((100 * low, 100 * high))


@pytest.mark.parametrize(
    ("gains", "expected", "p"),
    [
        ([[0.0] * 80] * 3, (0.0, -4.58, 4.58), 1.0),  # both rows have all images right, or the same ones
        ([[0.0] * 80], (0.0, -4.58, 4.58), 1.0),
        ([[100.0] * 80] * 3, (100.0, 95.42, 100.0), 2 * 0.5**80),
        ([[100.0, -100.0] * 40], (0.0, -22.39, 22.39), 1.0),  # the same share with each writer
        ([[100.0]], (100.0, -100.0, 100.0), 1.0),  # one image
    ],
    ids=["all right in both", "one seed", "all against none", "writers alike", "one image"],
)
def test_a_difference_that_nothing_varies_is_over_images_and_has_a_width(
    gains: list[list[float]], expected: tuple[float, float, float], p: float
) -> None:
    """As wide as Wilson's interval of none of 80, or Student's of the images; never of no width."""
    found = difference(np.array(gains), Images([f"w{k // 4}_{k}" for k in range(len(gains[0]))]))
    assert found.over == "images" and found.p == pytest.approx(p)
    assert (found.value, found.low, found.high) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("rates", [(1.0, 0.0), (0.4, 0.1), (0.9, 0.5), (0.5, 0.5)])
def test_two_seeds_that_differ_much_say_little(rates: tuple[float, float]) -> None:
    """Intervals that are wide, within what can be, and hold the mean."""
    images = Images([f"w{k // 4}_{k}" for k in range(80)])
    right = np.array([[(k * 7 % 80) < 80 * share for k in range(80)] for share in rates])
    found, gap = rate(right, images), 100 * abs(rates[0] - rates[1])
    assert 0 <= found.low < found.value < found.high <= 100 and found.high - found.low > min(2 * gap, 90)
    gains = 100.0 * right - 100.0 * right[::-1]
    apart = difference(gains, images, Spread(gap**2, 1))
    assert -100 <= apart.low <= 0 <= apart.high <= 100 and (gap == 0 or apart.high - apart.low == 200)
