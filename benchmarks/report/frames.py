"""Tables of results as frames of pandas, read as strictly as by strict_files.py."""

from pathlib import Path

import pandas as pd

from hmerbench.benchmarks.strict_files import read_table


def read_frame(path: Path, dtype: type | None = None) -> pd.DataFrame:
    """The frame in a .csv file that a command wrote. Raises UserError for what pandas would repair in silence."""
    read_table(path)
    return pd.read_csv(path, dtype=dtype)  # type: ignore[arg-type]
