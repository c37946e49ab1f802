"""The program in this process: as `python -m hmerbench WORDS` prints and ends, but without the time to start it."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from hmerbench.benchmarks.cli.main import main


def hmerbench(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder `cwd`, scored by our own scripts."""
    printed = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd or Path.cwd())
        patch.delenv("LGEVAL_BIN", raising=False)
        patch.setattr(sys, "argv", ["hmerbench", *map(str, words)])
        patch.setattr(sys, "stdout", printed[0])
        patch.setattr(sys, "stderr", printed[1])
        code = main()
    for stream in printed:
        stream.seek(0)
    return subprocess.CompletedProcess([*map(str, words)], code, *(stream.read() for stream in printed))
