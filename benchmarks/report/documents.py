"""What the documents under results/ are written with and read from: templates, Markdown tables, frames of pandas."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.strict_files import read_table


def from_template(name: str, **content: Any) -> str:
    """The document of templates/NAME. Raises jinja2.UndefinedError for content that the template needs and lacks."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    text = resources.files("hmerbench.benchmarks.report").joinpath("templates", name).read_text("utf-8")
    return environment.from_string(text).render(content)


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Write each file atomically; return the paths."""
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def markdown(table: pd.DataFrame | Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown, without a line end; cells that a row lacks are empty."""
    return pd.DataFrame(table).fillna("").to_markdown(index=False, disable_numparse=True)


def read_frame(path: Path, dtype: type | None = None) -> pd.DataFrame:
    """The frame in a .csv file that a command wrote. Raises UserError for what pandas would repair in silence."""
    read_table(path)
    return pd.read_csv(path, dtype=dtype)  # type: ignore[arg-type]
