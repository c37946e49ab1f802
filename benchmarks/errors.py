"""The one error a user of the drivers is meant to see."""


class UserError(Exception):
    """Bad input or a condition the user can fix.

    Its message is one line that names the file and the fix; `python -m benchmarks` prints it, no traceback.
    """


class Diverged(UserError):
    """A loss that is no longer finite: a fault of the settings, which a search takes as a result."""
