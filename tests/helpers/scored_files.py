"""Small sets of expressions in files, and scores of them."""

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmerbench.evaluation import symlg
from hmerbench.evaluation.scoring import outcome
from hmerbench.evaluation.scoring.score import NO_FIELDS, Score, evaluate
from hmerbench.evaluation.symlg.formula import prediction_file

BIN = outcome.OWN_SCRIPTS
TRUTH = {"e0": "a + b", "e1": "x ^ 2", "e2": r"\frac { a } { b }", "e3": r"\sqrt { a b }"}


def started(script: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    command = [sys.executable, str(BIN / script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line that a failed script writes to stderr."""
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def tex_folder(folder: Path, expressions: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for key, text in expressions.items():
        (folder / f"{key}.txt").write_text(prediction_file(key, text.split()), encoding="utf-8")
    return folder


def lg_folder(folder: Path, expressions: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for key, text in expressions.items():
        (folder / f"{key}.lg").write_text(symlg.lg_text(symlg.from_latex(text), key), encoding="utf-8")
    return folder


def packed(path: Path, splits: Sequence[str], expressions: dict[str, str]) -> Path:
    """A zip in the layout of CROHME's with these expressions in every split."""
    with zipfile.ZipFile(path, "w") as file:
        for split in splits:
            file.writestr(f"data/{split}/caption.txt", "".join(f"{k}\t{t}\n" for k, t in expressions.items()))
            for key, text in expressions.items():
                file.writestr(f"data/{split}/symLg/{key}.lg", symlg.lg_text(symlg.from_latex(text), key))
    return path


def score_files(predictions: Path, truth: str, workdir: Path | None = None, **given: Any) -> Score:
    captions, rules = given.pop("captions", None), given.pop("rules", symlg.PAPER)
    return evaluate(predictions, truth, NO_FIELDS | given, workdir, captions, rules).score
