r"""The grammar of rows, scripts and brackets, read as by pandoc (texmath's TeX reader, inline math).

    row    = expr* [\choose expr*]          up to its closer
    expr   = [\displaystyle] (atom | \operatorname token) [\limits | \nolimits] scripts
    scripts= _ atom ^ atom  |  ^ atom _ atom  |  (_ | ^) expr  |  nothing
    atom   = { row } | symbol | bracket | scripts on nothing | command with its arguments (latex.py)
    token  = symbol | { row } | [ row ] | one character

In the reading of pandoc 2.17 an atom may also be ( row ), [ row ] or | row |, where the bracket has its partner in
the same group, and [ row ] is not a token.

The parser is a set of generators run by `run`: where recursive descent would call, it yields, so that depth costs
memory, not Python's stack. An expr depends on its place alone, so exprs and brackets found without a partner are
remembered, and the time stays linear in the input.
"""

import re
from collections.abc import Generator
from typing import Any

from hmerbench.evaluation.symlg import latex_commands as tex
from hmerbench.evaluation.symlg.builder import SPACE, Element, fenced, name_of, row, ungrouped
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

# no expr begins with these
STOPS = (END, "}", r"\right", r"\middle", "&", "\\\\", r"\end", r"\limits", r"\nolimits")

_STRUCTURAL = ("_", "^", r"\limits", r"\nolimits", IGNORED)  # what is ignored may precede a script
_PARTNERS = {"(": ")", "[": "]", "|": "|"}

Parser = Generator[Any, Any, Element]


def run(parser: Parser) -> Element:
    """Run a parser and those that it yields, on a stack of our own."""
    stack: list[Parser] = [parser]
    value: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as stop:
            stack.pop()
            value = stop.value
    return value


class Expressions:
    """Reads everything but commands with a grammar of their own, from the tokens of a formula; `at` is the number of
    the next. Raises Unconverted for an empty or a too long formula."""

    def __init__(self, latex: str, rules: Rules) -> None:
        self.latex = bounded(latex)
        self.newer = rules.reading.newer
        pattern = _NEWER if self.newer else _OLDER
        found = list(pattern.finditer(latex))
        if not found:
            raise Unconverted("empty expression")
        if len(found) > MAX_SYMBOLS and (count := len(pattern.findall(NUMBER.sub("0", latex)))) > MAX_SYMBOLS:
            raise Unconverted(f"{count} tokens, more than the {MAX_SYMBOLS} that are read")
        self.spans = [match.span() for match in found]
        self.tokens = [*(IGNORED if _LEFT_OUT.match(match[0]) else match[0] for match in found), END]
        self.at = 0
        self.symbols = tex.NEWER if self.newer else tex.OLDER
        self.sizes = tex.SIZES if self.newer else tex.SIZES[:1]
        self.only_in_expr = (r"\operatorname", *self.sizes)
        self.closed = self._closed()
        # Kept where brackets are paired: each place's expr with its end; the places that no such closer follows.
        self.memo: dict[int, tuple[int, Element]] = {}
        self.unclosed: dict[str, set[int]] = {closer: set() for closer in _PARTNERS.values()}

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

    def place(self, at: int) -> int:
        """Where a token begins in the LaTeX."""
        return self.spans[at][0]

    def word(self) -> str:
        """The letters that follow, up to a blank or another character."""
        start = self.at
        while self.tokens[self.at].isalpha() and (self.at == start or self.glued()):
            self.at += 1
        return "".join(self.tokens[start : self.at])

    def _closed(self) -> set[int]:
        """The places of each [ that a ] follows in the same group."""
        found: set[int] = set()
        open_groups = [False]  # from the right: is there a ] further on in this group?
        for at, token in reversed([*enumerate(self.tokens)]):
            if token == "}":
                open_groups.append(False)
            elif token == "{" and len(open_groups) > 1:
                open_groups.pop()
            elif token == "]":
                open_groups[-1] = True
            elif token == "[" and open_groups[-1]:
                found.add(at)
        return found

    def command(self, token: str) -> Parser:
        raise NotImplementedError

    def operator_name(self) -> Parser:
        r"""\operatorname { l i m }: its letters are the name of one symbol."""
        self.take("*")
        name = name_of((yield self.token()))
        if name is None:
            raise Unconverted(r"\operatorname of something other than a name")
        return Element("mo", name)

    def group(self, closer: str) -> Parser:
        parts = yield from self.exprs((closer,))
        self.need(closer)
        return row(parts)

    def exprs(self, closers: tuple[str, ...]) -> Generator[Any, Any, list[Element]]:
        parts: list[Element] = []
        tokens = self.tokens
        while (token := tokens[self.at]) not in closers:
            # Most tokens are plain symbols without scripts: these need no generator.
            leaf = self.plain(token)
            if token in tex.CHOICES:
                parts.append(self.choice(parts))
            elif leaf is not None and not tokens[self.at + _width(leaf)].startswith(_STRUCTURAL):
                self.at += _width(leaf)
                parts.append(leaf)
            else:
                parts.append((yield self.expr()))
            self.skip_ignored()
        return chosen(parts)

    def choice(self, parts: list[Element]) -> Element:
        r"""\choose or its like, of which a row has one at most."""
        if any(part.tag == "choice" for part in parts):
            raise self.failure()
        self.at += 1
        return Element("choice", self.tokens[self.at - 1])

    def expr(self) -> Parser:
        start = self.at
        if start in self.memo:
            self.at, element = self.memo[start]
            return element
        self.take(*self.sizes)
        base = yield (self.operator_name() if self.take(r"\operatorname") else self.atom())
        element = yield self.scripts(base)
        if self.newer:
            self.memo[start] = (self.at, element)
        return element

    def scripts(self, base: Element) -> Parser:
        limits = self.take(r"\limits")
        if not limits and not self.take(r"\nolimits"):
            limits = base.tag in ("munder", "mover") and base.children[-1].text in tex.BRACES
        mark = self.tokens[self.at]
        if mark not in ("_", "^"):
            return base
        self.at += 1
        if self.tokens[self.at] in self.only_in_expr:
            script = yield self.expr()
        else:
            script = yield self.atom()
            other = "^" if mark == "_" else "_"
            if self.tokens[self.at] == other and self.tokens[self.at + 1] not in self.only_in_expr:
                self.at += 1
                second = yield self.atom()
                pair = (script, second) if mark == "_" else (second, script)
                return Element("munderover" if limits else "msubsup", "", (base, *pair))
            script = yield self.scripts(script)
        tag = ("munder" if limits else "msub") if mark == "_" else ("mover" if limits else "msup")
        return Element(tag, "", (base, script))

    def plain(self, token: str) -> Element | None:
        """The element of a token that is a symbol in any place, or of the number that begins with it."""
        if token.isdigit() or token == ".":
            if number := NUMBER.match(self.latex, self.spans[self.at][0]):
                return Element("mn", number[0], (), self.place(self.at))
            if token != ".":
                return Element("mn", token, (), self.place(self.at))
        if len(token) == 1 and (token.isalpha() or not token.isascii()):
            return Element("mi", token, (), self.place(self.at))
        if self.newer and token in _PARTNERS:
            return None
        text = self.symbols.anywhere.get(token)
        return None if text is None else Element("mo", text, (), self.place(self.at))

    def atom(self) -> Parser:
        """A symbol, a group, a bracket, a command with its arguments, or scripts on nothing."""
        token = self.tokens[self.at]
        if (leaf := self.plain(token)) is not None:
            self.at += _width(leaf)
            part = leaf
        elif token in ("_", "^"):
            part = yield self.scripts(Element("mi", ""))
        elif token in tex.SPACES:
            self.at += 1
            part = SPACE
        elif token in _PARTNERS:
            part = yield self.paired()
        else:
            argument = token == "{" or (token in self.symbols.accents and token != r"\not")
            part = yield (self.token() if argument else self.command(token))
        self.skip_ignored()
        return part

    def paired(self) -> Parser:
        """A bracket with everything up to its partner, or alone where the group ends first."""
        start, opener = self.at, self.tokens[self.at]
        closer = _PARTNERS[opener]
        unclosed, passed = self.unclosed[closer], [start]
        self.at += 1
        self.skip_ignored()
        sections: list[list[Element]] = [[]]
        while start not in unclosed and self.tokens[self.at] != closer:
            token = self.tokens[self.at]
            stops = (token in STOPS and token != r"\middle") or (token in tex.CHOICES and not sections[-1])
            if self.at in unclosed or stops:
                unclosed.update(passed)
                break
            passed.append(self.at)
            if self.take(r"\middle"):
                sections += [[Element("mo", self.fence())], []]
            elif token in tex.CHOICES:
                sections[-1].append(self.choice(sections[-1]))
            else:
                sections[-1].append((yield self.expr()))
            self.skip_ignored()
        if start in unclosed:
            self.at = start + 1
            return Element("mo", opener, (), self.place(start))
        self.at += 1
        return fenced(opener, [part for section in sections for part in ungrouped(chosen(section))], closer)

    def fence(self) -> str:
        r"""What follows \left, \middle or \right: a bracket, or a dot for none."""
        if self.take("."):
            return ""
        token = self.tokens[self.at]
        text = tex.BRACKETS.get(token) or (tex.ANGLES.get(token) if self.newer else None)
        if text is None:
            raise self.failure()
        self.at += 1
        self.skip_ignored()
        return text

    def is_argument(self, token: str) -> bool:
        """Whether a command is an argument without braces."""
        return token in self.symbols.arguments or token in tex.SPACES

    def token(self) -> Parser:
        """An argument: a group, or without braces one symbol or one character."""
        token = self.tokens[self.at]
        self.at += 1
        if token == "{" or (token == "[" and not self.newer and self.at - 1 in self.closed):
            part = yield self.group("}" if token == "{" else "]")
        elif self.is_argument(token):
            text = None if token in tex.SPACES else self.symbols.arguments[token]
            part = SPACE if text is None else Element("mo", text, (), self.place(self.at - 1))
        elif token in self.symbols.accents:
            place = self.place(self.at - 1)
            self.skip_ignored()
            base = yield self.token()
            tag, mark = self.symbols.accents[token]
            part = Element(tag, "", (base, Element("mo", mark, (), place)))
        elif token in ("", "}", IGNORED) or token[0] == "\\":
            self.at -= 1
            raise self.failure()
        else:
            return Element("mn" if token.isdigit() else "mi", token, (), self.place(self.at - 1))
        self.skip_ignored()
        return part


def chosen(parts: list[Element]) -> list[Element]:
    r"""The parts of a row; with \choose among them, those before it above those after it, in brackets."""
    for at, part in enumerate(parts):
        if part.tag == "choice":
            opening, closing = tex.CHOICES[part.text]
            return [fenced(opening, [Element("mfrac", "", (row(parts[:at]), row(parts[at + 1 :])))], closing)]
    return parts


def _width(leaf: Element) -> int:
    """The number of tokens in a symbol or a number."""
    return len(leaf.text) if leaf.tag == "mn" else 1
