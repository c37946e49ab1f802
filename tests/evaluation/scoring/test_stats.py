"""Intervals, paired tests, length buckets and error tables, against independently computed numbers."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from hmerbench.evaluation import symlg
from hmerbench.evaluation.lgeval.metrics import compare_graphs
from hmerbench.evaluation.scoring import analysis, metrics, stats
from hmerbench.evaluation.scoring.metrics import Expression, percent, printed_interval, proportion_interval
from hmerbench.evaluation.scoring.score import evaluate
from tests.helpers.scored_files import lg_folder, tex_folder

COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_equals_scipys(case: tuple[int, int]):
    expected = binomtest(*case).proportion_ci(0.95, method="wilson")
    assert proportion_interval(*case) == pytest.approx((expected.low, expected.high), abs=1e-14)


def test_interval_of_nothing_is_refused():
    with pytest.raises(ValueError):
        proportion_interval(0, 0)


@pytest.mark.parametrize("n", [986, 1147, 1199])  # of CROHME 2014, 2016 and 2019
def test_a_printed_rate_has_the_interval_of_its_count(n: int):
    for count in range(n + 1):
        assert printed_interval(percent(count, n), n) == tuple(100 * end for end in proportion_interval(count, n))


def test_mcnemar_is_exact():
    assert stats.mcnemar(5, 0) == pytest.approx(2 / 2**5)
    assert stats.mcnemar(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 2**10)
    assert stats.mcnemar(3, 3) == stats.mcnemar(0, 0) == 1.0


@pytest.mark.parametrize(
    ("counts", "limits"),
    [
        ((36, 12, 2, 0), (0.0569, 0.3404)),
        ((20, 12, 2, 16), (0.0562, 0.3292)),  # with the continuity correction
        ((18, 12, 2, 18), (0.0562, 0.3290)),
        ((36, 14, 0, 0), (0.1528, 0.4167)),
        ((35, 14, 0, 1), (0.1461, 0.4175)),
        ((18, 14, 0, 18), (0.1441, 0.3963)),
        ((59, 6, 16, 80), (-0.1186, -0.0046)),  # of the R package contingencytables
    ],
)
def test_difference_interval_is_newcombes(counts: tuple[int, int, int, int], limits: tuple[float, float]):
    """Newcombe 1998 (paired), table III, method 10: both right, one right, the other right, none right."""
    both, only_a, only_b, _ = counts
    assert stats.difference_interval(both, only_a, only_b, sum(counts)) == pytest.approx(limits, abs=0.0001)


@given(COUNTS.flatmap(lambda a: st.tuples(st.just(a), st.lists(st.integers(0, 5), min_size=len(a), max_size=len(a)))))
def test_paired_comparison_is_antisymmetric(case: tuple[list[int], list[int]]):
    a, b = case
    one, other = stats.compare_paired(a, b), stats.compare_paired(b, a)
    assert (one.exact_a, one.only_a) == (other.exact_b, other.only_b)
    assert one.difference == pytest.approx(-other.difference)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.interval[0] - 1e-9 <= one.difference <= one.interval[1] + 1e-9
    assert one.mcnemar_p == other.mcnemar_p
    assert one.exact_a == sum(x == 0 for x in a)
    assert 0 < one.permutation_p <= 1 and one.permutation_p == other.permutation_p


def test_the_interval_of_a_difference_is_over_the_writers_that_ids_name():
    """Ten of 20 writers have all right in one system alone: over writers, these are 10 of 20, not 40 of 80."""
    a, b = [0] * 80, [int(k // 4 < 10) for k in range(80)]
    written = stats.compare_paired(a, b, [f"w{k // 4}_{k}" for k in range(80)])
    unknown = stats.compare_paired(a, b, [f"{k:x}-" for k in range(80)])
    assert (written.over, unknown.over, written.difference) == ("writers", "images", 50)
    student: Any = ttest_1samp([100.0] * 10 + [0.0] * 10, 0)
    assert written.p == pytest.approx(student.pvalue)
    assert written.interval == pytest.approx(tuple(student.confidence_interval()))
    assert unknown == stats.compare_paired(a, b) and unknown.p == unknown.mcnemar_p == written.mcnemar_p
    assert written.interval[0] < unknown.interval[0] - 5


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_the_permutation_test_counts_every_choice_of_signs(differences: list[int]):
    sums = [sum(signs) for signs in product(*((d, -d) for d in differences))]
    expected = np.mean([abs(total) >= abs(sum(differences)) for total in sums])
    assert stats.permutation(np.array(differences, dtype=int)) == pytest.approx(float(expected))


def test_a_comparison_has_a_permutation_test():
    assert stats.compare_paired([1] * 6, [0] * 6).permutation_p == pytest.approx(2 / 2**6)
    sizes = [40 * k for k in range(240)]  # runaways take no longer
    a, b = ([size * (k % 2 == side) for k, size in enumerate(sizes)] for side in (0, 1))
    assert 0.9 < stats.compare_paired(a, b).permutation_p < 1
    with pytest.raises(ValueError):
        stats.compare_paired([1], [1, 2])


def test_holms_correction():
    """The first case is in many textbooks; no adjusted value exceeds 1."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.6]) == [1.0, 1.0] and stats.holm([]) == []


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_intervals_of_a_mean_are_students(values: list[float]):
    """That of the mean is scipy's; that of one more value is wider by what the value varies itself."""
    expected = ttest_1samp(values, 0.0).confidence_interval() if np.ptp(values) > 1e-6 else (np.mean(values),) * 2
    low, high = stats.mean_interval(values)
    assert (low, high) == pytest.approx(tuple(expected), abs=1e-6)
    wide = stats.prediction_interval(values)
    assert wide[1] - wide[0] == pytest.approx((high - low) * (len(values) + 1) ** 0.5)


def test_buckets():
    expected = {1: 0, 10: 0, 11: 1, 20: 1, 21: 2, 30: 2, 31: 3, 40: 3, 41: 4, 50: 4, 51: 5, 204: 5}
    assert {n: metrics.BUCKETS.index(metrics.bucket(n)) for n in expected} == expected
    lengths = [(3, True), (12, False), (9, False)]
    rows = metrics.by_bucket(
        [Expression("", "", 0, 0, 0, right, right, None, n, metrics.bucket(n)) for n, right in lengths]
    )
    assert [(row.n, row.exact, row.exprate) for row in rows[:3]] == [(2, 1, 50.0), (1, 0, 0.0), (0, 0, None)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a + b", {"line"}),
        ("x ^ 2", {"script"}),
        ("x ^ { y _ 1 }", {"script", "nested script"}),
        (r"\frac { a } { b }", {"fraction"}),
        (r"\sqrt [ 3 ] { a }", {"root"}),
        (r"\sum \limits _ i x", {"limits"}),
        (r"\sum _ i x", {"script"}),
        (r"- \limits _ a", {"limits"}),
    ],
)
def test_structures(text: str, kinds: set[str]):
    assert analysis.structures(symlg.from_latex(text)) == kinds


def pair(key: str, found: str, true: str, length: int) -> analysis.Pair:
    prediction, truth = symlg.from_latex(found), symlg.from_latex(true)
    comparison = compare_graphs(prediction, truth)
    expression = Expression.compared(key, comparison.metrics, caption=[""] * length)
    return analysis.Pair(expression, prediction, truth, comparison)


def test_error_tables():
    tables = analysis.tables(
        [
            pair("a", "x + b", "x + 6", 3),
            pair("b", "x b", "x 6 y", 3),
            pair("c", "x _ 2", "x ^ 2", 4),
            pair("d", "y", "y", 60),
        ]
    )
    assert tables["symbols"][0] == {"truth": "6", "prediction": "b", "count": 2, "aligned": 1, "expressions": 2}
    assert {(row["truth"], row["prediction"], row["aligned"]) for row in tables["symbols"][1:]} == {
        ("y", "ABSENT", 0), ("2", "ABSENT", 0), ("ABSENT", "2", 0),
    }  # fmt: skip
    assert {(row["truth"], row["prediction"]): row["count"] for row in tables["relations"]} == {
        ("Right", "_"): 1, ("Sup", "_"): 1, ("_", "Sub"): 1,
    }  # fmt: skip
    recall = {row["symbol"]: (row["n"], row["correct"], row["recall"]) for row in tables["symbol_recall"]}
    assert recall["x"] == (3, 3, 100.0) and recall["6"] == (2, 0, 0.0) and recall["y"] == (2, 1, 50.0)
    line = next(row for row in tables["structure"] if row["structure"] == "line")
    assert (line["n"], line["exact"], line["le1"], line["structure_right"]) == (3, 1, 2, 2)
    assert line["mean_errors"] == round((1 + 3 + 0) / 3, 3)
    assert [row["n"] for row in tables["length"]] == [3, 0, 0, 0, 0, 1]
    for name, rows in tables.items():
        assert all(tuple(row) == analysis.COLUMNS[name] for row in rows), name


def test_graphs_are_read_back_from_an_evaluation(tmp_path: Path):
    found = tex_folder(tmp_path / "tex", {"e0": "a b", "e1": "{"})
    truth = lg_folder(tmp_path / "gt", {"e0": "a c", "e1": "a"})
    result = evaluate(found, str(truth), workdir=tmp_path / "work")
    pairs = analysis.compared_pairs(result.expressions, tmp_path / "work")
    assert [item.expression.errors for item in pairs] == [item.comparison.metrics["D_B"] for item in pairs] == [1, 1]
    assert "length" not in analysis.tables(pairs)
