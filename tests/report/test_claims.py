"""The papers' claims: verdicts follow from numbers, in the program and in the committed document."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import claims, summary
from hmerbench.benchmarks.report.paper import reference
from hmerbench.benchmarks.report.scored_runs import Step
from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.scoring.metrics import bucket
from tests.helpers.made_up import put, put_config, put_environment, put_expressions, put_score
from tests.helpers.paths import ROOT

DOCUMENT = (ROOT / "results/CLAIMS.md").read_text()
CLAIMS = {claim["claim"]: claim for claim in reference()["claims"]}


def step(difference: float, low: float, high: float, word: str, reported: float | None = 1.0) -> Step:
    return Step("a", "b", difference, low, high, "seeds and writers", 9, 3, 0.5, 0.5, reported, word)


SHOWN, SMALL, WIDE = (
    step(2, 1, 3, "significant"),
    step(0, -0.5, 0.5, "not significant"),
    step(0, -2, 2, "not significant"),
)
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
        ([step(0, -0.5, 0.5, "not significant", None)], "open"),  # the paper gives no number that could be excluded
        ([AGAINST, SHOWN], "contradicted"),
        ([AGAINST], "contradicted"),
        ([], "open"),
    ],
)
def test_verdicts(steps: list[Step], verdict: str) -> None:
    assert claims.verdict(steps) == verdict


@pytest.mark.parametrize(
    ("claim", "points"),
    [
        ("Coverage helps", 4.16),
        ("Cross-coverage helps more than self-coverage", 0.60),
        ("Above 20 tokens Fusion is far ahead of the others (Self is the next in the paper)", 100 * (138 - 118) / 299),
        ("Cross is better than Self up to 20 tokens", 100 * (461 - 449) / 687),
        (
            "Coverage helps more above 20 tokens than below",
            100 * ((138 - 112.85) / 299 - (447 - 435) / 687),
        ),  # as printed
        ("Training in both directions helps (BTTR)", None),
    ],
)
def test_what_is_reported_comes_from_table_1_and_fig_3(claim: str, points: float | None) -> None:
    """Counts of Fig. 3: of 192, 56, 26 and 25 expressions above 20 tokens, of 400 and 287 up to 20."""
    found = claims.reported(CLAIMS[claim])
    assert found is points is None or found == pytest.approx(points, abs=0.03)


def conflicts(document: str) -> list[str]:
    """The claims whose verdict does not follow from the numbers beside it, by the rules at the document's head."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in document.splitlines() if line.startswith("|")]
    start = next(index for index, line in enumerate(lines) if line[0] == "claim")
    heads, found = lines[start], []
    for line in lines[start + 2 :]:
        if len(line) != len(heads):  # the next table
            break
        row = dict(zip(heads, line, strict=True))
        pattern = r"(\*\*)?([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)(\*\*)?, p(=|<)([\d.]+), (\d+) seeds"
        cells = [re.fullmatch(pattern, row[head]) for head in heads if head.startswith("`") and row[head]]
        cells = [cell for cell in cells if cell]  # of one seed, there is no p
        points = re.fullmatch(r"[+-][\d.]+", row["reported"])
        bold = [bool(cell[1]) for cell in cells]
        if any(b != (float(cell[7]) < 0.05 or cell[6] == "<") for b, cell in zip(bold, cells, strict=True)):
            found.append(row["claim"])
        signs = [cell[2].startswith("+") for cell in cells]
        if any(b and not sign for b, sign in zip(bold, signs, strict=True)):
            expected = "contradicted"
        elif cells and all(bold):
            expected = "supported"
        elif cells and points and not any(bold) and all(float(cell[4]) < float(points[0]) for cell in cells):
            expected = "not supported"
        else:
            expected = "open"
        short = dict(line for line in lines[:start] if len(line) == 2).get(row["verdict"], "").split("; ")
        if row["verdict"] != f"**{expected}**" or row["claim"].rpartition(" (")[0] not in short:
            found.append(row["claim"])
    return found


def test_the_committed_verdicts_follow_from_their_numbers() -> None:
    assert DOCUMENT.count("| **") > 10 and conflicts(DOCUMENT) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"\| \*\*supported\*\* +\| \*\*\+", "| **open** | **+"),
        (r"\| \*\*not supported\*\* +\| \+", "| **contradicted** | +"),
        (r"Coverage helps; ", ""),  # in the short table
        (r"(Coverage helps \(Table 1\).*?), p<0\.001", r"\1, p=0.06"),
        (r"(Coverage helps \(Table 1\).*?\*\*)\+(\d)", r"\1-\2"),
        (r"(Cross is better than Self up to 20.*?)to \+1\.5\)", r"\1to +2.5)"),
    ],
)
def test_a_verdict_that_parts_from_its_numbers_is_found(old: str, new: str) -> None:
    changed = re.sub(old, new, DOCUMENT, count=1)
    assert changed != DOCUMENT and conflicts(changed)


def put_run(root: Path, recipe: str, preset: str, seed: int, long_rate: float, **environment: Any) -> None:
    """A run that reads 60 % of expressions of 5 tokens and `long_rate` of those of 25, in sheets of ten."""
    folder = root / recipe / f"{preset}-seed{seed}"
    put_config(folder, recipe=recipe, preset=preset, seed=seed, data={"name": "crohme", "digest": "ab" * 32})
    put_environment(folder, **environment)
    draw = np.random.default_rng((seed, *recipe.encode()))
    for year in crohme().tests:
        n = crohme().n(year)
        lines, right = ["id,status,errors,label_errors,relation_errors,exact,structure,token_exact,length,bucket"], 0
        for index in range(n):
            tokens = 5 if index % 2 else 25
            exact = bool(draw.random() < (0.6 if index % 2 else long_rate))
            right += exact
            wrong = int(not exact)
            lines.append(
                f'w{index // 10}_{index},converted,{wrong},{wrong},0,{exact},{exact},,{tokens},"{bucket(tokens)}"'
            )
        put(folder / f"scores/{year}.csv", "\n".join(lines) + "\n")
        put_score(folder, year, n, right)


def test_claims_of_made_up_runs(tmp_path: Path) -> None:
    """At small, coverage helps long expressions alone. At medium one seed, which does not count, of another program."""
    for seed in (7, 8, 9):
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
    assert cells["claim"] == ["reported", "family", "verdict", "`small`", "(`medium`)"]
    assert "| `small` | 3 | this suite | cpu | yes |" in text
    assert "| `medium` | 1 | in part a program that is not in this repository | cpu | no: one seed |" in text
    assert "| **supported** | Coverage helps; Self-coverage helps; " in text
    assert "| **contradicted** | none |" in text
    verdicts = {claim: row[2] for claim, row in cells.items() if len(row) == 5}
    assert verdicts["Coverage helps (Table 1)"] == verdicts["Self-coverage helps (Table 1)"] == "**supported**"
    assert verdicts["Coverage helps more above 20 tokens than below (Section 4.5, Fig. 3)"] == "**supported**"
    above = next(claim for claim in cells if claim.startswith("Above 20 tokens"))
    assert verdicts[above] == "**not supported**"
    assert verdicts["Scale augmentation helps (Table 1)"] == "**open**"  # there is no run of BTTR
    assert cells["Coverage helps (Table 1)"][4].endswith(", 1 seed") and "p" not in cells["Coverage helps (Table 1)"][4]
    longer = re.match(
        r"\*\*\+([\d.]+) \(", cells["Coverage helps more above 20 tokens than below (Section 4.5, Fig. 3)"][3]
    )
    assert longer and float(longer[1]) == pytest.approx(20, abs=3)
    assert conflicts(text) == [] and "| `small` |" in text
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
    assert text.count("**open**") == len(CLAIMS) + 1 and "| **supported** | none |" in text and conflicts(text) == []


@pytest.mark.parametrize(
    ("name", "made"), [("scoreboard", claims.claims), ("language", claims.claims), ("recipe", summary.speed_tables)]
)
def test_a_damaged_table_is_named(tmp_path: Path, name: str, made: Callable[[Path], object]) -> None:
    (tmp_path / f"{name}.csv").write_text("system\ncomer\n")
    with pytest.raises(UserError, match=rf"{name}\.csv: damaged or incomplete; restore it, or m"):
        made(tmp_path)
