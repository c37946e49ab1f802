"""Every notebook runs from its first cell to its last, on the embedded set."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    made = tmp_path / f"{notebook.stem}.ipynb"
    to = ["--to", "notebook", "--output", made, "--execute", "--run-path", ROOT]
    done = subprocess.run(
        [sys.executable, "-m", "jupytext", *map(str, to), str(notebook)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert '"outputs": [\n' in made.read_text()
