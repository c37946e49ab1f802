"""Folders of the checkout."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
COMMITTED = CHECKOUT / "results/reproduced"  # the committed runs
