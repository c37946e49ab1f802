"""Where tests find the checkout, and what may lie beside it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CROHME = Path(os.environ.get("CROHME", SHARED / "crohme/data.zip"))
INK = CROHME.parent / "inkml/train.zip"  # the pen strokes of its training set
FIXTURES = ROOT / "tests/fixtures"  # what may be passed on: enough to check every proof anywhere
PARITY = next(
    folder
    for folder in (Path(os.environ.get("PARITY_DIR", SHARED / "parity")), FIXTURES / "parity")
    if folder.is_dir() or folder.is_relative_to(FIXTURES)
)
GOLDEN = Path(os.environ.get("GOLDEN_DIR", SHARED / "golden"))
