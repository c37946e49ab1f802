"""YAML files of settings, read strictly and written so that they are read alike; keys in sections, and by full name."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.evaluation.strict import MAX_YAML, NUMBERS, Loader

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
