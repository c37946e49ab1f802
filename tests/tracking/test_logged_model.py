"""A run's weights as a model of MLflow, which needs nothing else to read."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from mlflow import MlflowClient

import hmerbench
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.tracking import logged_model
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.runs import logged

ALONE = """
import sys, mlflow, numpy, pandas, PIL.Image
mlflow.set_tracking_uri(sys.argv[1])
model, path = mlflow.pyfunc.load_model("models:/crohme-comer-fusion-medium/1"), sys.argv[2]
gray = numpy.asarray(PIL.Image.open(path).convert("L"))
forms = path, [path, path], pandas.DataFrame({"image": [path]}), gray, [gray]
print(*{latex for form in forms for latex in model.predict(form).latex}, sys.modules["hmerbench"].__file__, sep="\\n")
"""


@pytest.mark.long
def test_mlflow_alone_loads_a_logged_model_and_reads_an_image(
    store: str, client: MlflowClient, tmp_path: Path, monkeypatch
) -> None:
    """From another folder, by the program that was stored with the model, not by this one."""
    monkeypatch.setattr(logged_model, "hmerbench", hmerbench)  # the whole
    folder = shutil.copytree(MEDIUM, tmp_path / "runs/comer-fusion/medium-seed7")
    run_id = logged(folder)
    (tmp_path / "elsewhere").mkdir()
    line = [sys.executable, "-c", ALONE, store, ROOT / "results/figures/circle.png"]
    done = subprocess.run(line, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=300)
    latex, program = done.stdout.splitlines()
    assert latex == "x ^ { 2 } + y ^ { 2 } = r ^ { 2 }" and tmp_path / "mlartifacts" in Path(program).parents
    outputs = client.get_run(run_id).outputs
    assert outputs
    (output,) = outputs.model_outputs
    model, scores = client.get_logged_model(output.model_id), RunFolder(folder).scores
    rates = {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics or []}
    for split, score in scores.items():
        assert rates[f"{split}/exprate"] == (score.exprate, f"crohme-{split}")
    assert model.source_run_id == run_id and model.params["d_model"] == "128" and model.tags["seed"] == "7"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["recognize"]]
    (requirements,) = (tmp_path / "mlartifacts/models").rglob("requirements.txt")
    pinned = {line.partition("==")[0] for line in requirements.read_text().splitlines() if "==" in line}
    assert pinned >= {re.split("[^\\w-]", line)[0] for line in needed} | {"mlflow"}
    assert logged(folder) == run_id and len(client.search_logged_models([model.experiment_id])) == 1
