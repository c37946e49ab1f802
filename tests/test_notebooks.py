"""Every notebook runs from the first cell to the last on the embedded set."""

import jupytext
import pytest
from nbclient import NotebookClient

from tests.helpers.places import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch):
    monkeypatch.delenv("CROHME", raising=False)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # another backend would disable inline plots
    notebook = jupytext.read(path)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any(output.get("text") for output in outputs), "nothing was printed"
    assert any("image/png" in output.get("data", {}) for output in outputs), "nothing was drawn"
