"""The ground truth of four expressions, as a folder and as an archive."""

from pathlib import Path

import pytest

from tests.helpers.scored_files import TRUTH, lg_folder, packed


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    return lg_folder(tmp_path / "gt", TRUTH)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return packed(tmp_path / "data.zip", ("2014", "train"), TRUTH)
