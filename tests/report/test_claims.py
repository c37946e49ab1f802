"""The papers' claims: verdicts follow from numbers."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import claims, summary
from hmerbench.benchmarks.report.paper import REPORTED, reference
from hmerbench.benchmarks.report.scored_runs import Step
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.metrics import Expression, bucket
from tests.helpers.made_up import put, put_config, put_environment, put_expressions, put_score

CLAIMS = {claim["claim"]: claim for claim in reference()["claims"]}


def step(difference: float, low: float, high: float, word: str, reported: float | None = 1.0) -> Step:
    return Step("a", "b", difference, low, high, "seeds and writers", 9, 3, 0.5, 0.5, reported, word)


SHOWN = step(2, 1, 3, "significant")
SMALL = step(0, -0.5, 0.5, "not significant")
WIDE = step(0, -2, 2, "not significant")
AGAINST = step(-2, -3, -1, "opposite")


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([SHOWN], "supported"),
        ([SHOWN, SHOWN], "supported"),
        ([SHOWN, WIDE], "open"),
        ([SHOWN, SMALL], "open"),
        ([SMALL, SMALL], "not supported"),
        ([SMALL, WIDE], "open"),
        ([replace(SMALL, of_year=WIDE)], "open"),  # what is reported is of that year
        ([replace(WIDE, of_year=SMALL)], "not supported"),
        ([step(0, -0.5, 0.5, "not significant", None)], "open"),  # the paper gives no number that could be excluded
        ([AGAINST, SHOWN], "contradicted"),
        ([AGAINST], "contradicted"),
        ([], "open"),
    ],
)
def test_verdicts(steps: list[Step], verdict: str) -> None:
    assert claims.verdict(steps) == verdict


def test_rows_that_table_1_lacks_are_told_by_table_2() -> None:
    assert REPORTED["comer-fusion"] - REPORTED["densewap"] == pytest.approx(16.33)
    assert REPORTED["densewap-td"] - REPORTED["densewap"] == pytest.approx(6.10) and "bttr-uni" not in REPORTED


@pytest.mark.parametrize(
    ("claim", "points"),
    [
        ("Coverage helps", 4.16),
        ("Cross-coverage helps more than self-coverage", 0.60),
        ("Above 20 tokens Fusion is far ahead of the others (Self is the next in the paper)", 100 * (138 - 118) / 299),
        ("Cross is better than Self up to 20 tokens", 100 * (461 - 449) / 687),
        ("Coverage helps more above 20 tokens than below", 100 * ((138 - 112.85) / 299 - 12 / 687)),  # as printed
        ("Training in both directions helps (BTTR)", None),
    ],
)
def test_what_is_reported_comes_from_table_1_and_fig_3(claim: str, points: float | None) -> None:
    """Counts of Fig. 3: of 192, 56, 26 and 25 expressions above 20 tokens, of 400 and 287 up to 20."""
    found = claims.reported(CLAIMS[claim])
    assert found is points is None or found == pytest.approx(points, abs=0.03)


def test_what_a_misprint_would_change(monkeypatch: pytest.MonkeyPatch) -> None:
    claim, rates = CLAIMS["Coverage helps more above 20 tokens than below"], reference()["fig3"]["rates"]
    printed, (*first, third, _, _, _) = claims.reported(claim), rates["BTTR (baseline)"]
    monkeypatch.setitem(rates, "BTTR (baseline)", [*first, third - 2, *rates["BTTR (baseline)"][3:]])
    text = (Path(claims.__file__).parent / "templates/CLAIMS.md").read_text()
    assert f"{third:.2f} % (BTTR (baseline), 21 to 30" in text and f"{third - 2:.2f} %" in text
    assert f"{printed:+.2f} becomes {claims.reported(claim):+.2f}" in text


def test_a_deviation_of_five_seeds_gives_the_limit_of_students_t() -> None:
    told = claims._seeds_of_the_paper()
    assert told["limit"] == f"{2.776 * 2**0.5 * 0.62:.1f}" and told["covered"].startswith(
        "all steps of Table 1: BTTR → "
    )


def put_run(root: Path, recipe: str, preset: str, seed: int, long_rate: float, **environment: Any) -> None:
    """A run that reads 60 % of expressions of 5 tokens and `long_rate` of those of 25, in sheets of ten."""
    folder = root / recipe / f"{preset}-seed{seed}"
    put_config(folder, recipe=recipe, preset=preset, seed=seed, data={"name": "crohme", "digest": "ab" * 32})
    put_environment(folder, **environment)
    draw = np.random.default_rng((seed, *recipe.encode()))
    for year in crohme().tests:
        n = crohme().n(year)
        rows = []
        for index in range(n):
            tokens = 5 if index % 2 else 25
            exact = bool(draw.random() < (0.6 if index % 2 else long_rate))
            rest = int(not exact), int(not exact), 0, exact, exact, None, tokens, bucket(tokens)
            rows.append(vars(Expression(f"w{index // 10}_{index}", "converted", *rest)))
        put(folder / f"scores/{year}.csv", csv_text(list(rows[0]), rows))
        put_score(folder, year, n, sum(row["exact"] for row in rows))


def test_claims_of_made_up_runs(tmp_path: Path) -> None:
    """At small, coverage helps long expressions alone. Neither gpu, which reads with the weights of another preset, nor
    medium, with one seed and of another program, counts."""
    for seed in (7, 8, 9):
        put_run(tmp_path / "reproduced", "bttr-baseline", "gpu", seed, 0.5, trained_in="small-seed7-12345678")
        put_run(tmp_path / "reproduced", "comer-fusion", "gpu", seed, 0.3, trained_in="small-seed7-12345678")
        put_run(tmp_path / "reproduced", "bttr-baseline", "small", seed, 0.3)
        put_run(tmp_path / "reproduced", "comer-fusion", "small", seed, 0.5)
        put_run(tmp_path / "reproduced", "comer-self", "small", seed, 0.5)
    put_run(tmp_path / "reproduced", "bttr-baseline", "medium", 7, 0.3)
    put_run(tmp_path / "reproduced", "comer-fusion", "medium", 7, 0.1, versions={"torch": "2.11.0"})
    text = claims.claims(tmp_path)
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in text.splitlines()
        if "|" in line
    }
    assert cells["claim"] == ["reported", "family", "verdict", "`small`", "(`medium`)", "(`gpu`)", "besides"]
    assert "| `small` | 3 | this suite | cpu | yes |" in text
    assert "| `medium` | 1 | in part a program that is not in this repository | cpu | no: one seed |" in text
    assert "| **supported** | Coverage helps; Self-coverage helps; " in text
    assert "| **contradicted** | none |" in text
    assert "| `gpu` | 3 | this suite | cpu | no: weights of another preset |" in text
    verdicts = {claim: row[2] for claim, row in cells.items() if len(row) == 7}
    assert verdicts["Coverage helps (Table 1)"] == verdicts["Self-coverage helps (Table 1)"] == "**supported**"
    more = "Coverage helps more above 20 tokens than below (Section 4.5, Fig. 3)"
    assert verdicts[more] == "**supported**"
    above = next(claim for claim in cells if claim.startswith("Above 20 tokens"))
    assert above.endswith(f"Fig. 3; {sum((crohme().n(year) + 1) // 2 for year in crohme().tests):,} images)")
    assert verdicts[above] == "**not supported**"
    assert verdicts["Scale augmentation helps (Table 1)"] == "**open**"  # there is no run of BTTR
    assert cells["Coverage helps (Table 1)"][4].endswith(", 1 seed") and "p" not in cells["Coverage helps (Table 1)"][4]
    longer = re.match(r"\*\*\+([\d.]+) \(", cells[more][3])
    assert longer and float(longer[1]) == pytest.approx(20, abs=3)
    for folder in tmp_path.glob("reproduced/*/small-seed[78]"):
        put_score(folder, "2031", 2, 1)
        put_expressions(folder, "2031", [0, 1])
    assert claims.claims(tmp_path) == text  # a test set that the papers do not report is no part of their claims
    for scores in tmp_path.glob("reproduced/*/*/scores/20[12]?.json"):
        scores.unlink()
    assert claims.claims(tmp_path).count("**open**") == len(CLAIMS) + 1


def test_a_preset_whose_rows_share_one_seed_does_not_count(tmp_path: Path) -> None:
    for recipe, seeds in (("bttr-baseline", (7, 8)), ("comer-fusion", (7, 9))):
        for seed in seeds:
            put_run(tmp_path / "reproduced", recipe, "small", seed, 0.3)
    assert "| `small` | 2 | this suite | cpu | no: one seed |" in claims.claims(tmp_path)


def test_without_runs_every_claim_is_open(tmp_path: Path) -> None:
    text = claims.claims(tmp_path)
    assert text.count("**open**") == len(CLAIMS) + 1 and "| **supported** | none |" in text


@pytest.mark.parametrize(
    ("name", "made"), [("scoreboard", claims.claims), ("language", claims.claims), ("recipe", summary.speed_tables)]
)
def test_a_damaged_table_is_named(tmp_path: Path, name: str, made: Callable[[Path], object]) -> None:
    (tmp_path / f"{name}.csv").write_text("system\ncomer\n")
    with pytest.raises(UserError, match=rf"{name}\.csv: damaged or incomplete; restore it, or m"):
        made(tmp_path)
