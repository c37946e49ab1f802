"""Replays on the page: what is kept of one that was stopped, and what is counted. In a browser: test_draw.py."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import at_random
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.draw import make as replaying
from hmerbench.benchmarks.export.draw.make import COLUMNS, Replayed, page_of, replay, stored
from hmerbench.evaluation import csv_text
from tests.helpers.paths import ROOT
from tests.helpers.tiny import tiny_archive

COUNT = 4


@pytest.fixture
def crohme_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive with pen strokes of its first test set beside it, and a page that reads every second drawing right."""
    path = tiny_archive(tmp_path / "archive")
    archive = open_archive(path)
    [year, *_] = archive.tests
    (path.parent / "inkml").mkdir()
    (path.parent / f"inkml/{year}.zip").touch()
    monkeypatch.setattr(replaying, "YEAR", year)
    monkeypatch.setattr(replaying, "strokes_of", lambda ink, ids: {id_: [] for id_ in ids})

    @contextmanager
    def opened(path: Path) -> Iterator[tuple[None, float]]:
        yield None, 1.5

    def replayed(page: None, recognizer: Any, drawings: Mapping[str, Any], images: Any) -> Iterator[Replayed]:
        for number, id_ in enumerate(drawings):
            if id_ == recognizer.stops_at:
                raise KeyboardInterrupt
            recognizer.drawn.append(id_)
            right = " ".join(archive.captions(year)[id_])
            yield Replayed(id_, right if number % 2 else "x", right, right, 0.1, 0.5)

    monkeypatch.setattr(replaying, "opened", opened)
    monkeypatch.setattr(replaying, "replayed", replayed)
    return path


def test_a_stopped_replay_goes_on(crohme_like: Path, tmp_path: Path) -> None:
    archive, page, to = open_archive(crohme_like), tmp_path / "index.html", tmp_path / "replayed.md"
    page.write_text("a page")
    ids = at_random(archive.captions(replaying.YEAR), COUNT, replaying.SEED)
    recognizer: Any = SimpleNamespace(name="a stand-in", drawn=[], stops_at=ids[2])
    with pytest.raises(KeyboardInterrupt):
        replay(recognizer, page, crohme_like, COUNT, to)
    assert [row.id for row in stored(tmp_path / "replayed.csv")] == ids[:2] and not to.exists()
    recognizer.stops_at = None
    text = replay(recognizer, page, crohme_like, COUNT, to)
    assert recognizer.drawn == ids and to.read_text() == text
    rows = stored(tmp_path / "replayed.csv")
    assert [(row.page_right, row.command_right, row.opened) for row in rows] == [(0, 1, 1.5), (1, 1, 1.5)] * 2
    assert f"| 2 of {COUNT} |" in text and f"They differ on {ids[0]}, {ids[2]}." in text
    page.write_text("another page")  # of which nothing was drawn yet
    replay(recognizer, page, crohme_like, COUNT, to)
    assert recognizer.drawn == [*ids, *ids]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        Replayed("a", "x , y", '\\frac "', "", 0.25, 1.5, 1, 0, 0, 2.0, 3.5, "abc"),
        Replayed("b", "", "", "", 0, 0),
    ]
    (tmp_path / "replayed.csv").write_text(csv_text(COLUMNS, map(vars, rows)))
    assert stored(tmp_path / "replayed.csv") == rows and stored(tmp_path / "none.csv") == []
    (tmp_path / "replayed.csv").write_text(csv_text(COLUMNS, map(vars, rows)).replace("1.5", "soon"))
    with pytest.raises(UserError, match=r"replayed\.csv: damaged"):
        stored(tmp_path / "replayed.csv")


def test_the_committed_page_tells_its_rows() -> None:
    text, rows = (ROOT / "results/replayed.md").read_text(), stored(ROOT / "results/replayed.csv")
    made = page_of(rows, "comer-fusion, medium, seed 7 (1.3 M parameters)", 0).splitlines()
    told = [line for line in made if line.startswith(("Written by", "| the page", "| read", "| until", "They differ"))]
    assert len(told) >= 7 and set(told) <= {*text.splitlines()}
    assert len(rows) == len({row.id for row in rows}) == 200 and len({row.made for row in rows}) == 1
