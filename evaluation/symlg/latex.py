r"""LaTeX -> symLG: read as by pandoc, converted as by convert2symLG. Here are the commands with arguments; rows,
scripts and brackets are in expressions.py."""

import re
from collections.abc import Generator, Sequence

from hmerbench.evaluation.symlg import latex_commands as tex
from hmerbench.evaluation.symlg.builder import (
    OMITTED,
    SPACE,
    Element,
    fenced,
    graph_of,
    is_group,
    is_symbol,
    name_of,
    row,
    ungrouped,
)
from hmerbench.evaluation.symlg.editions import PAPER, Rules
from hmerbench.evaluation.symlg.expressions import END, STOPS, Expressions, Parser, chosen, run
from hmerbench.evaluation.symlg.formula import formula_in
from hmerbench.evaluation.symlg.graph import SymLG, Unconverted

_LOOSE = ("array", "eqnarray")  # a blank may separate \\\\ from its [height]
_LENGTH = re.compile(r"\d+(em|pt|in|cm)")


def from_latex(latex: str | Sequence[str], rules: Rules = PAPER) -> SymLG:
    """The symLG of an expression (a text, or its tokens). Raises only Unconverted, with the reason."""
    return graph_of(parse(latex, rules), edition=rules.edition)


def parse(latex: str | Sequence[str], rules: Rules = PAPER) -> Element:
    """An expression (a text, or its tokens) as MathML elements. Raises only Unconverted, with the reason."""
    if not isinstance(latex, str):
        latex = " ".join(latex)
    if "$" in latex:
        latex = formula_in(f"${latex}$")
    return run(_Reader(latex, rules).formula())


class _Reader(Expressions):
    def formula(self) -> Parser:
        self.skip_ignored()
        parts = yield from self.exprs((END,))
        if len(parts) == 1 and parts[0].tag in OMITTED:
            raise Unconverted("nothing is left of the expression (only styled text or space)")
        return row(parts)

    def command(self, token: str) -> Parser:
        start, newer = self.at, self.newer
        if token in STOPS:
            raise self.failure()
        self.at += 1
        if newer or token not in tex.WITHOUT_IGNORED:
            self.skip_ignored()
        if token in tex.FRACTIONS:
            fraction = Element("mfrac", "", ((yield self.token()), (yield self.token())), self.place(start))
            if token == r"\binom":
                return fenced("(", [fraction], ")")
            return fraction if token == r"\frac" else Element("mstyle", token, (fraction,))
        if token == r"\genfrac":
            return (yield self.general_fraction())
        if token in (r"\sqrt", r"\surd"):
            follows = self.tokens[self.at]
            argument = self.is_argument(follows) or not (follows in ("", "}") or follows.startswith("\\"))
            if token == r"\sqrt" and self.newer and not argument:
                return Element("mo", "√")
            index = [(yield self.group("]"))] if self.take("[") else []
            self.skip_ignored()
            radicand = yield self.token()
            return Element("mroot" if index else "msqrt", "", (radicand, *index), self.place(start))
        if token == r"\left":
            return (yield self.delimited())
        if token == r"\begin":
            return (yield self.environment())
        if token in tex.STACKED:
            above, base = (yield self.token()), (yield self.token())
            return Element(tex.STACKED[token], "", (base, above))
        if token in tex.SCALES and (text := self.scalable()):
            return Element("mrow", "scaled", (Element("mo", text),))
        if token in tex.CLASSES:
            return (yield self.classed(token))
        if token == r"\substack":
            return (yield self.stack())
        if token in tex.TEXTS and (token != r"\texttt" or not newer or self.tokens[self.at] == "{"):
            return self.text()
        if token in tex.STYLES or (newer and token in tex.NEWER_STYLES):
            if self.tokens[self.at] == "[":
                raise self.failure()
            part = yield self.token()
            return Element("mstyle", token, tuple(ungrouped([part])))
        if token == r"\ensuremath" or (newer and token == r"\hyperref"):
            if token == r"\hyperref" and self.take("["):
                yield self.group("]")
            self.need("{")
            return (yield self.group("}"))
        if token in tex.LEFT_OUT:
            return Element(tex.LEFT_OUT[token], "", ((yield self.token()),))
        if token == r"\not" and (text := self.negated()):
            return Element("mo", text)
        if token == r"\not" and newer and self.tokens[self.at] == "{":
            self.at = start  # an accent
            return (yield self.token())
        if newer and (token in tex.ARROWS or token in tex.MODULI or token == r"\hspace"):
            return (yield self.newer_command(token))
        self.at = start
        raise self.failure()

    def general_fraction(self) -> Parser:
        r"""\genfrac { ( } { ) } { 0pt } { } { a } { b }: the third argument is how thick the line is, the
        fourth 0 where the fraction is displayed, which the conversion drops."""
        brackets: list[str] = []
        for _ in range(2):
            self.need("{")
            token = self.tokens[self.at]
            if len(token) > 1 and token not in (r"\{", r"\}"):
                raise self.failure()
            self.at += 1
            self.need("}")
            brackets.append(token[-1])
        line = (yield from self.latex_of_token()) != "0pt"
        displayed = (yield from self.latex_of_token()) == "0"
        fraction = Element("mfrac", "", ((yield self.token()), (yield self.token())))
        if line and displayed:
            fraction = Element("mstyle", r"\dfrac", (fraction,))
        return fenced(brackets[0], [fraction], brackets[1])

    def latex_of_token(self) -> Generator[Parser, Element, str]:
        """The LaTeX in the braces of the next argument, which is passed."""
        start = self.spans[self.at][1] if self.at < len(self.spans) else 0
        yield self.token()
        return self.latex[start : self.spans[self.at - 1][0]].strip()

    def newer_command(self, token: str) -> Parser:
        """A command that pandoc 1.19 does not know."""
        if token in tex.ARROWS:
            below = [(yield self.group("]"))] if self.take("[") else []
            self.skip_ignored()
            above = yield self.token()
            return Element("munderover" if below else "mover", "", (Element("mo", tex.ARROWS[token]), *below, above))
        if token in tex.MODULI:
            opening, name, closing = tex.MODULI[token]
            modulus = yield self.expr()
            before, after = ([Element("mo", text) for text in texts if text] for texts in ((opening, name), (closing,)))
            return Element("mrow", "", (SPACE, *before, *ungrouped([modulus]), *after))
        self.need("{")
        start = self.spans[self.at - 1][1]
        while self.tokens[self.at] not in ("}", END):
            self.at += 1
        self.need("}")
        if not _LENGTH.fullmatch(self.latex[start : self.spans[self.at - 1][0]].strip()):
            raise Unconverted(r"\hspace without a whole number of em, pt, in or cm")
        return SPACE

    def scalable(self) -> str | None:
        r"""The bracket after \big, or (pandoc 2.17) the operator."""
        token = self.tokens[self.at]
        text = tex.BRACKETS.get(token)
        if text is None and self.newer and token in tex.OPERATORS:
            text = self.symbols.anywhere[token]
        self.at += text is not None
        return text

    def negated(self) -> str | None:
        r"""The symbol after \not, struck out; None where pandoc refuses it."""
        known = tex.NEGATIONS if self.newer else tex.OLDER_NEGATIONS
        text = known.get(self.tokens[self.at])
        self.at += text is not None
        return text

    def classed(self, name: str) -> Parser:
        r"""\mathop, \mathrel, ...: of one symbol, that symbol; \mathop of a name is an operator of that name."""
        part = yield self.atom()
        members = part.children if is_group(part) else (part,)
        if not self.newer:
            named = name == r"\mathop" and not is_symbol(part)
            return part if not named or (text := name_of(part)) is None else Element("mo", text)
        if len(members) == 1 and is_symbol(members[0]):
            return members[0]
        if len(members) == 1 and members[0].text == "text":
            raise Unconverted(rf"text in {name}")
        return Element("mo", "".join(name_of(member) or "" for member in members)) if name == r"\mathop" else part

    def delimited(self) -> Parser:
        r"""\left ( ... \middle | ... \right ): the brackets are symbols of a row; \right may be missing."""
        opening, parts = self.fence(), []
        while self.tokens[self.at] not in tex.CHOICES:
            section = yield from self.exprs(STOPS)
            parts += ungrouped(section)
            if not self.take(r"\middle"):
                break
            parts.append(Element("mo", self.fence()))
        return fenced(opening, parts, self.fence() if self.take(r"\right") else "")

    def environment(self) -> Parser:
        r"""\begin { matrix } a & b \\ c & d \end { matrix }: a table, in brackets or without."""
        name = self.environment_name()
        opening, closing = tex.ENVIRONMENTS[name]
        if name == "array" or (name.endswith("matrix") and not self.newer):
            self.skip_alignments()
        elif name in ("alignat", "alignedat"):
            self.need("{")
            yield self.group("}")
        rows: list[Element] = []
        while self.tokens[self.at] != r"\end":
            if name == "equation":
                rows = yield from self.exprs(STOPS)
                break
            cells = [(yield self.cell())]
            while self.take("&"):
                cells.append((yield self.cell()))
            rows.append(Element("mtr", children=tuple(cells)))
            if not self.take("\\\\"):
                break
            if self.tokens[self.at] == "[" and (not self.newer or name in _LOOSE or self.glued()):
                self.at += 1
                yield self.group("]")  # a height
        if not rows and name not in tex.MAY_BE_EMPTY:
            raise self.failure()
        self.need(r"\end")
        if self.environment_name() != name:
            raise Unconverted(rf"\begin {{ {name} }} ends as another environment")
        if name == "equation":
            return row(rows)
        table = Element("mtable", children=tuple(rows))
        return fenced(opening, [table], closing) if opening else table

    def cell(self) -> Parser:
        parts: list[Element] = []
        while True:
            start = self.at
            self.skip_ignored(r"\hline")
            if self.tokens[self.at] in STOPS:
                self.at = start
                return Element("mtd", "", tuple(ungrouped(chosen(parts))))
            parts.append(self.choice(parts) if self.tokens[self.at] in tex.CHOICES else (yield self.expr()))
            self.skip_ignored(r"\hline")

    def environment_name(self) -> str:
        self.need("{")
        name = self.word()
        if self.tokens[self.at] == "*" and self.glued():
            self.at += 1
        if name not in tex.ENVIRONMENTS:
            raise Unconverted(f"unknown environment {name}" if name else str(self.failure()))
        self.need("}")
        self.skip_ignored()
        return name

    def skip_alignments(self) -> None:
        """{ c|c }: letters, and for pandoc 2.17 bars, without blanks between them; else the group is content."""
        start = self.at
        if self.take("{"):
            while self.at == start + 1 or self.glued():
                if not self.tokens[self.at].isalpha() and not (self.newer and self.tokens[self.at] == "|"):
                    break
                self.at += 1
            if self.take("}"):
                return
            self.at = start
        if self.newer:
            raise self.failure()

    def stack(self) -> Parser:
        r"""\substack { a \\ b }: a table of one column."""
        self.need("{")
        rows: list[Element] = []
        while True:
            self.skip_ignored()
            parts = yield from self.exprs(STOPS)
            rows.append(Element("mtr", "", (Element("mtd", "", (row(parts),)),)))
            if not self.take("\\\\"):
                break
            if self.take("["):
                yield self.group("]")  # a height
        self.need("}")
        return Element("mtable", "", tuple(rows))

    def text(self) -> Element:
        r"""\text { ... }: left out; a blank at either end leaves an empty row."""
        self.need("{")
        start, depth = self.spans[self.at - 1][1], 1
        while depth:
            token = self.tokens[self.at]
            if not token or (token[0] == "\\" and token not in tex.IN_TEXT):
                raise self.failure()
            depth += (token == "{") - (token == "}")
            self.at += 1
        content = self.latex[start : self.spans[self.at - 1][0]]
        return Element("mrow" if content[:1].isspace() or content[-1:].isspace() else "mtext", "text")
