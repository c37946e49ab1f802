"""A folder for a model hub: the network as ONNX with its reader, its words, and a model card; nothing is uploaded.

The card's front matter has the results as `model-index` (huggingface_hub's EvalResult): ExpRate of every test set with
n, interval and signature.
"""

from pathlib import Path
from typing import Any

import yaml

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.onnx_files import write_onnx
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report.documents import from_template, markdown
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.metrics import TABULATED

LICENSE = "cc-by-nc-sa-3.0"  # CROHME's, on which the networks were trained


def write_hub(recognizer: Recognizer, run: RunFolder, folder: Path, weights: str) -> None:
    """Write the files to a folder. Raises UserError for a run without scores, and as `write_onnx`."""
    if not run.scores:
        raise UserError(f"{run.path}: this run has no scores, which a model card tells; score it first")
    write_onnx(recognizer.model, recognizer.config, folder, weights)
    words = recognizer.model.vocabulary.words
    write_atomically(folder / "words.txt", "\n".join(words) + "\n")
    write_atomically(folder / "README.md", card(recognizer, run, weights))


def card(recognizer: Recognizer, run: RunFolder, weights: str) -> str:
    config = recognizer.config
    title = f"{config.recipe}-{config.preset}-seed{config.seed}"
    front = {
        "license": LICENSE,
        "library_name": "onnx",
        "pipeline_tag": "image-to-text",
        "tags": ["handwritten-mathematical-expression-recognition", "latex", "crohme", config.recipe],
        "model-index": [{"name": title, "results": model_index(run)}],
    }
    scores = run.scores
    return from_template(
        "hub.md",
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=200),
        title=title,
        recipe=config.recipe,
        preset=config.preset,
        seed=config.seed,
        start=config.start.told,
        parameters=sum(parameter.numel() for parameter in recognizer.model.parameters()) / 1e6,
        weights=weights,
        scores=markdown(
            [
                {"test set": name_of(split), "n": f"{score.n:,}"}
                | {metric.heading: f"{score.printed(metric)} %" for metric in TABULATED}
                | {"95 % interval": f"{score.ci95[0]:.1f}–{score.ci95[1]:.1f}"}
                for split, score in scores.items()
            ]
        ),
        signatures="\n".join(f"    {score}" for score in scores.values()),
        words=len(recognizer.model.vocabulary.words) - 3,
        license=LICENSE,
    )


def name_of(split: str) -> str:
    return f"CROHME {split}" if split.isdecimal() else split


def model_index(run: RunFolder) -> list[dict[str, Any]]:
    """Results in the form of a model card's front matter."""
    return [
        {
            "task": {"type": "image-to-text", "name": "handwritten mathematical expression recognition"},
            "dataset": {"type": "crohme", "name": name_of(split), "split": split},
            "metrics": [
                {
                    "type": "exprate",
                    "name": "ExpRate",
                    "value": round(score.exprate, 2),
                    "args": {"n": score.n, "ci95": list(score.ci95), "signature": score.signature},
                }
            ],
        }
        for split, score in run.scores.items()
    ]
