"""The paper's numbers (reference.yaml)."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def reference() -> dict[str, Any]:
    """The paper's numbers, as data."""
    return yaml.safe_load(resources.files("benchmarks.report").joinpath("reference.yaml").read_text())
