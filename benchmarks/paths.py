"""Folders of the checkout, and its version."""

import tomllib
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
COMMITTED = CHECKOUT / "results/reproduced"  # the committed runs


def suite_version() -> str:
    """That of the installed suite, else that of the checkout. Raises OSError where there is neither."""
    try:
        return metadata.version("hmerbench")
    except metadata.PackageNotFoundError:
        return tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def here_or_in_checkout(path: str) -> Path:
    """A path as it is given or, where it is relative and nothing is there, in the checkout, if it is there."""
    given, below = Path(path), CHECKOUT / path
    return below if below.exists() and not given.exists() else given
