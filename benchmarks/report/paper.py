"""The paper's numbers (reference.yaml)."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def reference() -> dict[str, Any]:
    """The paper's numbers, as data."""
    return yaml.safe_load(resources.files("benchmarks.report").joinpath("reference.yaml").read_text())


def model_name(recipe: str) -> str:
    """What the paper's Table 1 calls a recipe; a recipe of one's own keeps its name."""
    return reference()["recipes"].get(recipe, {}).get("table1", recipe)
