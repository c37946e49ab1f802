"""Files of plain data (.json, .jsonl, .csv) and of settings (.yaml), read strictly: what json, csv and yaml would
repair in silence is refused. And keys of settings, in sections or by full name, validated as settings: what is wrong is
said in one line, with the key that was probably meant."""

import difflib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.evaluation import lines
from hmerbench.evaluation.strict import MAX_VALUES, MAX_YAML, NUMBERS, most_values, parse_yaml, rows_of
from hmerbench.models.files import first_fault, one_line, parse_json
from hmerbench.models.settings import NETWORKS, UNNAMED, settings_class

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
        values: list[Any] = []
        for number, line in enumerate(lines(text) if text else (), start=1):
            try:
                values.append(parse_json(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return values
    rows = rows_of(io.StringIO(text, newline=""), "the table")
    return [{column: cell or None for column, cell in row.items()} for _, row in rows]


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


# ---------------------------------------------------------------------------------------------------------------- YAML


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which would be read as a number."""


for _tag, _pattern in NUMBERS.items():
    _Dumper.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


def to_yaml(keys: Mapping[str, Any]) -> str:
    """YAML from which `read_yaml` gets the same keys and values."""
    return yaml.dump(dict(keys), Dumper=_Dumper, sort_keys=False)


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


# --------------------------------------------------------------------------------------------- settings


Settings = TypeVar("Settings", bound=BaseModel)


def network_of(model: object) -> str:
    """The network that keys of a model name; UNNAMED if they name none, or an unusable one, to be refused later."""
    with suppress(ValueError):
        if isinstance(model, Mapping) and (settings := settings_class(model.get("network"))):
            return settings.network
    return UNNAMED


def validate(model: type[Settings], keys: Mapping[str, Any], source: str) -> Settings:
    """Validate `keys` as a `model`, such as Config.

    Raises UserError, beginning with `source`, for the first fault; for an unknown key, it suggests the closest one.
    """
    try:  # through JSON: strict types, but YAML's lists are accepted as tuples
        return model.model_validate_json(json.dumps(keys, default=str))
    except ValidationError as error:
        first, count, fault = error.errors()[0], error.error_count(), first_fault(error)
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            where = ".".join(map(str, first["loc"]))
            nearest = _nearest(where, list(schema(model, network_of(keys.get("model", {})))))
            hint = f"; did you mean {nearest}?" if nearest else ""
            if nearest == where:  # written with dots, as on the command line
                hint = f"; write `{where.replace('.', ': {')}: …{'}' * where.count('.')}`"
            fault = f"{where}: no such key{hint}"
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise UserError(f"{source}: {fault}{more}") from None


def schema(model: type[BaseModel], network: str = UNNAMED) -> dict[str, dict[str, Any]]:
    """JSON schema of every key and section, by full name (training.optimizer.lr); the model has those of `network`."""
    whole, settings = model.model_json_schema(), TypeAdapter(NETWORKS[network]).json_schema()
    for kind in NETWORKS[network].__mro__:  # pydantic leaves out the docstrings of inherited settings
        for name, field in getattr(kind, "__pydantic_fields__", {}).items():
            if field.description:
                settings["properties"][name]["description"] = field.description

    def fields(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in section["properties"].items():
            yield prefix + name, field
            if prefix + name == "model" and "$ref" not in field:  # of any network
                yield from fields(settings, "model.")
            for part in (field, *field.get("anyOf", ())):
                if "$ref" in part:
                    yield from fields(whole["$defs"][part["$ref"].rpartition("/")[2]], f"{prefix}{name}.")

    return dict(fields(whole, ""))


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The most similar key, among siblings first, then anywhere; those of a network resemble no others."""
    section, _, key = name.rpartition(".")
    siblings = {full.rpartition(".")[2]: full for full in names if full.rpartition(".")[0] == section}
    anywhere = {full.rpartition(".")[2]: full for full in reversed(names)}
    for known in (siblings,) if section == "model" else (siblings, anywhere):
        if close := difflib.get_close_matches(key, known, 1):
            return known[close[0]]
    return None
