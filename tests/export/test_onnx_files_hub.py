"""The folder for a model hub."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from hmerbench.benchmarks.config import Start
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export import onnx_files as hub
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.runs.folder import RunFolder
from tests.helpers.paths import MEDIUM, ROOT

KEYS = {"task": {"type", "name"}, "dataset": {"type", "name", "split"}}  # of huggingface_hub's EvalResult


def test_the_card_tells_the_scores_of_the_run(medium: Recognizer) -> None:
    text = hub.card(medium, RunFolder(MEDIUM), "float16")
    _, front, body = text.split("---\n", 2)
    [index] = yaml.safe_load(front)["model-index"]
    for split, result in zip(("2014", "2016", "2019"), index["results"], strict=True):
        stored = json.loads((MEDIUM / f"scores/{split}.json").read_text())
        [metric] = result["metrics"]
        assert {key: set(result[key]) for key in KEYS} == KEYS
        assert metric["value"] == round(stored["exprate"], 2) and metric["args"]["n"] == stored["n"]
        assert metric["args"]["signature"] == stored["signature"] and stored["signature"] in body
        assert f"| CROHME {split} | {stored['n']:,} | {stored['exprate']:.2f} % |" in re.sub(
            " +", " ", body
        )  # columns are aligned
    assert "{" not in body.replace("`", "") and "starting from" not in body
    assert "Trained by hmerbench,\nthe recipe" in body
    assert yaml.safe_load(front)["license"] == hub.LICENSE


def test_the_card_names_the_weights_it_started_from(medium: Recognizer) -> None:
    start = Start(weights="comer-fusion/large-seed7", digest="0123456789abcdef" * 4)
    tuned: Any = SimpleNamespace(model=medium.model, config=medium.config.model_copy(update={"start": start}))
    body = hub.card(tuned, RunFolder(MEDIUM), "float16")
    assert "seed 7, starting from the weights of comer-fusion/large-seed7 (SHA-256 0123456789abcdef…): 1.3 M" in body


def test_the_card_of_an_external_run_does_not_say_that_the_suite_trained_it(medium: Recognizer) -> None:
    external = RunFolder(ROOT / "results/reproduced/bttr/large-seed7")
    body = hub.card(medium, external, "float16")
    assert "Trained wholly or in part by a program that is lost,\nthe recipe" in body and "Trained by" not in body


def test_the_card_of_other_data_says_nothing_of_crohme(medium: Recognizer) -> None:
    own: Any = SimpleNamespace(data="foreign", read_data="foreign", scores=RunFolder(MEDIUM).scores, external=False)
    _, front, body = hub.card(medium, own, "float16").split("---\n", 2)
    said = yaml.safe_load(front)
    assert said["license"] == "other" and "crohme" not in said["tags"]
    assert {result["dataset"]["type"] for result in said["model-index"][0]["results"]} == {"foreign"}
    assert "| foreign 2014 |" in body and "Trained on foreign data, not on CROHME: the terms" in body


def test_what_the_card_needs_is_missed_before_the_export(medium: Recognizer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "hmerbench.benchmarks.report.documents", None)
    with pytest.raises(ModuleNotFoundError):
        hub.write_hub(medium, RunFolder(MEDIUM), tmp_path / "hub", "float32")
    assert not (tmp_path / "hub").exists()


def test_a_run_without_scores_is_refused(medium: Recognizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no scores"):
        hub.write_hub(medium, RunFolder(tmp_path), tmp_path / "hub", "float32")
    assert not (tmp_path / "hub").exists()
