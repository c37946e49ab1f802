"""What the Markdown documents under results/ are written with: templates, and tables."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
import pandas as pd


def from_template(name: str, **content: Any) -> str:
    """The document of templates/NAME. Raises jinja2.UndefinedError for content that the template needs and lacks."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    text = resources.files("hmerbench.benchmarks.report").joinpath("templates", name).read_text("utf-8")
    return environment.from_string(text).render(content)


def markdown(table: pd.DataFrame | Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown, without a line end; cells that a row lacks are empty."""
    return pd.DataFrame(table).fillna("").to_markdown(index=False, disable_numparse=True)
