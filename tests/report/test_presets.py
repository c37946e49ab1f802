"""The ladder holds every preset, each at most one base from complete, with what the committed runs measured."""

from pathlib import Path

import pytest

from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.presets import COST, READS, advice, expected_time, ladder, preset_labels
from hmerbench.benchmarks.resolve import PRESETS, SHIPPED, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_yaml
from tests.helpers.paths import ROOT


@pytest.mark.parametrize("preset", PRESETS)
def test_a_rung_is_complete_or_one_base_away(preset: str) -> None:
    base = read_yaml(SHIPPED / f"presets/{preset}.yaml").get("base")
    assert base is None or "base" not in read_yaml(SHIPPED / f"presets/{base}.yaml")


def test_every_preset_is_a_rung_with_its_cost_and_what_it_reads() -> None:
    found = {rung["preset"]: rung for rung in ladder()}
    assert tuple(found) == PRESETS and all(rung["runs on"] and rung["what for"] for rung in found.values())
    assert (found["small"][COST], found["small"][READS]) == ("18–41 core-minutes", "22.7 %")
    assert found["paper"][COST] == "7–8 hours on four 2080 Ti (reported)"
    assert found["paper"][READS] == "59.3 % (reported)"
    assert (found["gpu"][COST], found["gpu"][READS]) == ("not yet run", "–")
    installed = {rung["preset"]: rung[COST] for rung in ladder(ROOT / "nowhere")}  # without any committed runs
    assert installed["gpu"] == installed["small"] == "–"


def test_a_presets_own_scales_are_those_of_all_its_rows_and_of_no_others(tmp_path: Path) -> None:
    """Rows without scale augmentation are compared with the others; another range is another preset of this name."""
    (mine := tmp_path / "mine.yaml").write_text("base: smoke\naugmentation:\n  scale: [0.5, 2.0]\n")
    rows = [RunFolder(tmp_path / recipe, resolve(recipe, str(mine), 7)) for recipe in ("bttr", "comer-fusion")]
    assert {*preset_labels(rows).values()} == {"mine"}
    mine.write_text("base: smoke\naugmentation:\n  scale: [0.8, 1.2]\n")
    rows.append(RunFolder(tmp_path / "other", resolve("comer-fusion", str(mine), 8)))
    assert len({*preset_labels(rows).values()}) == 2


def test_the_default_says_what_it_is_good_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PRESET=small reads 22.7 % of 2014 after 18–41 core-minutes a row" in advice("smoke")
    assert advice("small") == advice("mine") == ""
    monkeypatch.setattr(presets, "ladder", lambda: ladder(tmp_path))  # without committed runs
    assert advice("smoke") == ""


def test_the_plan_knows_the_minutes_of_a_measured_preset(tmp_path: Path) -> None:
    def expected(preset: str, data: str = "crohme") -> str:
        config = resolve("comer-fusion", preset, 7).changed({"data.name": data})
        return expected_time(RunFolder(tmp_path / config.run_name, config))

    assert expected("large") == "380 core-minutes (an earlier form)"
    assert expected("gpu") == expected("large", "embedded") == "unknown"
