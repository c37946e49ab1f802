"""Files that anybody may have written: JSON read strictly, pickles looked at; the error for users. Loads no torch."""

import json
import math
import pickletools
from collections import Counter
from typing import Any

from pydantic import ValidationError

MAX_VALUES = 1 << 20  # each takes up to 270 bytes of memory


class CheckpointError(ValueError):
    """A weights file that cannot be used; the message is one line with the file and the fix."""


def first_fault(error: ValidationError, start: int = 0) -> str:
    """The first fault, after its location: keys, and list indices, which count from `start`."""
    first = error.errors()[0]
    where = ".".join(str(part + start) if isinstance(part, int) else part for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


def one_line(error: object) -> str:
    """The text of an error on one line of at most 200 characters, for use inside a message."""
    if isinstance(error, ValidationError):  # whose own text ends with an address
        error = first_fault(error)
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises ValueError for anything else, also for a key that occurs twice, of which json would keep the last, for
    numbers that are not finite, for nesting beyond Python's stack, and for more values than a header or file has.
    """
    signs = ",[{" if isinstance(text, str) else (b",", b"[", b"{")  # also those within texts count
    if len(text) > MAX_VALUES and sum(map(text.count, signs)) > MAX_VALUES:  # type: ignore[arg-type]
        raise ValueError(f"more than {MAX_VALUES:,} values")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:40]!r} occurs twice")
    return keys


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def refuse_far_places(content: bytes) -> None:
    """Raise ValueError for a pickle that puts values at places of its memory beyond its length: all are allocated."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError("no pickle that Python wrote")
