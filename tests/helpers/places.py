"""Paths of the checkout and of the data that may lie next to it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CROHME = Path(os.environ.get("CROHME", SHARED / "crohme/data.zip"))
INK = CROHME.parent / "inkml/train.zip"  # the pen strokes of its training set
FIXTURES = ROOT / "tests/fixtures"  # reference data that may be redistributed
PARITY = next(
    folder
    for folder in (Path(os.environ.get("PARITY_DIR", SHARED / "parity")), FIXTURES / "parity")
    if folder.is_dir() or folder.is_relative_to(FIXTURES)
)
GOLDEN = Path(os.environ.get("GOLDEN_DIR", SHARED / "golden"))
