"""JSON, YAML and tables, read strictly: what a lenient reader takes in silence is an error that names its place."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

import yaml

from hmerbench.evaluation import InputError, printable

MAX_DEPTH = 40  # of lists and mappings within each other; a card has 3, a row of predictions 4


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys, of which YAML would silently keep the last, aliases, of which a few
    lines can make any number of values, and depth that ends in a RecursionError; it reads `NUMBERS`."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node. Raises YAMLError for an alias, and for one too deep."""
        line = self.peek_event().start_mark.line + 1
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"line {line}: an alias; write its value out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"line {line}: more than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node. Raises YAMLError with the line for one that is no value, such as 2014-13-01."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {node.value}: {error}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The keys and values of a mapping. Raises YAMLError for a key that occurs twice."""
        keys: list[Any] = []
        for key, _ in node.value:
            keys.append(self.construct_object(key))
            if keys[-1] in keys[:-1]:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key '{keys[-1]}' occurs twice; take one out")
        return super().construct_mapping(node, deep)


# Decimal notation alone: YAML 1.1 reads 1e-3 as text, but 010 as 8 and 1:30 as 90.
NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0|[1-9][\d_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?((\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+|\d[\d_]*\.\d*|\.\d+|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
}
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in NUMBERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in NUMBERS.items():
    Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


def yaml_of(text: str, where: object) -> Any:
    """The value of a YAML document. Raises InputError, beginning with `where`."""
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        told = printable(" ".join(str(error).split()))
        raise InputError(f"{where}: this is not YAML ({told[:120]}); correct it") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        names = [key for key, _ in pairs]
        raise InputError(f"the key {printable(next(key for key in names if names.count(key) > 1))} occurs twice")
    return keys


_JSON = json.JSONDecoder(object_pairs_hook=_once)


def json_of(text: str, where: object, fault: str) -> Any:
    """The value of a JSON text. Raises InputError, beginning with `where`, for a key that occurs twice and, with this
    `fault`, for what is not JSON."""
    try:
        return _JSON.decode(text)
    except InputError as error:
        raise InputError(f"{where}: {error}; take one out") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: {fault}") from None


def rows_of(
    file: IO[str], where: object, delimiter: str = ",", needed: Sequence[Sequence[str]] = (), what: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """The place and the cells, by column, of every row of a table whose first line names the columns; empty lines are
    passed. Of each group in `needed`, one column must be there, or `what` tells which. Raises InputError."""
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        header = next((row for row in reader if row), [])
        if twice := [name for name in header if header.count(name) > 1]:
            raise InputError(f"{where}: its column {printable(twice[0])} occurs twice; rename or drop one")
        if header and not all(set(names) & set(header) for names in needed):
            shown = printable(", ".join(header)[:80])
            raise InputError(f"{where}: its columns are {shown}; name them {what} in the first line")
        for row in reader:
            place = f"{where}, line {reader.line_num}"
            if row and len(row) != len(header):
                raise InputError(f"{place}: {len(row)} fields under {len(header)} columns")
            if row:
                yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: not a table ({error})") from None
