"""Files of plain data (.json, .jsonl, .csv) and of settings (.yaml), read strictly: what json, csv and yaml would
repair in silence is refused. And keys of settings, in sections or by full name."""

import csv
import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.evaluation import lines
from hmerbench.evaluation.strict import MAX_VALUES, MAX_YAML, NUMBERS, Loader, first_twice, most_values
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


# ---------------------------------------------------------------------------------------------------------------- YAML


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)

    class _FastLoader(CParser, Loader):
        """The same for `_PLAIN` text, ten times as fast: a thousand runs have as many settings."""

        def __init__(self, text: str):
            CParser.__init__(self, text)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)
else:
    _FastLoader = Loader  # pyright: ignore[reportAssignmentType]


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which `Loader` would read as a number."""


for _tag, _pattern in NUMBERS.items():
    _Dumper.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


# What both loaders read alike, and what nests no deeper than it is indented: names, numbers and lists of these
_PLAIN = re.compile(
    r"(( {0,18}(- )?[\w.+-]+:)?( {0,18}([\w.+/-]+( [\w.+/-]+)*|'[\w.+-]*'|\[[^][{}&*!\"'#\n]*\]|\{\}))?\n)*", re.ASCII
)


def to_yaml(keys: Mapping[str, Any]) -> str:
    """YAML from which `read_yaml` gets the same keys and values."""
    return yaml.dump(dict(keys), Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str) -> Any:
    """The value of a YAML document. Raises YAMLError, or another ValueError for a date such as 1999-13-01."""
    if len(text) > MAX_YAML:
        raise ValueError(f"longer than {MAX_YAML:,} characters")
    if _PLAIN.fullmatch(text):
        with suppress(yaml.YAMLError):  # whose words are the other loader's
            return yaml.load(text, _FastLoader)
    return yaml.load(text, Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises UserError for any other content."""
    refuse_pipe(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            value = parse_yaml(file.read(MAX_YAML + 1))
        json.dumps(value, default=str)  # refuses keys that JSON does not have, such as dates
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; correct the path") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: this is not YAML ({' '.join(str(error).split())}); fix or replace it") from None
    if not isinstance(value, dict | None):
        raise UserError(f"{path}: must hold keys and values, not a {type(value).__name__}")
    return value or {}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `over`, section by section."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"training": {"optimizer": {"lr": 1}}} -> {"training.optimizer.lr": 1}"""
    result = {}
    for key, value in keys.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """{"training.optimizer.lr": 1} -> {"training": {"optimizer": {"lr": 1}}}"""
    result: dict[str, Any] = {}
    for name, value in keys.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        result = merge(result, value)
    return result
