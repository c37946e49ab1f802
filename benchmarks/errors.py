"""Errors that are shown to users, and the wording of a GPU's."""


class UserError(Exception):
    """Bad input, or a condition that the user can fix.

    Its message is one line that names the file and the fix; `python -m benchmarks` prints it without a traceback.
    """


class Diverged(UserError):
    """The loss is no longer finite: a fault of the settings, which tuning counts as a result."""


def out_of_memory_reason(error: BaseException) -> str:
    """The beginning of torch's out-of-memory message: "CUDA out of memory. Tried to allocate 2.00 GiB"."""
    return ". ".join(str(error).split(". ")[:2]).rstrip(".")
