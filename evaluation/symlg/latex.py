r"""LaTeX -> symLG: read as by pandoc (texmath's TeX reader, inline math), converted as by convert2symLG.

    row    = expr*                          up to its closer
    expr   = [\displaystyle] (atom | \operatorname token) [\limits | \nolimits] scripts
    scripts= _ atom ^ atom  |  ^ atom _ atom  |  (_ | ^) expr  |  nothing
    atom   = { row } | symbol | bracket | \frac token token | \sqrt [ row ]? token | ... | scripts on nothing
    token  = symbol | { row } | [ row ] | one character

In the reading of pandoc 2.17 an atom may also be ( row ), [ row ] or | row |, where the bracket has its partner in
the same group, and [ row ] is not a token.

The parser is a set of generators run by `_run`: where recursive descent would call, it yields, so that depth costs
memory, not Python's stack. An expr depends on its place alone, so exprs and brackets found without a partner are
remembered, and the time stays linear in the input.
"""

import re
from collections.abc import Generator, Sequence
from itertools import dropwhile
from typing import Any

from hmerbench.evaluation.symlg import latex_commands as tex
from hmerbench.evaluation.symlg.builder import Element, graph_of
from hmerbench.evaluation.symlg.editions import PAPER, Rules
from hmerbench.evaluation.symlg.graph import MAX_SYMBOLS, SymLG, Unconverted

MAX_CHARACTERS = 20 * MAX_SYMBOLS

_TOKEN = re.compile(r"%[^\n]*|\\[^\W\d_]+|\\.|'{1,4}|:=|\S", re.DOTALL)
_NUMBER = re.compile(r"[0-9]*\.[0-9]+|[0-9]+")  # may span several tokens, as \frac 12 has two arguments
_END = ""

_ONLY_IN_EXPR = (r"\operatorname", r"\displaystyle")
_STOPS = (_END, "}", r"\right", "&", "\\\\", r"\end", r"\limits", r"\nolimits")  # no expr begins with these
_STRUCTURAL = ("_", "^", r"\limits", r"\nolimits", "%")  # a comment may precede a script
_LOOSE = ("array", "eqnarray")  # a blank may separate \\\\ from its [height]
_PARTNERS = {"(": ")", "[": "]", "|": "|"}

DROPPED = Element("mspace")  # stands for whatever is left out

Parser = Generator[Any, Any, Element]


def from_latex(latex: str | Sequence[str], rules: Rules = PAPER) -> SymLG:
    """The symLG of an expression (a text, or its tokens). Raises only Unconverted, with the reason."""
    if not isinstance(latex, str):
        latex = " ".join(latex)
    if len(latex) > MAX_CHARACTERS:
        raise Unconverted(f"{len(latex)} characters, more than the {MAX_CHARACTERS} that are read")
    if "$" in latex:
        latex = formula_in(f"${latex}$")
    found = list(_TOKEN.finditer(latex))
    if not found:
        raise Unconverted("empty expression")
    if len(found) > MAX_SYMBOLS and (count := len(_TOKEN.findall(_NUMBER.sub("0", latex)))) > MAX_SYMBOLS:
        raise Unconverted(f"{count} tokens, more than the {MAX_SYMBOLS} that are read")
    reader = _Reader(latex, found, rules)
    return graph_of(_run(reader.formula()), edition=rules.edition)


# pandoc's inline math: no blank inside the dollars, no digit after them.
_MATH = re.compile(r"\$(?=[^\s$])((?:\\.|[^\\$])*)(?<=\S)\$(?!\d)", re.DOTALL)
_DISPLAYED = re.compile(r"\$\$((?:.|\n(?!\s*\n))+?)\$\$")
_NO_MATH = re.compile(r"[^$\\]+|\\[^\W\d_]+\*?\s*|\\.|[$\\]", re.DOTALL)
_BRACKET = re.compile(r"\\.|[\[{}]|]\s*", re.DOTALL)


def formula_in(text: str) -> str:
    """The LaTeX in a prediction file: the first $...$ after the title block (`%ID`) that pandoc strips."""
    body = "\n".join(dropwhile(lambda line: line.startswith("%"), text.split("\n")))
    at, ends = 0, None
    while at < len(body):
        if body[at] == "$" and (match := _DISPLAYED.match(body, at) or _MATH.match(body, at)):
            return match[1]
        word = _NO_MATH.match(body, at)
        assert word is not None  # matches any character
        at = word.end()
        if word[0][0] == "\\" and word[0][1:2].isalpha():
            # A command outside of math is raw TeX, including its options, its arguments and all dollars in them.
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


def _run(parser: Parser) -> Element:
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


class _Reader:
    def __init__(self, latex: str, found: Sequence[re.Match[str]], rules: Rules) -> None:
        self.latex = latex
        self.spans = [match.span() for match in found]
        self.tokens = [*(match[0] for match in found), _END]
        self.at = 0
        self.reading = rules.reading
        self.symbols = tex.NEWER if rules.reading.newer_symbols else tex.OLDER
        self.closed = self._closed()
        # Kept where brackets are paired: each place's expr with its end; the places that no such closer follows.
        self.memo: dict[int, tuple[int, Element]] = {}
        self.unclosed: dict[str, set[int]] = {closer: set() for closer in _PARTNERS.values()}

    def _closed(self) -> set[int]:
        """The places of each [ that a ] follows in the same group."""
        found: set[int] = set()
        open_groups = [False]  # from the right: is there a ] further on in this group?
        for at in range(len(self.tokens) - 1, -1, -1):
            token = self.tokens[at]
            if token == "}":
                open_groups.append(False)
            elif token == "{" and len(open_groups) > 1:
                open_groups.pop()
            elif token == "]":
                open_groups[-1] = True
            elif token == "[" and open_groups[-1]:
                found.add(at)
        return found

    def failure(self) -> Unconverted:
        token = self.tokens[self.at]
        if not token:
            return Unconverted("the expression ends too early")
        what = "unknown or misplaced command" if token.startswith("\\") and len(token) > 2 else "unexpected"
        return Unconverted(f"{what} {token[:40]} at token {self.at + 1}")

    def take(self, token: str) -> bool:
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def need(self, token: str) -> None:
        if not self.take(token):
            raise self.failure()

    def skip_comments(self) -> None:
        while self.tokens[self.at].startswith("%"):
            self.at += 1

    # --- rows ---------------------------------------------------------------------------------------------

    def formula(self) -> Parser:
        self.skip_comments()
        parts = yield from self.exprs((_END,))
        if parts == [DROPPED]:
            raise Unconverted("nothing is left of the expression (only styled text or space)")
        return row(parts)

    def group(self, closer: str) -> Parser:
        """The rest of a group whose opener has been read."""
        parts = yield from self.exprs((closer,))
        self.need(closer)
        return row(parts)

    def exprs(self, closers: tuple[str, ...]) -> Generator[Any, Any, list[Element]]:
        parts: list[Element] = []
        tokens = self.tokens
        while (token := tokens[self.at]) not in closers:
            # Most tokens are plain symbols without scripts: these need no generator.
            leaf = self.plain(token)
            if leaf is not None and not tokens[self.at + _width(leaf)].startswith(_STRUCTURAL):
                self.at += _width(leaf)
                parts.append(leaf)
            else:
                parts.append((yield self.expr()))
            self.skip_comments()
        return parts

    # --- expr, scripts, atom, token -----------------------------------------------------------------------

    def expr(self) -> Parser:
        start = self.at
        if start in self.memo:
            self.at, element = self.memo[start]
            return element
        self.take(r"\displaystyle")
        base = yield (self.operator_name() if self.take(r"\operatorname") else self.atom())
        element = yield self.scripts(base)
        if self.reading.pairs_brackets:
            self.memo[start] = (self.at, element)
        return element

    def scripts(self, base: Element) -> Parser:
        limits = self.take(r"\limits")
        if not limits:
            self.take(r"\nolimits")
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
                return element("munderover" if limits else "msubsup", [base, *pair])
            script = yield self.scripts(script)
        tag = ("munder" if limits else "msub") if mark == "_" else ("mover" if limits else "msup")
        return element(tag, [base, script])

    def plain(self, token: str) -> Element | None:
        """The element of a token that is a symbol in any place, or of the number that begins with it."""
        if token.isdigit() or token == ".":
            if number := _NUMBER.match(self.latex, self.spans[self.at][0]):
                return Element("mn", number[0])
            if token != ".":
                return Element("mn", token)
        if len(token) == 1 and (token.isalpha() or not token.isascii()):
            return Element("mi", token)
        if self.reading.pairs_brackets and token in _PARTNERS:
            return None
        text = self.symbols.anywhere.get(token)
        return None if text is None else Element("mo", text)

    def atom(self) -> Parser:
        token = self.tokens[self.at]
        if (leaf := self.plain(token)) is not None:
            self.at += _width(leaf)
            part = leaf
        elif token in ("_", "^"):
            part = yield self.scripts(Element("mi", ""))
        elif token in tex.SPACES:
            self.at += 1
            part = DROPPED
        elif token in _PARTNERS:
            part = yield self.paired()
        else:
            part = yield self.command(token)
        self.skip_comments()
        return part

    def paired(self) -> Parser:
        """A bracket with everything up to its partner, or alone where the group ends first."""
        start, opener = self.at, self.tokens[self.at]
        closer = _PARTNERS[opener]
        unclosed, passed = self.unclosed[closer], [start]
        self.at += 1
        parts: list[Element] = []
        while start not in unclosed and self.tokens[self.at] != closer:
            if self.at in unclosed or self.tokens[self.at] in _STOPS:
                unclosed.update(passed)
                break
            passed.append(self.at)
            parts.append((yield self.expr()))
            self.skip_comments()
        if start in unclosed:
            self.at = start + 1
            return Element("mo", opener)
        self.at += 1
        return fenced(opener, parts, closer)

    def command(self, token: str) -> Parser:
        if token == "{" or token in tex.ACCENTS:
            return (yield self.token())
        start = self.at
        self.at += 1
        if token in tex.FRACTIONS:
            fraction = element("mfrac", [(yield self.token()), (yield self.token())])
            return fraction if token == r"\frac" else DROPPED
        if token in (r"\sqrt", r"\surd"):
            follows = self.tokens[self.at]
            argument = self.is_argument(follows) or not (follows in ("", "}") or follows.startswith("\\"))
            if token == r"\sqrt" and self.reading.bare_roots and not argument:
                return Element("mo", "√")
            index = [(yield self.group("]"))] if self.take("[") else []
            radicand = yield self.token()
            return element("mroot" if index else "msqrt", [radicand, *index])
        if token == r"\left":
            return (yield self.delimited())
        if token == r"\begin":
            return (yield self.environment())
        if token in tex.STACKED:
            above, base = (yield self.token()), (yield self.token())
            return element(tex.STACKED[token], [base, above])
        if token in tex.SCALES and self.tokens[self.at] in tex.BRACKETS:
            self.at += 1
            return Element("mo", tex.BRACKETS[self.tokens[self.at - 1]])
        if token == r"\ensuremath":
            self.need("{")
            return (yield self.group("}"))
        if token in tex.STYLES and self.tokens[self.at] == "[":
            raise self.failure()
        if token in tex.STYLES or token in tex.LEFT_OUT:
            yield self.token()
            return DROPPED
        if token in tex.TEXTS:
            return self.text()
        self.at = start
        raise self.failure()

    def is_argument(self, token: str) -> bool:
        """Whether a command is an argument without braces."""
        known = token in self.symbols.arguments and (token != r"\{" or self.reading.brace_arguments)
        return known or token in tex.SPACES

    def token(self) -> Parser:
        """An argument: a group, or without braces one symbol or one character."""
        token = self.tokens[self.at]
        self.at += 1
        if token == "{" or (token == "[" and self.reading.bracket_arguments and self.at - 1 in self.closed):
            return (yield self.group("}" if token == "{" else "]"))
        if self.is_argument(token):
            return DROPPED if token in tex.SPACES else Element("mo", self.symbols.arguments[token])
        if token in tex.ACCENTS:
            base = yield self.token()
            return element("mover", [base, Element("mo", tex.ACCENTS[token])])
        if token in ("", "}") or token[0] in "\\%":
            self.at -= 1
            raise self.failure()
        return Element("mn" if token.isdigit() else "mi", token)

    def delimited(self) -> Parser:
        r"""\left ( ... \right ): the brackets are symbols of a row; \right may be missing."""
        opening = self.fence()
        parts = yield from self.exprs(_STOPS)
        return fenced(opening, parts, self.fence() if self.take(r"\right") else "")

    def fence(self) -> str:
        if self.take("."):
            return ""
        token = self.tokens[self.at]
        text = tex.BRACKETS.get(token) or (tex.ANGLES.get(token) if self.reading.pairs_brackets else None)
        if text is None:
            raise self.failure()
        self.at += 1
        return text

    def environment(self) -> Parser:
        r"""\begin { matrix } a & b \\ c & d \end { matrix }: a table, in brackets or without."""
        name, strict = self.environment_name(), self.reading.pairs_brackets
        opening, closing = tex.ENVIRONMENTS[name]
        if name == "array" or (name.endswith("matrix") and not strict):
            self.skip_alignments(required=strict)
        rows: list[Element] = []
        while True:
            cells = [(yield self.cell())]
            while self.take("&"):
                cells.append((yield self.cell()))
            rows.append(Element("mtr", children=tuple(cells)))
            if not self.take("\\\\"):
                break
            glued = self.latex.startswith("[", self.spans[self.at - 1][1])
            if glued or (self.tokens[self.at] == "[" and (not strict or name in _LOOSE)):
                self.at += 1
                yield self.group("]")  # a height
            if self.tokens[self.at] == r"\end":
                break
        self.need(r"\end")
        if self.environment_name() != name:
            raise Unconverted(rf"\begin {{ {name} }} ends as another environment")
        table = Element("mtable", children=tuple(rows))
        return fenced(opening, [table], closing) if opening else table

    def cell(self) -> Parser:
        parts = yield from self.exprs(_STOPS)
        return element("mtd", ungrouped(parts))

    def environment_name(self) -> str:
        self.need("{")
        name = ""
        while self.tokens[self.at].isalpha() and len(name) < 20:
            name += self.tokens[self.at]
            self.at += 1
        self.take("*")
        self.need("}")
        if name not in tex.ENVIRONMENTS:
            raise Unconverted(f"unknown environment {name}")
        return name

    def skip_alignments(self, required: bool) -> None:
        start = self.at
        if self.take("{"):
            while self.tokens[self.at].isalpha() or (required and self.tokens[self.at] == "|"):
                self.at += 1
            letters = set(self.tokens[start + 1 : self.at])
            if (self.at - start <= 2 or letters <= set("lcr|")) and self.take("}"):
                return
            self.at = start
        if required:
            raise self.failure()

    def operator_name(self) -> Parser:
        r"""\operatorname { l i m }: its letters are the name of one symbol."""
        self.take("*")
        name = yield self.token()
        parts = name.children if name.tag == "mrow" else (name,)
        if any(part.children or part.tag not in ("mi", "mo", "mn") for part in parts):
            raise Unconverted(r"\operatorname of something other than a name")
        return Element("mo", "".join("-" if part.text == "−" else part.text for part in parts))

    def text(self) -> Element:
        r"""\text { ... }: left out; a blank at either end leaves an empty row."""
        self.need("{")
        start, depth = self.spans[self.at - 1][1], 1
        while depth:
            token = self.tokens[self.at]
            if not token:
                raise self.failure()
            depth += (token == "{") - (token == "}")
            self.at += 1
        content = self.latex[start : self.spans[self.at - 1][0]]
        return row([]) if content[:1].isspace() or content[-1:].isspace() else DROPPED


def _width(leaf: Element) -> int:
    """The number of tokens in a symbol or a number."""
    return len(leaf.text) if leaf.tag == "mn" else 1


def element(tag: str, parts: Sequence[Element]) -> Element:
    """An element of all parts but the dropped ones."""
    return Element(tag, children=tuple(part for part in parts if part is not DROPPED))


def fenced(opening: str, parts: Sequence[Element], closing: str) -> Element:
    """A row in brackets, which does not count as a group."""
    ends = [[Element("mo", text)] if text else [] for text in (opening, closing)]
    return Element("mrow", "fenced", element("", [*ends[0], *ungrouped(parts), *ends[1]]).children)


def ungrouped(parts: Sequence[Element]) -> Sequence[Element]:
    """The parts, or the members of the only part if that is a group."""
    return parts[0].children if len(parts) == 1 and parts[0].tag == "mrow" and not parts[0].text else parts


def row(parts: Sequence[Element]) -> Element:
    """A row of parts; a single part needs none."""
    return parts[0] if len(parts) == 1 else element("mrow", parts)
