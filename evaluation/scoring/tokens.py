r"""LaTeX as tokens. The scorer reads `1 2` as two symbols and `12` as one, as the official one does, so predictions
must come as tokens with blanks between them; `tokenize` splits those that do not."""

import re
from collections.abc import Sequence

from hmerbench.evaluation.symlg import Unconverted, formula_in

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)  # a command, an escaped character, any other character


def tokenize(latex: str) -> list[str]:
    r"""Split LaTeX into commands (`\frac`), escaped characters (`\{`) and single characters; blanks are dropped."""
    return _TOKEN.findall(latex)


def untokenized(latex: str) -> bool:
    """Whether some blank-separated part of a LaTeX text is more than one token."""
    return any(len(_TOKEN.findall(part)) > 1 for part in latex.split())


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
