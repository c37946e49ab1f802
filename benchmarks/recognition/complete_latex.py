"""Which sequences of tokens are LaTeX that can be set, by the scorer's grammar. Needs nothing but Python: an exported
reader has it, too."""

from collections.abc import Sequence

SPECIAL = ("<pad>", "<sos>", "<eos>")


def is_complete(tokens: Sequence[str]) -> bool:
    """Whether an expression is LaTeX that can be set: groups end, commands and scripts have what they need."""
    try:
        return bool(tokens) and _row(tokens, 0, "") == len(tokens)
    except (IndexError, RecursionError):
        return False


def _row(tokens: Sequence[str], at: int, closer: str) -> int:
    """The place after a row that ends with `closer`, or with the expression. IndexError: it does not end."""
    while at < len(tokens) or closer:
        if tokens[at] == closer:
            return at + 1
        at = _scripts(tokens, _atom(tokens, at))
    return at


def _scripts(tokens: Sequence[str], at: int) -> int:
    at += at < len(tokens) and tokens[at] == r"\limits"
    mark = tokens[at] if at < len(tokens) else ""
    if mark not in ("_", "^"):
        return at
    at = _atom(tokens, at + 1)
    if at < len(tokens) and tokens[at] in ("_", "^") and tokens[at] != mark:
        return _atom(tokens, at + 1)
    return _scripts(tokens, at)


def _atom(tokens: Sequence[str], at: int) -> int:
    token = tokens[at]
    if token == "{":
        return _row(tokens, at + 1, "}")
    if token in ("_", "^"):
        return _scripts(tokens, at)
    if token == r"\frac":
        return _argument(tokens, _argument(tokens, at + 1))
    if token == r"\sqrt":
        return _argument(tokens, _row(tokens, at + 2, "]") if tokens[at + 1] == "[" else at + 1)
    if token in ("}", r"\limits", *SPECIAL):
        raise IndexError
    return at + 1


def _argument(tokens: Sequence[str], at: int) -> int:
    token = tokens[at]
    if token == "{" or (token == "[" and _closes(tokens, at)):
        return _row(tokens, at + 1, "}" if token == "{" else "]")
    if token in ("}", r"\limits", r"\frac", *SPECIAL):
        raise IndexError
    return at + 1


def _closes(tokens: Sequence[str], at: int) -> bool:
    """Whether a ] follows a [ in the same group."""
    depth = 0
    for token in tokens[at + 1 :]:
        depth += (token == "{") - (token == "}")
        if depth < 0:
            return False
        if token == "]" and depth == 0:
            return True
    return False
