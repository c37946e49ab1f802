"""What a training takes from an archive; what the limits leave out is counted."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.training_data import training_data
from hmerbench.models.network import build
from hmerbench.models.weights import pack_weights
from tests.helpers.tiny import tiny_archive, tiny_config


@pytest.mark.parametrize(
    ("limits", "training", "reading"),
    [
        ({}, "", ""),
        (
            {"max_area": 4000},
            "training on 6 of 7 expressions (1 above data.max_area of 4,000 px)",
            "2014: reading 1 of 2 images; counted as missing, above data.max_area of 4,000 px: 1",
        ),
        ({"max_tokens": 3}, "training on 6 of 7 expressions (1 above data.max_tokens of 3)", ""),
    ],
)
def test_what_the_limits_leave_out_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: dict[str, int], training: str, reading: str
) -> None:
    place = tiny_archive(tmp_path / "archive", train=6, test=1)
    for split, caption in {"train": "1 + 2 + x", "2014": "1"}.items():
        with (place / f"data/{split}/caption.txt").open("a") as captions:
            captions.write(f"last\t{caption}\n")
        cv2.imwrite(str(place / f"data/{split}/img/last.bmp"), np.zeros((50, 90), np.uint8))
        next((place / f"data/{split}/symLg").iterdir()).with_stem("last").touch()
    config, archive = tiny_config(place, {"data": limits}), open_archive(place)
    network, run = build(config.model), RunFolder(tmp_path / "run", config)
    training_data(config, archive, None, torch.device("cpu"), network)
    assert counted(capsys) == training
    run.write("best.safetensors", pack_weights(network))
    predict(run, archive, ["2014"])
    assert counted(capsys) == reading


def counted(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said on stderr, but for the images that are unlike CROHME's."""
    return " ".join(line for line in capsys.readouterr().err.splitlines() if "unlike CROHME's" not in line).strip()
