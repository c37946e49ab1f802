"""The programs of one trained network, for the tests of what they are put into."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hmerbench.benchmarks.export import onnx_files
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.models.stepwise import stepwise


@pytest.fixture(scope="session")
def traced(medium: Recognizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """In place of `onnx_files.programs` for the network `medium`: traced, which takes ten seconds, once for all test
    processes, in the first that asks."""
    import onnx

    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent
    files = [place / f"traced/{part}.onnx" for part in ("encoder", "step")]
    with locked(place / "traced", seconds=600):
        if not all(map(Path.exists, files)):
            for file, program in zip(files, onnx_files.programs(stepwise(medium.model)), strict=True):
                onnx.save(program, file)

    def programs(network: Any) -> list[Any]:
        model: Any = medium.model
        given = network.network.encoder.state_dict()
        assert all(tensor.equal(given[name]) for name, tensor in model.encoder.state_dict().items())
        return [onnx.load(file) for file in files]

    return programs
