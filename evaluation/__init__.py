"""Scoring of CROHME predictions: LaTeX -> symLG -> LgEval metrics. Reads files; knows nothing of models."""


class InputError(ValueError):
    """A file or argument that cannot be scored; the message is one line that names it and the fix."""
