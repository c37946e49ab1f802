"""What commands say can be pasted into a shell."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from hmerbench.benchmarks.runs.workspace import report_command


@pytest.mark.parametrize("name", ["plain", "two words", "a 'quoted' $name"])
def test_paths_in_a_command_are_one_word_each(name):
    archive, results = Path(f"{name}.zip"), Path(name)
    command = report_command(SimpleNamespace(path=archive), results)  # type: ignore[arg-type]
    assert shlex.split(command) == ["make", "report", f"CROHME={archive}", f"RESULTS={results}"]
    assert shlex.split(report_command(SimpleNamespace(path=archive), Path("results")))[2:] == [f"CROHME={archive}"]  # type: ignore[arg-type]
