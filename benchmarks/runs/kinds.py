"""The kinds of runs: recognizers and language models, told apart by the file of their settings."""

from pathlib import Path

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.language import LanguageRun

AnyRun = RunFolder | LanguageRun
KINDS = (RunFolder, LanguageRun)


def run_in(folder: Path) -> AnyRun:
    """The run in a folder. Without settings it counts as a recognizer's, whose reading says what is missing."""
    return next((kind for kind in KINDS if (folder / kind.FILE).exists()), RunFolder)(folder)
