"""Who wrote which image: by the ids, and by what CROHME's InkML files name."""

import re
from collections.abc import Mapping
from hashlib import md5
from zipfile import ZipFile

import numpy as np
import pytest

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.stats import Images, rate, writer, writers
from tests.helpers.paths import CROHME, ROOT

YEARS = ("2014", "2016", "2019")
INKML = {year: CROHME.parent / f"inkml/{year}.zip" for year in YEARS}
LARGE = RunFolder(ROOT / "results/reproduced/comer-fusion/large-seed7")


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        *(("UN_101_em_7", "UN_101"), ("ISICal19_1201_em_750", "ISICal19_1201"), ("18_em_0", "18")),
        *(("RIT_2014_1", "RIT_2014_0"), ("RIT_2014_5", "RIT_2014_0"), ("RIT_2014_6", "RIT_2014_1")),
        *(("32_em_220a", "32"), ("ada_3", "ada"), ("ada-3", "ada"), ("x", "x"), ("17", "17")),
    ],
)  # fmt: skip
def test_ids_name_writers(id_: str, name: str) -> None:
    assert writer(id_) == name


@pytest.mark.parametrize(
    ("ids", "over"),
    [
        ([f"w{k // 3}_{k}" for k in range(60)], "writers"),
        ([f"w{k // 6}_{k}" for k in range(60)], "writers"),
        ([f"w{k * 4 // 5}_{k}" for k in range(50)], "writers"),  # as 50 images chosen evenly from CROHME
        ([f"w{k // 6}_{k}" for k in range(54)], "images"),
        ([f"w{k // 30}_{k}" for k in range(60)], "images"),  # two writers say nothing of how writers differ
        ([f"one_{k}" for k in range(60)], "images"),
        ([f"{k:x}-hash" for k in range(60)], "images"),
        ([md5(str(k).encode()).hexdigest()[:6] for k in range(1000)], "images"),  # 930 writers, if by their last digits
        (["alone"], "images"),
    ],
    ids=["sheets", "ten writers", "sample", "nine writers", "two writers", "one writer", "none", "digests", "alone"],
)
def test_ids_that_tell_few_writers_apart_leave_images(ids: list[str], over: str) -> None:
    groups, kind = writers(ids)
    assert (kind, Images(ids).over) == (over, over)
    assert len({*groups}) == len({id_.partition("_")[0] for id_ in ids} if over == "writers" else ids)


def named_writers(year: str) -> Mapping[str, str]:
    """Id -> the writer that its InkML file names."""
    if not INKML[year].exists():
        pytest.skip(f"no {INKML[year]}")
    found = {}
    with ZipFile(INKML[year]) as archive:
        for path in (name for name in archive.namelist() if name.endswith(".inkml")):
            name = re.search(rb'type="writer">([^<]+)<', archive.read(path))
            assert name, path
            found[path.rpartition("/")[2].removesuffix(".inkml")] = name[1].decode().strip()
    return found


@pytest.mark.parametrize("year", YEARS)
def test_they_are_those_of_the_inkml_files(year: str) -> None:
    """Exactly for 2016 and 2019. In 2014 the sheets of the source that numbers its ids through are about as many as its
    writers, and one other id is misleading."""
    true = named_writers(year)
    sheets = {(writer(id_), name) for id_, name in true.items()}
    if year != "2014":
        assert len(sheets) == len({*true.values()}) == len({writer(id_) for id_ in true})
    through = {id_: name for id_, name in true.items() if id_.startswith("RIT_2014_")}
    others = {(writer(id_), name) for id_, name in true.items() if id_ not in through}
    assert len(others) - len({sheet for sheet, _ in others}) == (1 if year == "2014" else 0)
    if through:
        assert (len({*map(writer, through)}), len({*through.values()})) == (63, 66)


@pytest.mark.parametrize("year", YEARS)
def test_intervals_are_those_of_the_named_writers(year: str) -> None:
    true, expressions = named_writers(year), LARGE.expressions(year)
    right = np.array([[row.exact for row in expressions.values()]])
    names = [true[id_] for id_ in expressions]
    counts = dict.fromkeys(names, 0)
    ids = [f"{name}_{(counts := counts | {name: counts[name] + 1})[name]}" for name in names]
    by_sheet, by_name = rate(right, Images(list(expressions))), rate(right, Images(ids))
    assert by_sheet.over == by_name.over == "writers"
    assert (by_sheet.low, by_sheet.high) == pytest.approx((by_name.low, by_name.high), abs=0.2)
    wilson = LARGE.scores[year].ci95
    assert by_sheet.high - by_sheet.low > wilson[1] - wilson[0]
