"""The error that users of this package are meant to see."""


class CheckpointError(ValueError):
    """A weights file that cannot be used; the message is one line with the file and the fix."""
