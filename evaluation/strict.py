"""JSON, YAML and tables, read strictly: what a lenient reader takes in silence is an error that names its place."""

import csv
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import yaml

from hmerbench.evaluation import InputError, printable

MAX_DEPTH = 40  # of lists and mappings within each other; a card has 3, a row of predictions 4
MAX_YAML = 100_000  # characters of a document, whose values take far more memory; a card has 3,000
MAX_ENTRY = 4 << 20  # characters of an entry of JSON; a row of `recognize --json` has a few thousand
MAX_VALUES = 1 << 20  # of an entry: each takes up to 270 bytes
MAX_ENTRIES = 2_000_000  # of a file
csv.field_size_limit(MAX_ENTRY)  # as long as a row of JSON; Python's own limit is 131,072
_WINDOW = 1 << 16  # characters that are read at a time
_BLANKS = re.compile(r"[ \t\r\n]*")


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
        """The value of a node. Raises YAMLError with the line for one that is no value, such as 1999-13-01."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {node.value}: {error}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The keys and values of a mapping. Raises YAMLError for a key that occurs twice."""
        seen = set[Hashable]()
        for key, _ in node.value:
            if not isinstance(name := self.construct_object(key), Hashable):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key that is a list or a mapping")
            if name in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key '{name}' occurs twice; take one out")
            seen.add(name)
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


# What both loaders read alike, and what nests no deeper than it is indented: names, numbers and lists of these
_PLAIN = re.compile(
    r"(( {0,18}(- )?[\w.+-]+:)?( {0,18}([\w.+/-]+( [\w.+/-]+)*|'[\w.+-]*'|\[[^][{}&*!\"'#\n]*\]|\{\}))?\n)*", re.ASCII
)


def parse_yaml(text: str) -> Any:
    """The value of a YAML document. Raises YAMLError, or another ValueError for a date such as 1999-13-01."""
    if len(text) > MAX_YAML:
        raise ValueError(f"longer than {MAX_YAML:,} characters")
    if _PLAIN.fullmatch(text):
        with suppress(yaml.YAMLError):  # whose words are the other loader's
            return yaml.load(text, _FastLoader)
    return yaml.load(text, Loader)


def yaml_of(text: str, where: object) -> Any:
    """The value of a YAML document. Raises InputError, beginning with `where`."""
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        told = printable(" ".join(str(error).split()))
        raise InputError(f"{where}: this is not YAML ({told[:120]}); correct it") from None


def first_twice(names: Iterable[str]) -> str:
    """The first of some names that occurs twice; "" if none does."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise InputError(f"the key {printable(first_twice(key for key, _ in pairs)[:80])} occurs twice")
    return keys


_JSON = json.JSONDecoder(object_pairs_hook=_once)


def json_of(text: str, where: object, fault: str) -> Any:
    """The value of a JSON text. Raises InputError, beginning with `where`: with this `fault` for what is not JSON, and
    for a key that occurs twice or more values than an expression has."""
    _refuse_many(text, where)
    text = text.strip(" \t\r\n")
    with suppress(json.JSONDecodeError):
        value, end = _decoded(text, 0, where, fault)
        if end == len(text):
            return value
    raise InputError(f"{where}: {fault}")


def json_lines(file: IO[str], where: object, fault: str) -> Iterator[tuple[str, Any]]:
    """The place and the value of every JSON line; blank lines are passed. Raises InputError as `json_of` does."""
    number = 0
    while line := file.readline(MAX_ENTRY + 1):
        number += 1
        place = f"{where}, line {number}"
        if len(line) > MAX_ENTRY:
            raise InputError(f"{place}: is longer than {MAX_ENTRY >> 20} million characters; is it one expression?")
        if line.strip():
            yield place, json_of(line, place, fault)


def json_entries(
    file: IO[str], where: object, fault: str, lists: bool = False
) -> Iterator[tuple[str, str | None, Any]]:
    """The place, key and value of every entry of a JSON list, whose keys are None, or of a JSON object. With `lists`,
    those among its values are entered: their entries have no keys, either. One entry is in memory at a time; an empty
    file has none. Raises InputError as `json_of` does."""
    text, keys = _Entries(file, where, fault), set[str]()
    if text.take("["):
        yield from text.entries()
    elif text.take("{") and not text.take("}"):
        while True:
            if not isinstance(key := text.value(where), str) or not text.take(":"):
                raise InputError(f"{where}: {fault}")
            if key in keys:
                raise InputError(f"{where}: the key {printable(key[:80])} occurs twice; take one out")
            keys.add(key)
            if lists and text.take("["):
                yield from text.entries()
            else:
                yield (place := text.place()), key, text.value(place)
            if not text.take(","):
                text.expect("}")
                break
    if text.peek():
        raise InputError(f"{where}: {fault}")


class _Entries:
    """What is left of a JSON text, of which a window is in memory."""

    def __init__(self, file: IO[str], where: object, fault: str):
        self.file, self.where, self.fault = file, where, fault
        self.text, self.at, self.ended, self.number = "", 0, False, 0

    def entries(self) -> Iterator[tuple[str, None, Any]]:
        """The entries of a list that has begun: each one's place, no key, and its value."""
        if self.take("]"):
            return
        while True:
            yield (place := self.place()), None, self.value(place)
            if not self.take(","):
                return self.expect("]")

    def place(self) -> str:
        """The place of the next entry, which is counted."""
        self.number += 1
        if self.number > MAX_ENTRIES:
            raise InputError(f"{self.where}: has more than {MAX_ENTRIES:,} entries; give it in parts")
        return f"{self.where}, entry {self.number}"

    def peek(self) -> str:
        """The next character that is no blank; none at the end."""
        while True:
            self.at = _BLANKS.match(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._read()

    def take(self, character: str) -> bool:
        """Whether the next one is this, which is then passed."""
        found = self.peek() == character
        self.at += found
        return found

    def expect(self, character: str) -> None:
        """Pass this one. Raises InputError for another."""
        if not self.take(character):
            raise InputError(f"{self.where}: {self.fault}")

    def value(self, place: object) -> Any:
        while self.peek():
            with suppress(json.JSONDecodeError):  # it may be cut at the end of the window
                value, end = _decoded(self.text, self.at, place, self.fault)
                if self.ended or end < len(self.text) - len("e+"):  # else a number may go on
                    self.at = end
                    return value
            if self.ended:
                break
            if len(self.text) - self.at > MAX_ENTRY:
                raise InputError(f"{place}: not JSON, or longer than {MAX_ENTRY >> 20} million characters; correct it")
            self._read()
            _refuse_many(self.text, place)
        raise InputError(f"{place}: {self.fault}")

    def _read(self) -> None:
        """Read as much as the window holds, and drop what is passed."""
        self.text = self.text[self.at :]
        read = self.file.read(min(max(_WINDOW, len(self.text)), MAX_ENTRY + 1 - len(self.text)))
        self.text, self.at, self.ended = self.text + read, 0, not read


def _decoded(text: str, at: int, where: object, fault: str) -> tuple[Any, int]:
    """The value that begins at a place of a JSON text, and where it ends. Raises JSONDecodeError, and InputError."""
    try:
        return _JSON.raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except InputError as error:
        raise InputError(f"{where}: {error}; take one out") from None
    except (ValueError, RecursionError):  # also of numbers with thousands of digits
        raise InputError(f"{where}: {fault}") from None


def most_values(text: str, signs: str = ",[{") -> int:
    """How many values a text may hold, by the signs that begin or end one: also those within texts are counted."""
    return sum(map(text.count, signs))


def _refuse_many(text: str, where: object) -> None:
    """Raise InputError if a JSON text may hold more values than memory."""
    if len(text) > MAX_VALUES and most_values(text) > MAX_VALUES:
        raise InputError(f"{where}: holds more than {MAX_VALUES:,} values; is it one expression?")


def rows_of(
    file: IO[str], where: object, delimiter: str = ",", needed: Sequence[Sequence[str]] = (), what: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """The place and the cells, by column, of every row of a table whose first line names the columns; empty lines are
    passed. Of each group in `needed`, one column must be there, or `what` tells which. Raises InputError."""
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        header = next((row for row in reader if row), [])
        if len({*header}) < len(header):
            raise InputError(
                f"{where}: its column {printable(first_twice(header)[:80])} occurs twice; rename or drop one"
            )
        if header and not all(set(names) & set(header) for names in needed):
            shown = printable(", ".join(header)[:80])
            raise InputError(f"{where}: its columns are {shown}; name them {what} in the first line")
        began = reader.line_num + 1
        for row in reader:
            place = f"{where}, line {reader.line_num}"
            swallowed = [line for cell in row for line in cell.split("\n")[1:] if line[:1] != "\t"]
            if delimiter == "\t" and any(0 < line.count("\t") < len(header) for line in swallowed):  # rows
                raise InputError(f"{where}, line {began}: a quotation mark is not closed; close it, or leave it out")
            began = reader.line_num + 1
            if row and len(row) != len(header):
                raise InputError(f"{place}: {len(row)} fields under {len(header)} columns; correct the row")
            if row:
                yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: not a table ({error}); correct it") from None
