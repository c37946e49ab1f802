"""The notebooks: readable without running anything, and what they show is what they do on the embedded set."""

import nbformat
import pytest

from notebooks.execute import executed
from tests.helpers.places import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each cell shows: text, tables, pictures."""
    return [
        [kind for output in cell.get("outputs", ()) for kind in sorted(output.get("data", {output.get("name"): None}))]
        for cell in notebook.cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_does(path, monkeypatch):
    """The same kinds of output in every cell; numbers and strokes may differ in the last digit between machines."""
    monkeypatch.delenv("CROHME", raising=False)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # another backend would disable inline plots
    committed = nbformat.read(path, as_version=4)
    assert kinds(executed(path)) == kinds(committed), "run make notebooks"
    shown = {kind for cell in kinds(committed) for kind in cell}
    assert {"stdout", "image/png"} <= shown
    assert path.stat().st_size < 300_000


def test_all_notebooks_are_found():
    assert len(NOTEBOOKS) == 4
