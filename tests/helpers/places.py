"""Where tests find the checkout, and what may lie beside it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CROHME = Path(os.environ.get("CROHME", SHARED / "crohme/data.zip"))
PARITY = Path(os.environ.get("PARITY_DIR", SHARED / "parity"))
GOLDEN = Path(os.environ.get("GOLDEN_DIR", SHARED / "golden"))
