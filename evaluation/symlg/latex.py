r"""LaTeX -> symLG, in the reading of pandoc 1.19 (its TeX grammar, inline math, then `symlg.Builder`).

    row    = expr*                          up to its closer
    expr   = [\displaystyle] (atom | \operatorname token) [\limits | \nolimits] scripts
    scripts= _ atom ^ atom  |  ^ atom _ atom  |  (_ | ^) expr  |  nothing
    atom   = { row } | symbol | bracket | \frac token token | \sqrt [ row ]? token | ... | scripts on nothing
    token  = symbol | { row } | [ row ] | one character

The parser is a set of generators run by `_run`: where recursive descent would call, it yields. So depth
costs memory, not Python's stack, and the time is linear in the input.
"""

import re
from collections.abc import Generator, Sequence
from typing import Any

from evaluation.symlg.builder import Builder, Fragment, Item, Row
from evaluation.symlg.graph import MAX_SYMBOLS, SymLG, Unconverted
from evaluation.symlg.latex_commands import (
    ACCENTS,
    BRACKETS,
    FRACTIONS,
    LEFT_OUT,
    SCALES,
    SPACES,
    STACKED,
    STYLES,
    SYMBOLS,
    TEXTS,
)

MAX_CHARACTERS = 20 * MAX_SYMBOLS

_TOKEN = re.compile(r"%[^\n]*|\\[^\W\d_]+|\\.|[0-9]*\.[0-9]+|[0-9]+|'{1,4}|:=|\S", re.DOTALL)
_END = ""

_ONLY_IN_EXPR = (r"\operatorname", r"\displaystyle")

DROPPED = Item(-1, -1)  # what is left out; no symbol has the number -1

Parser = Generator[Any, Any, Fragment]


def from_latex(latex: str | Sequence[str]) -> SymLG:
    """The symLG of an expression (a text, or its tokens). Raises Unconverted with the reason; never anything else."""
    if not isinstance(latex, str):
        latex = " ".join(latex)
    if len(latex) > MAX_CHARACTERS:
        raise Unconverted(f"{len(latex)} characters, more than the {MAX_CHARACTERS} that are read")
    tokens = _TOKEN.findall(latex)
    if not tokens:
        raise Unconverted("empty expression")
    if len(tokens) > MAX_SYMBOLS:
        raise Unconverted(f"{len(tokens)} tokens, more than the {MAX_SYMBOLS} that are read")
    if "$" in tokens:
        raise Unconverted("a $ ends the formula")
    reader = _Reader(tokens)
    return reader.builder.graph(_run(reader.formula()))


# pandoc's inline math: no blank inside the dollars, no digit after them, no backslash before.
_MATH = re.compile(r"(?<!\\)\$(?=[^\s$])((?:\\.|[^\\$])*)(?<=\S)\$(?!\d)", re.DOTALL)


def formula_in(text: str) -> str:
    """The LaTeX in a prediction file: the first $...$ after the title block (`%ID`) that pandoc takes off."""
    lines = text.split("\n")
    while lines and lines[0].startswith("%"):
        del lines[0]
    body = "\n".join(lines)
    match = _MATH.search(body)
    if match is None:
        raise Unconverted("empty prediction" if body.strip() in ("$$", "") else "no $...$ formula in the file")
    return match[1]


def _run(parser: Parser) -> Fragment:
    stack, value = [parser], None
    while True:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as stop:
            stack.pop()
            value = stop.value
            if not stack:
                return value


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, _END]
        self.at = 0
        self.builder = Builder()

    def fail(self) -> Unconverted:
        token = self.tokens[self.at]
        if not token:
            return Unconverted("the expression ends too early")
        where = f"token {self.at + 1}"
        if token.startswith("\\") and len(token) > 2:
            return Unconverted(f"unknown or misplaced command {token[:40]} at {where}")
        return Unconverted(f"unexpected {token[:40]} at {where}")

    def take(self, token: str) -> bool:
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def need(self, token: str) -> None:
        if not self.take(token):
            raise self.fail()

    def skip_comments(self) -> None:
        while self.tokens[self.at].startswith("%"):
            self.at += 1

    # --- rows ---------------------------------------------------------------------------------------------

    def formula(self) -> Parser:
        self.skip_comments()
        parts = yield from self.exprs((_END,))
        if parts == [DROPPED]:
            raise Unconverted("nothing is left of the expression (only styled text or space)")
        return self.row_of(parts)

    def row(self, closer: str) -> Parser:
        """The rest of a group whose opener has been read."""
        parts = yield from self.exprs((closer,))
        self.need(closer)
        return parts[0] if len(parts) == 1 else self.row_of(parts)

    def exprs(self, closers: tuple[str, ...]) -> Generator[Any, Any, list[Fragment]]:
        parts: list[Fragment] = []
        tokens = self.tokens
        while (token := tokens[self.at]) not in closers:
            # Most tokens are plain symbols without scripts: no generator for those.
            if (text := self.plain(token)) is not None and not tokens[self.at + 1].startswith(_STRUCTURAL):
                self.at += 1
                parts.append(self.builder.symbol(text))
            else:
                parts.append((yield self.expr()))
            self.skip_comments()
        return parts

    @staticmethod
    def row_of(parts: list[Fragment]) -> Row:
        return Row([part for part in parts if part is not DROPPED])

    # --- expr, scripts, atom, token -----------------------------------------------------------------------

    def expr(self) -> Parser:
        self.take(r"\displaystyle")
        base = yield (self.operator_name() if self.take(r"\operatorname") else self.atom())
        return (yield self.scripts(base, self.limits()))

    def limits(self) -> bool:
        if self.take(r"\limits"):
            return True
        self.take(r"\nolimits")
        return False

    def scripts(self, base: Fragment, limits: bool) -> Parser:
        mark = self.tokens[self.at]
        if mark not in ("_", "^"):
            return base
        self.at += 1
        if self.tokens[self.at] in _ONLY_IN_EXPR:
            script = yield self.expr()
        else:
            script = yield self.atom()
            other = "^" if mark == "_" else "_"
            if self.tokens[self.at] == other and self.tokens[self.at + 1] not in _ONLY_IN_EXPR:
                self.at += 1
                second = yield self.atom()
                pair = [script, second] if mark == "_" else [second, script]
                return self.script("munderover" if limits else "msubsup", [base, *pair])
            script = yield self.scripts(script, self.limits())
        tag = ("munder" if limits else "msub") if mark == "_" else ("mover" if limits else "msup")
        return self.script(tag, [base, script])

    def script(self, tag: str, parts: list[Fragment]) -> Fragment:
        return self.builder.script(tag, [part for part in parts if part is not DROPPED])

    def plain(self, token: str) -> str | None:
        """The text of a token that is a symbol wherever it stands."""
        if len(token) == 1 and (token.isalpha() or not token.isascii()):
            return token
        if token[:1].isdigit() or token[:1] == ".":
            return token
        return SYMBOLS.get(token) or BRACKETS.get(token)

    def atom(self) -> Parser:
        token = self.tokens[self.at]
        if (text := self.plain(token)) is not None:
            self.at += 1
            part: Fragment = self.builder.symbol(text)
        elif token in ("_", "^"):
            part = yield self.scripts(self.builder.symbol(""), False)
        elif token in SPACES:
            self.at += 1
            part = DROPPED
        else:
            part = yield self.command(token)
        self.skip_comments()
        return part

    def command(self, token: str) -> Parser:
        start = self.at
        self.at += 1
        mark = self.builder.mark()
        if token == "{":
            return (yield self.row("}"))
        if token in FRACTIONS:
            bar = self.builder.symbol("-", bare=True)
            parts = [(yield self.token()), (yield self.token())]
            fraction = self.builder.fraction(bar, [part for part in parts if part is not DROPPED])
            return fraction if token == r"\frac" else self.left_out(mark)
        if token in (r"\sqrt", r"\surd"):
            sign = self.builder.symbol(r"\sqrt", bare=True)
            index = [(yield self.row("]"))] if self.take("[") else []
            parts = [(yield self.token()), *index]
            return self.builder.root(sign, [part for part in parts if part is not DROPPED], bool(index))
        if token == r"\left":
            return (yield self.delimited())
        if token in ACCENTS:
            base = yield self.token()
            return self.script("mover", [base, self.builder.symbol(ACCENTS[token])])
        if token in STACKED:
            above, base = (yield self.token()), (yield self.token())
            return self.script(STACKED[token], [base, above])
        if token in SCALES and self.tokens[self.at] in BRACKETS:
            self.at += 1
            return self.builder.symbol(BRACKETS[self.tokens[self.at - 1]])
        if token in STYLES or token == r"\ensuremath":
            self.need("{")
            content = yield self.row("}")
            return content if token == r"\ensuremath" else self.left_out(mark)
        if token in LEFT_OUT:
            yield self.token()
            return self.left_out(mark)
        if token in TEXTS:
            self.skip_text()
            return DROPPED
        self.at = start
        raise self.fail()

    def left_out(self, mark: tuple[int, int]) -> Item:
        self.builder.forget(mark)
        return DROPPED

    def token(self) -> Parser:
        """An argument without braces is one symbol or one character."""
        token = self.tokens[self.at]
        self.at += 1
        if token in SYMBOLS:
            return self.builder.symbol(SYMBOLS[token])
        if token in (r"\sqrt", r"\surd"):
            return self.builder.symbol("√")
        if token in SPACES:
            return DROPPED
        if token in ("{", "["):
            return (yield self.row("}" if token == "{" else "]"))
        if token in ("", "}") or token[0] in "\\%":
            self.at -= 1
            raise self.fail()
        if len(token) > 1:  # 12 is two arguments
            self.at -= 1
            self.tokens[self.at] = token[1:]
        return self.builder.symbol(token[0])

    def delimited(self) -> Parser:
        r"""\left ( ... \right ): the brackets are symbols of a row; \right may be missing."""
        opening = self.fence()
        parts = yield from self.exprs((_END, "}", r"\right"))
        closing = self.fence() if self.take(r"\right") else []
        return self.row_of([*opening, *parts, *closing])

    def fence(self) -> list[Fragment]:
        if self.take("."):
            return []
        text = BRACKETS.get(self.tokens[self.at])
        if text is None:
            raise self.fail()
        self.at += 1
        return [self.builder.symbol(text)]

    def operator_name(self) -> Parser:
        r"""\operatorname { l i m }: its letters are the name of one symbol."""
        self.take("*")
        start, mark = self.at, self.builder.mark()
        yield self.token()
        inner = [token for token in self.tokens[start : self.at] if token not in ("{", "}", "[", "]")]
        if self.builder.mark()[1] > mark[1]:
            raise Unconverted(r"\operatorname of something other than a name")
        self.builder.forget(mark)
        return self.builder.symbol("".join(SYMBOLS.get(token, token) for token in inner))

    def skip_text(self) -> None:
        self.need("{")
        depth = 1
        while depth:
            token = self.tokens[self.at]
            if not token:
                raise self.fail()
            depth += (token == "{") - (token == "}")
            self.at += 1


_STRUCTURAL = ("_", "^", r"\limits", r"\nolimits", "%")  # a comment may stand before a script
