"""Errors that are shown to users, and the wording of a GPU's."""

import re

from evaluation import InputError
from models.errors import CheckpointError


class UserError(Exception):
    """Bad input, or a condition that the user can fix.

    Its message is one line that names the file and the fix; `python -m benchmarks` prints it without a traceback.
    """


FAULTS = (UserError, InputError, CheckpointError)  # of a run's files or settings: one line each, without a traceback


class Diverged(UserError):
    """The loss is no longer finite: a fault of the settings, which tuning counts as a result."""


def printable(text: object) -> str:
    """The text as a terminal may print it: control characters, as file names may hold, are written out (\\n, \\x1b)."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], str(text))


def out_of_memory_reason(error: BaseException) -> str:
    """The beginning of torch's out-of-memory message: "CUDA out of memory. Tried to allocate 2.00 GiB"."""
    return ". ".join(str(error).split(". ")[:2]).rstrip(".")
