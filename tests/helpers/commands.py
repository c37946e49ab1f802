"""Programs in this process: what a command of hmerbench or a script of LgEval prints, without the time to start it."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hmerbench.benchmarks.cli.main import main
from hmerbench.evaluation.lgeval.scripts import SCRIPTS


def hmerbench(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder `cwd`, scored by our own scripts."""
    return _called(lambda _: main(), ["hmerbench", *map(str, words)], cwd)


def script(name: str, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script of LgEval or convert2symLG in the folder `cwd`."""
    return _called(SCRIPTS[name], [name, *map(str, words)], cwd)


def _called(
    program: Callable[[list[str]], int], command: list[str], cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    printed = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd or Path.cwd())
        patch.delenv("LGEVAL_BIN", raising=False)
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "stdout", printed[0])
        patch.setattr(sys, "stderr", printed[1])
        code = program(command[1:])
    for stream in printed:
        stream.seek(0)
    return subprocess.CompletedProcess(command, code, *(stream.read() for stream in printed))
