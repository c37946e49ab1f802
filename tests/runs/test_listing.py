"""Removing a run: as a whole, or not at all for whoever lists runs."""

import shutil
from pathlib import Path

import pytest

from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.tracking import track as tracking
from tests.helpers.runs import put_run


def test_a_removal_that_is_killed_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its last test set, say, it would be listed as a run that was scored on the others."""
    monkeypatch.setattr(tracking, "with_store", lambda *_: True)
    first, second = (put_run(tmp_path / "runs", "bttr", seed=seed) for seed in (7, 8))

    class Killed(BaseException):
        pass

    def killed(folder: Path) -> None:
        next(Path(folder).glob("scores/*.json")).unlink()
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "rmtree", killed)
        tracking.remove(first)
    assert [run["folder"] for run in listing.runs(tmp_path)] == [str(second)]
    assert tracking.remove(second) and not [*second.parent.iterdir()]  # with what the first had left
