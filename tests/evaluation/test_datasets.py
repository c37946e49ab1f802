"""The facts of published sets are in their files, and in these alone."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.passport import skip_reason
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.evaluation import InputError, datasets
from hmerbench.models.vocab import SPECIAL, Vocabulary
from tests.helpers.paths import ROOT

CODE = [path for folder in ("benchmarks", "evaluation", "models") for path in (ROOT / folder).rglob("*.py")]
CODE += [path for folder in ("benchmarks", "evaluation") for path in (ROOT / folder).rglob("templates/*")]
FACTS = {*datasets.crohme().tests, *(str(split.n) for split in datasets.crohme().splits.values() if split.n > 900)}
FACTS |= {str(datasets.sizes_of().max_area)}
CLASSES = datasets.crohme().vocabulary, datasets.crohme().vocabulary + len(SPECIAL)


def test_no_code_names_a_test_set_a_size_or_the_number_of_classes() -> None:
    fact = re.compile(rf"(?<![\w.])(?:{'|'.join(map(str, (*FACTS, *CLASSES)))})(?!\w)")
    found = {path.relative_to(ROOT): fact.findall(path.read_text().replace("_", "").replace(",", "")) for path in CODE}
    assert len(CODE) > 100 and not {path: facts for path, facts in found.items() if facts}


def test_crohme_has_as_many_symbols_as_the_dictionary() -> None:
    assert len(Vocabulary()) == CLASSES[1]


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Let a copy of CROHME's file with other keys be all that is known."""
    keys = yaml.safe_load((datasets.FOLDER / "crohme.yaml").read_text()) | changes
    (folder / "crohme.yaml").write_text(yaml.safe_dump({k: v for k, v in keys.items() if v is not None}))
    monkeypatch.setattr(datasets, "FOLDER", folder)
    monkeypatch.setattr(datasets, "datasets", getattr(datasets.datasets, "__wrapped__", datasets.datasets))


def test_a_test_set_more_is_a_few_lines_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = datasets.crohme().model_dump(mode="json")["splits"]
    more = {"n": 7, "captions": "ab" * 16, "limits": "Below and Above"}
    written(tmp_path, monkeypatch, splits=splits | {"2031": more})
    known = datasets.crohme()
    assert known.tests[-1] == "2031" and known.n("2031", *known.tests[:1]) == 7 + known.n(known.primary)
    assert known.whose_limits("Sub and Sup") == "2014" and known.whose_limits("as the captions") == ""
    assert re.fullmatch(r"2016, 2019(, \d+)* and 2031", known.whose_limits("Below and Above"))
    assert datasets.symlg_published("2031", "ab" * 16) and not datasets.symlg_published("2031", "cd" * 16)


def test_sizes_are_the_sets_own_or_crohmes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings begin with CROHME's."""
    assert (Data().max_area, Data().max_tokens) == tuple(datasets.sizes_of().model_dump().values())
    assert datasets.sizes_of(datasets.datasets()["mne"]) == datasets.sizes_of()
    written(tmp_path, monkeypatch, sizes={"max_area": 5000, "max_tokens": 3})
    large, small = (
        Sample("a", ("x",) * tokens, np.zeros((50, width), np.uint8)) for width, tokens in ((101, 4), (100, 3))
    )
    reason = "101 x 50 = 5,050 pixels (more than 5,000) and 4 tokens (more than 3)"
    assert skip_reason(large, datasets.sizes_of(datasets.crohme())) == reason
    assert skip_reason(small, datasets.sizes_of()) is None
    written(tmp_path, monkeypatch, sizes=None)
    with pytest.raises(InputError, match=r"crohme\.yaml: sizes: lacks max_area and max_tokens"):
        datasets.sizes_of()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"primary": "1999"}, "lacks 1999, which digests or primary name"),
        ({"license": None}, "license: Field required"),
        ({"sizes": {"max_area": 5000}}, "sizes.max_tokens: Field required"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"splits": {"test": {"n": 0, "captions": "ab" * 16}}}, "splits.test.n: Input should be greater than 0"),
        ({"splits": {"test": {"n": 1, "captions": "xy"}}}, "splits.test.captions: String should match"),
        ({"digests": {"12": ["train"]}}, "digests.12"),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else "",
)
def test_a_file_that_describes_no_set_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], fault: str
) -> None:
    written(tmp_path, monkeypatch, **changes)
    with pytest.raises(InputError) as caught:
        datasets.crohme()
    assert str(caught.value).startswith(f"{tmp_path}/crohme.yaml: ") and fault in str(caught.value)
    assert "\n" not in str(caught.value)
