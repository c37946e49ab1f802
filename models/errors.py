"""The error that users of this package are meant to see. Loads no torch."""

from pydantic import ValidationError


class CheckpointError(ValueError):
    """A weights file that cannot be used; the message is one line with the file and the fix."""


def one_line(error: object) -> str:
    """The text of an error on one line of at most 200 characters, for use inside a message."""
    if isinstance(error, ValidationError):  # whose own text ends with an address
        first = error.errors()[0]
        error = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
