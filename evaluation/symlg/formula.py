r"""The formula of a prediction file, and its tokens.

pandoc reads the file as Markdown. A command outside of math is raw TeX there, and hides the dollars in its arguments.
The scorer reads `1 2` as two symbols and `12` as one, as the official one does, so predictions must come as tokens with
blanks between them; `tokenize` splits those that do not.
"""

import re
from collections.abc import Sequence
from itertools import dropwhile

from hmerbench.evaluation.symlg.graph import Unconverted, bounded

# Inline math: no blank inside the dollars, no digit after them.
_MATH = re.compile(r"\$(?=[^\s$])((?:\\.|[^\\$])*)(?<=\S)\$(?!\d)", re.DOTALL)
_DISPLAYED = re.compile(r"\$\$((?:.|\n(?!\s*\n))+?)\$\$")
_NO_MATH = re.compile(r"[^$\\]+|\\[^\W\d_]+\*?\s*|\\.|[$\\]", re.DOTALL)
_BRACKET = re.compile(r"\\.|[\[{}]|]\s*", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)  # a command, an escaped character, any other character
# The names of environments and the columns of an array stay whole: pandoc reads neither with blanks in it.
_WHOLE = re.compile(
    r"(\\begin)\s*(\{)\s*(array)\s*(\})\s*(\{)\s*([A-Za-z|]+)\s*(\})|(\\begin|\\end)\s*(\{)\s*([A-Za-z]+\*?)\s*(\})"
)


def body_of(text: str) -> str:
    """A prediction file's text without the title block (`%ID`) that pandoc strips."""
    return "\n".join(dropwhile(lambda line: line.startswith("%"), text.split("\n")))


def formula_in(text: str) -> str:
    """The LaTeX in a prediction file: the first $...$ after the title block. Raises Unconverted."""
    body = body_of(bounded(text))
    at, ends = 0, None
    while at < len(body):
        if body[at] == "$" and (match := _DISPLAYED.match(body, at) or _MATH.match(body, at)):
            return match[1]
        word = _NO_MATH.match(body, at)
        assert word is not None  # matches any character
        at = word.end()
        if word[0][0] == "\\" and word[0][1:2].isalpha():
            ends = _argument_ends(body) if ends is None else ends
            for opener in "[{":
                while body[at : at + 1] == opener and at in ends:
                    at = ends[at]
    raise Unconverted("empty prediction" if body.strip() in ("$$", "") else "no $...$ formula in the file")


def _argument_ends(text: str) -> dict[int, int]:
    """Where the argument that begins at each { or [ ends, blanks after a ] included. The argument of a [ may extend
    beyond its group, but skips the groups within."""
    marks = [(match[0][0], match.start(), match.end()) for match in _BRACKET.finditer(text)]
    ends: dict[int, int] = {}
    open_: list[int] = []
    for mark, at, end in marks:
        if mark == "{":
            open_.append(at)
        elif mark == "}" and open_:
            ends[open_.pop()] = end
    after = None  # the next ] to the right
    after_group: dict[int, int | None] = {}  # the same, seen from the end of a group
    for mark, at, end in reversed(marks):
        if mark == "]":
            after = end
        elif mark == "}":
            after_group[end] = after
        elif mark == "{" and at in ends:
            after = after_group[ends[at]]
        elif mark == "[" and after is not None:
            ends[at] = after
    return ends


def formula_of(text: str) -> str:
    """As `formula_in`, but "" where it raises Unconverted."""
    try:
        return formula_in(text)
    except Unconverted:
        return ""


def tokens_of(text: str) -> list[str]:
    """The tokens in a prediction file's text; none if it holds no formula."""
    return formula_of(text).split()


def has_text(text: str) -> bool:
    """Whether a prediction file holds anything besides its title block, blanks and dollars."""
    return any(line.strip("$ \t\r") for line in text.split("\n") if not line.startswith("%"))


def prediction_file(key: str, tokens: Sequence[str]) -> str:
    """The CROHME text form of one prediction."""
    return f"%{key}\n${' '.join(tokens)}$"


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
