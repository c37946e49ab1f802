"""The paper's numbers (reference.yaml)."""

from functools import cache
from importlib import resources
from typing import Any

from hmerbench.evaluation.datasets import crohme
from hmerbench.evaluation.strict import parse_yaml


@cache
def reference() -> dict[str, Any]:
    return parse_yaml(resources.files("hmerbench.benchmarks.report").joinpath("reference.yaml").read_text("utf-8"))


YEAR = crohme().primary  # the test set of Table 1 and Fig. 3
YEARS: tuple[str, ...] = tuple(reference()["table2"])  # those that the paper reports, of which committed numbers are


def pooled() -> int:
    """The number of expressions of the test sets that the paper reports, together."""
    return crohme().n(*YEARS)


def model_name(recipe: str) -> str:
    """A recipe's name: its own, or that of the paper's Table 1 or Table 2; a custom recipe has the name of its file."""
    names = reference()["recipes"].get(recipe, {})
    return next((names[key] for key in ("name", "table1", "table2") if key in names), recipe)


def rows_of_bttr() -> str:
    """What the rows called BTTR are."""
    return f"{reference()['bttr']} {reference()['bttr_elsewhere']}"


# recipes of the paper's Table 1, worst first
ORDER: tuple[str, ...] = tuple(recipe for recipe, names in reference()["recipes"].items() if "table1" in names)


def position(recipe: str) -> tuple[int, str]:
    """Sort key: the paper's order, then other recipes by name."""
    return ORDER.index(recipe) if recipe in ORDER else len(ORDER), recipe


_told = {model: rates[0] for model, rates in reference()["table2"][YEAR].items()}
REPORTED: dict[str, float] = {  # recipe -> ExpRate on `YEAR` in percent, by the paper's Table 1, or else its Table 2
    recipe: _told[names["table2"]] for recipe, names in reference()["recipes"].items() if names["table2"] in _told
} | {recipe: row["exprate"] for recipe in ORDER for row in reference()["table1"] if row["model"] == model_name(recipe)}
