"""A trained network that reads quickly, for tests of what is around the search."""

import shutil
from pathlib import Path

import pytest

from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.runs.folder import RunFolder
from tests.helpers.paths import MEDIUM


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run MEDIUM, with three beams and one size in place of ten and four: a sixth of the time."""
    folder = tmp_path_factory.mktemp("quick")
    config = RunFolder(MEDIUM).settings.changed({"search.beam_size": 3, "search.scales": [1.0]})
    (folder / "config.yaml").write_text(config.to_yaml())
    shutil.copy(MEDIUM / "best.safetensors", folder)
    return folder


@pytest.fixture(scope="session")
def medium(quick: Path) -> Recognizer:
    return Recognizer.load(quick)
