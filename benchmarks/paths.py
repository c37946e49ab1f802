"""Folders of the checkout."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
COMMITTED = CHECKOUT / "results/reproduced"  # the committed runs


def here_or_in_checkout(path: str) -> Path:
    """A path as it is given or, where it is relative and nothing is there, in the checkout, if it is there."""
    given, below = Path(path), CHECKOUT / path
    return below if below.exists() and not given.exists() else given
