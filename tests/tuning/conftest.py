"""A study on the tiny archive."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.studies import SPACE
from tests.helpers.tiny import tiny_config

LAST = {"select": "last", "training": {"schedule": {"name": "cosine"}}}


@pytest.fixture
def given(archive: Path, tmp_path: Path) -> dict[str, Any]:
    """The options of a study on the tiny archive."""
    tiny_config(archive, LAST)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    files = {"preset": str(archive / "tiny.yaml"), "space": str(tmp_path / "space.yaml")}
    return {"recipe": "comer-fusion", "seed": 7, "crohme": archive, "results": tmp_path} | files
