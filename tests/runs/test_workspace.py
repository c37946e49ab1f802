"""What commands say can be pasted into a shell, and where data of one's own lie is remembered."""

import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from hmerbench.benchmarks.runs.workspace import last_own, remember, report_command


@pytest.mark.parametrize("name", ["plain", "two words", "a 'quoted' $name"])
def test_paths_in_a_command_are_one_word_each(name):
    archive, results = Path(f"{name}.zip"), Path(name)
    command = report_command(SimpleNamespace(path=archive), results)  # type: ignore[arg-type]
    assert shlex.split(command) == ["make", "report", f"CROHME={archive}", f"RESULTS={results}"]
    assert shlex.split(report_command(SimpleNamespace(path=archive), Path("results")))[2:] == [f"CROHME={archive}"]  # type: ignore[arg-type]


def test_a_path_that_is_not_utf_8_is_remembered(tmp_path):
    place = tmp_path / os.fsdecode(b"gr\xf6\xdfe.zip")
    remember(SimpleNamespace(path=place, name="mine"), tmp_path)  # type: ignore[arg-type]
    assert last_own(tmp_path) == place
