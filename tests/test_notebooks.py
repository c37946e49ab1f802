"""The notebooks: readable without running anything, and what they show is what they do on the embedded set."""

from collections.abc import Callable, Iterator

import nbformat
import pytest

from notebooks.execute import kernel
from tests.helpers.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def kinds(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """What each cell shows: text, tables, pictures."""
    outputs = [cell.get("outputs", ()) for cell in notebook.cells]
    return [{kind for one in each for kind in one.get("data", {one.get("name"): None})} for each in outputs]


@pytest.fixture(scope="module")
def executed() -> Iterator[Callable]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CROHME", raising=False)
        patch.delenv("MPLBACKEND", raising=False)  # another backend would disable inline plots
        with kernel() as execute:
            yield execute


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_does(path, executed):
    """The same kinds of output in every cell; what a network reads may differ a little between machines."""
    committed = nbformat.read(path, as_version=4)
    assert kinds(executed(path)) == kinds(committed), "run make notebooks"
    assert {"stdout", "image/png"} <= set().union(*kinds(committed))
    assert path.stat().st_size < 300_000


def test_all_notebooks_are_found():
    assert len(NOTEBOOKS) == 4
