"""The paper's numbers (reference.yaml)."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def reference() -> dict[str, Any]:
    """The content of reference.yaml."""
    return yaml.safe_load(resources.files("benchmarks.report").joinpath("reference.yaml").read_text())


def model_name(recipe: str) -> str:
    """A recipe's name in the paper's Table 1, else in Table 2; a custom recipe keeps its own name."""
    names = reference()["recipes"].get(recipe, {})
    return names.get("table1", names.get("table2", recipe))
