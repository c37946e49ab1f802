r"""LaTeX as tokens. The scorer reads `1 2` as two symbols and `12` as one, as the official one does, so predictions
must come as tokens with blanks between them; `tokenize` splits those that do not."""

import re
from collections.abc import Sequence

from hmerbench.evaluation.symlg import Unconverted, formula_in

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)  # a command, an escaped character, any other character
# The names of environments and the columns of an array stay whole: pandoc reads neither with blanks in it.
_WHOLE = re.compile(
    r"(\\begin)\s*(\{)\s*(array)\s*(\})\s*(\{)\s*([A-Za-z|]+)\s*(\})|(\\begin|\\end)\s*(\{)\s*([A-Za-z]+\*?)\s*(\})"
)


def tokenize(latex: str) -> list[str]:
    r"""Split LaTeX into commands (`\frac`), escaped characters (`\{`), names of environments, columns of arrays and
    single characters; blanks are dropped."""
    tokens: list[str] = []
    at = 0
    for match in _WHOLE.finditer(latex):
        tokens += _TOKEN.findall(latex, at, match.start())
        tokens += (part for part in match.groups() if part)
        at = match.end()
    return tokens + _TOKEN.findall(latex, at)


def untokenized(latex: str) -> bool:
    """Whether some blank-separated part of a LaTeX text is more than one token."""
    return any(len(_TOKEN.findall(part)) > 1 for part in _WHOLE.sub(" ", latex).split())


def tokens_of(text: str) -> list[str]:
    """The tokens in a prediction file's text; none if it holds no formula."""
    return formula_of(text).split()


def formula_of(text: str) -> str:
    """The LaTeX in a prediction file's text, "" if it holds no formula."""
    try:
        return formula_in(text)
    except Unconverted:
        return ""


def has_text(text: str) -> bool:
    """Whether a prediction file holds anything besides its title block (`%ID`), blanks and dollars."""
    return any(line.strip("$ \t\r") for line in text.split("\n") if not line.startswith("%"))


def prediction_file(key: str, tokens: Sequence[str]) -> str:
    """The CROHME text form of one prediction."""
    return f"%{key}\n${' '.join(tokens)}$"
