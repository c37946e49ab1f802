"""A set imported from its pen strokes beside the published one: what is equal, what is not, what was left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.importing.source import Choice
from hmerbench.benchmarks.data.importing.write import import_data
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance import ink_import
from tests.helpers.paths import MEDIUM
from tests.helpers.tiny import tiny_archive

INK = (
    '<ink xmlns="http://www.w3.org/2003/InkML"><annotation type="truth">${}$</annotation>'
    "<trace>10 10, 12 40, 9 70</trace><trace>40 12, 60 44, 80 69</trace></ink>"
)


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Archive, Archive, Path]:
    """Five expressions as published, and what was imported of them: two are equal, one is not, two were left out."""
    archive = open_archive(tiny_archive(tmp_path / "published"))
    (tmp_path / "ink").mkdir()
    for (id_, tokens), more in zip(archive.captions("2014").items(), ("", "", "+ x", r"\frac {", None), strict=True):
        if more is not None:
            (tmp_path / f"ink/{id_}.inkml").write_text(INK.format(" ".join([*tokens, more])))
    import_data(tmp_path / "ink", tmp_path / "a.zip", Choice("2014"))
    return archive, open_archive(tmp_path / "a.zip", trains=False), tmp_path / "a.import.jsonl"


def test_captions_are_compared_by_id(sets: tuple[Archive, Archive, Path]) -> None:
    found = ink_import.compared(*sets, "2014")
    ids = list(sets[0].captions("2014"))
    assert found.row() == {"set": "2014", "n": 5, "equal": 2, "differ": 1, "left_out": 2}
    caption = " ".join(sets[0].captions("2014")[ids[2]])
    assert found.differ == {ids[2]: (caption, f"{caption} + x")}
    assert found.left_out == {"caption has a { without its }": [ids[3]], "no InkML": [ids[4]]}
    page = ink_import.page([found.row()], [found], "a network")
    assert "| 2014 | 5 | 2 | 1 | 2 | – |" in page and "Of all" not in page
    assert f"- 2014, left out, no InkML: {ids[4]}\n" in page


def test_what_is_read_of_one_bitmap_alone_is_counted(sets: tuple[Archive, Archive, Path], monkeypatch) -> None:
    """The same expressions twice, as published and as drawn."""
    archive, imported, _ = sets
    ids = list(imported.captions("2014"))
    right = {True: {*ids[:2]}, False: {*ids[1:]}}  # by whether the bitmaps are the published ones

    def read(recognizer: Any, name: str, split: str, images: dict[str, np.ndarray], truth: Any) -> list[dict[str, Any]]:
        published = all(np.array_equal(image, archive.image(split, id_)) for id_, image in images.items())
        return [{"id": id_, "right": int(id_ in right[published])} for id_ in truth.symlg]

    monkeypatch.setattr(ink_import, "read", read)
    recognizer: Any = type("Named", (), {"name": "a network"})()
    row = ink_import.both_read(recognizer, archive, imported, "2014", 100)
    assert row == {"images": 3, "published": 2, "drawn": 2, "only_published": 1, "only_drawn": 1}
    train = ink_import.Compared("train", 24, {}, {}).row()
    rows = [train, ink_import.Compared("2014", 5, {}, {}).row() | row, train | row | {"drawn": 1, "only_drawn": 0}]
    told = "Of all 6 images 4 are read right as published and 3 as drawn:\n-16.7 points (p = 1.00"
    assert told in ink_import.page(rows, [], "a network")


def test_another_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not CROHME as published; give CoMER's data\.zip"):
        ink_import.from_ink(tiny_archive(tmp_path), MEDIUM, 1, tmp_path)
