"""A run's weights as an MLflow model, which MLflow alone loads:

    mlflow.pyfunc.load_model("models:/crohme-comer-fusion-small/1").predict("formula.png")

The model is a folder: the run's configuration and weights as they are, and a copy of the program that reads with them.
No object is pickled.
"""

import re
import shutil
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from packaging.requirements import Requirement

import hmerbench
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.runs.folder import RunFolder

ANSWER = {"latex": DataType.string, "confidence": DataType.double, "doubtful": DataType.boolean}


class ImageReader:
    """What `mlflow.pyfunc.load_model` returns has this `predict`."""

    def __init__(self, recognizer: Recognizer):
        self.recognizer = recognizer

    def predict(self, images: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Read images: one or a list of them, each a path or gray (H, W) uint8, or a table of one column of paths.

        Returns one row per image: latex (tokens between spaces), confidence (0 to 1), doubtful. Raises UserError for
        an image that cannot be read.
        """
        if isinstance(images, pd.DataFrame):
            images = images.iloc[:, 0]
        if isinstance(images, str | Path) or (isinstance(images, np.ndarray) and images.dtype == np.uint8):
            images = [images]
        found = [self.recognizer(image) for image in images]
        return pd.DataFrame([(r.latex, r.nbest[0].confidence, r.doubtful) for r in found], columns=list(ANSWER))


def save(run: RunFolder, folder: Path, model_id: str, mlflow_run: str) -> None:
    """Write the model of a trained run to `folder`, with all that it reads with: other networks, a language model."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place, "run")
        data.mkdir()
        for source, name in _files(run.settings, run.path).items():
            (data / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, data / name)
        with warnings.catch_warnings(action="ignore"):  # it asks for an example of an input
            mlflow.pyfunc.save_model(
                folder,
                loader_module=__name__,
                data_path=str(data),
                code_paths=[str(Path(hmerbench.__file__).parent)],
                mlflow_model=Model(run_id=mlflow_run, model_id=model_id),
                signature=ModelSignature(outputs=Schema([ColSpec(type_, name) for name, type_ in ANSWER.items()])),
                pip_requirements=_requirements(),
            )


def _requirements() -> list[str]:
    """What the program needs to read, in the versions that are installed here."""
    own = [Requirement(text) for text in metadata.requires("hmerbench") or ()]
    names = [each.name for each in own if not each.marker or each.marker.evaluate({"extra": "recognize"})]
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in (*names, "mlflow", "pandas")]


def _files(settings: Config, run: Path) -> dict[Path, str]:
    """The files that a run reads with, and their names in the model."""
    search, files = settings.search, {run / name: name for name in ("config.yaml", "best.safetensors")}
    if search.language.weights:
        files[search.language.path] = "language.safetensors"
    for number, weights in enumerate(search.together.weights):
        files |= {weights: f"together{number}/best.safetensors"}
        files |= {weights.with_name("config.yaml"): f"together{number}/config.yaml"}
    return files


def _load_pyfunc(data_path: str) -> ImageReader:
    """Called by MLflow with the place to which `save` copied the run."""
    data, recognizer = Path(data_path), Recognizer.load(data_path)
    moved: dict[str, Any] = {}
    if recognizer.config.search.language.weights:
        moved["search.language.weights"] = str(data / "language.safetensors")
    if others := recognizer.config.search.together.runs:
        moved["search.together.runs"] = [str(data / f"together{number}") for number in range(len(others))]
    recognizer.config = recognizer.config.changed(moved)
    return ImageReader(recognizer)


def model_name(run: RunFolder) -> str:
    """DATA-RECIPE-PRESET, in characters that MLflow takes."""
    return re.sub(r"[^\w-]", "_", f"{run.data}-{run.recipe}-{run.preset}")
