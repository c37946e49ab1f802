"""A place in the tokens of a formula, and what every rule of the grammar does there: take, need, skip."""

import re

from hmerbench.evaluation.symlg import latex_commands as tex
from hmerbench.evaluation.symlg.editions import Rules
from hmerbench.evaluation.symlg.graph import MAX_SYMBOLS, Unconverted, bounded

_IGNORED = r"%[^\n]*|\\nonumber(?![^\W\d_])|\\label\s*\{[^}]*\}"
_REST = r"|\\[^\W\d_]+|\\.|'{1,4}|:=|\S"
# pandoc 1.19 reads the name of a bracket also where more letters follow; 2.17 leaves out tags.
_OLDER = re.compile(rf"{_IGNORED}|\\(?:{'|'.join(tex.BRACKET_WORDS)}){_REST}", re.DOTALL)
_NEWER = re.compile(rf"{_IGNORED}|\\tag\s*\*?\{{[^}}]*\}}{_REST}", re.DOTALL)
_LEFT_OUT = re.compile(r"%|\\nonumber|\\label.*\}$|\\tag.*\}$", re.DOTALL)
NUMBER = re.compile(r"[0-9]*\.[0-9]+|[0-9]+")  # may span several tokens, as \frac 12 has two arguments

END = ""
IGNORED = "%"  # stands for every comment, label, tag and \nonumber


class Cursor:
    """The tokens of a formula, and the number of the next. Raises Unconverted for an empty or a too long one."""

    def __init__(self, latex: str, rules: Rules) -> None:
        self.latex = bounded(latex)
        self.reading = rules.reading
        pattern = _NEWER if self.reading.newer_symbols else _OLDER
        found = list(pattern.finditer(latex))
        if not found:
            raise Unconverted("empty expression")
        if len(found) > MAX_SYMBOLS and (count := len(pattern.findall(NUMBER.sub("0", latex)))) > MAX_SYMBOLS:
            raise Unconverted(f"{count} tokens, more than the {MAX_SYMBOLS} that are read")
        self.spans = [match.span() for match in found]
        self.tokens = [*(IGNORED if _LEFT_OUT.match(match[0]) else match[0] for match in found), END]
        self.at = 0

    def failure(self) -> Unconverted:
        """Why the next token does not fit."""
        if self.tokens[self.at] == END:
            return Unconverted("the expression ends too early")
        token = self.latex[slice(*self.spans[self.at])]
        what = "unknown or misplaced command" if token.startswith("\\") and len(token) > 2 else "unexpected"
        return Unconverted(f"{what} {token[:40]} at token {self.at + 1}")

    def take(self, *tokens: str) -> bool:
        """Pass the next token if it is one of these."""
        if self.tokens[self.at] not in tokens or not self.tokens[self.at]:
            return False
        self.at += 1
        return True

    def need(self, token: str) -> None:
        """Pass the next token, which must be this one."""
        if not self.take(token):
            raise self.failure()

    def skip_ignored(self, *others: str) -> None:
        """Pass what pandoc leaves out at most places, and other tokens."""
        while self.tokens[self.at] == IGNORED or self.tokens[self.at] in others:
            self.at += 1

    def glued(self) -> bool:
        """Whether the next token follows the last one without a blank."""
        return self.at < len(self.spans) and self.spans[self.at][0] == self.spans[self.at - 1][1]

    def word(self) -> str:
        """The letters that follow, up to a blank or another character."""
        start = self.at
        while self.tokens[self.at].isalpha() and (self.at == start or self.glued()):
            self.at += 1
        return "".join(self.tokens[start : self.at])
