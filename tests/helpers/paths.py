"""Paths of the checkout and of the data that may lie next to it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CROHME = Path(os.environ.get("CROHME", SHARED / "crohme/data.zip"))
INK = CROHME.parent / "inkml/train.zip"  # the pen strokes of its training set
MEDIUM = ROOT / "results/reproduced/comer-fusion/medium-seed7"  # a committed run with weights
FIXTURES = ROOT / "tests/fixtures"  # reference data that may be redistributed
_GIVEN = Path(os.environ.get("PARITY_DIR", SHARED / "parity"))
PARITY = _GIVEN if _GIVEN.is_dir() else FIXTURES / "parity"
SYSTEMS = SHARED / "systems"  # predictions of other systems, never committed
GOLDEN = Path(os.environ.get("GOLDEN_DIR", SHARED / "golden"))
_GIVEN_OTHERS = Path(os.environ.get("PARITY_OTHERS_DIR", SHARED / "parity_others"))
PARITY_OTHERS = _GIVEN_OTHERS if _GIVEN_OTHERS.is_dir() else FIXTURES / "parity_others"
NO_STORE = "http://127.0.0.1:9"  # an address of MLflow where none is: trainings begin without importing it
