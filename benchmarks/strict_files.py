"""Files of plain data (.json, .jsonl, .csv), read strictly: what json and csv would repair in silence is refused."""

import csv
import io
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.evaluation import lines
from hmerbench.evaluation.strict import MAX_VALUES, first_twice, most_values
from hmerbench.models.files import one_line, parse_json

LIMITS = {".json": 8 << 20, ".jsonl": 8 << 20, ".csv": 64 << 20}  # in bytes
# what can end a value, and how many there may be: each takes up to 270 bytes of memory, a cell of a table half of that
VALUES = {".json": (",[{", MAX_VALUES), ".jsonl": (",[{", MAX_VALUES), ".csv": (",\r\n", 2 * MAX_VALUES)}


def read_plain(path: Path) -> Any:
    """The value of a .json file, the values of a .jsonl file, or the rows of a .csv file as dicts (None: empty).

    Raises FileNotFoundError, UserError for a pipe, and ValueError, whose text says what is wrong, for anything else:
    also for a key or column that occurs twice, and for a file larger than any of its kind can be.
    """
    text = _text(path)
    if path.suffix == ".json":
        return parse_json(text)
    if path.suffix == ".jsonl":
        return parse_lines(text)
    columns, *rows = _table(text)
    return [{column: cell or None for column, cell in zip(columns, row, strict=True)} for row in rows]


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a .csv file that a command wrote, with "" for empty cells. Raises UserError for a damaged one."""
    try:
        return [{column: cell or "" for column, cell in row.items()} for row in read_plain(path)]
    except ValueError as error:
        raise UserError(f"{path}: damaged ({one_line(error)}); restore it, or make it again") from None


def read_columns(path: Path, *names: str) -> list[tuple[str, ...]]:
    """The cells of some columns of a .csv file, row by row; the same errors."""
    columns, *rows = _table(_text(path))
    if lacking := [name for name in names if name not in columns]:
        raise ValueError(f"there is no column {lacking[0]!r}")
    chosen = [columns.index(name) for name in names]
    return [tuple(row[place] for place in chosen) for row in rows]


def _text(path: Path) -> str:
    refuse_pipe(path)
    if (size := path.stat().st_size) > LIMITS[path.suffix]:
        raise ValueError(f"{size:,} bytes, more than {LIMITS[path.suffix]:,}")
    text, (signs, most) = path.read_text(encoding="utf-8-sig"), VALUES[path.suffix]
    if (count := most_values(text, signs)) > most:
        raise ValueError(f"{count:,} values, more than {most:,}")
    return text


def parse_lines(text: str) -> list[Any]:
    """The values of JSON lines. Raises ValueError with the number of the first line that is wrong."""
    values: list[Any] = []
    for number, line in enumerate(lines(text) if text else (), start=1):
        try:
            values.append(parse_json(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


def _table(text: str) -> list[list[str]]:
    """The columns' names and the rows of a table, which all have as many cells."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = next(filter(None, reader), [])
        if len({*columns}) < len(columns):
            raise ValueError(f"the column {first_twice(columns)[:40]!r} occurs twice")
        table = [columns]
        for row in filter(None, reader):
            if len(row) != len(columns):
                raise ValueError(f"line {reader.line_num}: {len(row)} fields under {len(columns)} columns")
            table.append(row)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return table
