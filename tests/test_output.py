"""What is printed where the output is not UTF-8: other characters, never an error."""

import os
import subprocess
import sys

import pytest

from hmerbench.benchmarks.runtime import configure_output
from tests.helpers.paths import ROOT


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("latin-1", b"37-41 <= 1, \xb12.0, a->b...? \xe9\xff?"),
        ("ascii", b"37-41 <= 1, +-2.0, a->b...? ?\xff?"),
        ("cp1252", b"37\x9641 <= 1, \xb12.0, a->b\x85? \xe9\xff?"),
        ("utf-8", "37–41 ≤ 1, ±2.0, a→b…∥ é".encode() + b"\xff?"),
    ],
)
def test_every_text_can_be_printed(encoding: str, printed: bytes) -> None:
    """Also names of files that are not UTF-8, whose bytes stay, and halves of pairs, as JSON may hold."""
    configure_output()
    assert "37–41 ≤ 1, ±2.0, a→b…∥ é\udcff\ud800".encode(encoding, "plain") == printed


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_a_command_prints_its_table_in_any_encoding(encoding: str) -> None:
    command = [sys.executable, "-m", "hmerbench", "ls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0 and not done.stderr
    assert ("18–41 core-minutes" if encoding == "utf-8" else "18-41 core-minutes") in done.stdout.decode(encoding)
