"""The one error a user of the drivers is meant to see, and words for a GPU's."""


class UserError(Exception):
    """Bad input or a condition the user can fix.

    Its message is one line that names the file and the fix; `python -m benchmarks` prints it, no traceback.
    """


class Diverged(UserError):
    """A loss that is no longer finite: a fault of the settings, which tuning takes as a result."""


def shortage(error: BaseException) -> str:
    """What torch says of memory that a GPU lacks: "CUDA out of memory. Tried to allocate 2.00 GiB"."""
    return ". ".join(str(error).split(". ")[:2]).rstrip(".")
