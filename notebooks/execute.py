"""Execute the notebooks in place; with CROHME=data.zip, write copies to results/local/notebooks/, as they show CROHME.

python notebooks/execute.py
"""

import os
from pathlib import Path

import nbformat

HERE = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with new outputs, without progress, warnings, and when and by which version it was run."""
    from nbclient import NotebookClient  # begins slowly

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(HERE)}}
    NotebookClient(notebook, timeout=600, record_timing=False, resources=where).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    return notebook


if __name__ == "__main__":
    target = HERE.parent / "results/local/notebooks" if os.environ.get("CROHME") else HERE
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(HERE.glob("*.ipynb")):
        nbformat.write(executed(path), target / path.name)
        print(target / path.name)
