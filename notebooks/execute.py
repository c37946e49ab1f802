"""Execute the notebooks in place; with CROHME=data.zip, write copies to results/local/notebooks/, as they show CROHME.

python notebooks/execute.py
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

HERE = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


@contextmanager
def kernel() -> Iterator[Callable[[Path], nbformat.NotebookNode]]:
    """What executes notebooks one after another in a process that imports libraries once; a notebook finds no name of
    those before it, and gets new outputs, without progress, warnings, and when and by which version it was run."""
    from nbclient import NotebookClient  # begins slowly

    client = NotebookClient(
        new_notebook(), timeout=600, record_timing=False, resources={"metadata": {"path": str(HERE)}}
    )

    def executed(path: Path) -> nbformat.NotebookNode:
        forget = new_code_cell("get_ipython().reset()")
        for notebook in (new_notebook(cells=[forget]), nbformat.read(path, as_version=4)):
            client.nb = notebook
            client.reset_execution_trackers()
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index, store_history=cell is not forget)  # the first one is numbered 1
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
        return notebook

    with client.setup_kernel():
        yield executed


if __name__ == "__main__":
    target = HERE.parent / "results/local/notebooks" if os.environ.get("CROHME") else HERE
    target.mkdir(parents=True, exist_ok=True)
    with kernel() as executed:
        for path in sorted(HERE.glob("*.ipynb")):
            nbformat.write(executed(path), target / path.name)
            print(target / path.name)
