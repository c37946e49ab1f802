"""Presentation MathML -> symLG, by the rules of convert2symLG's mml2lg.

Elements other than rows, tokens, scripts, fractions and roots are left out with their content, as there.
"""

import re
from html import escape
from html.entities import html5
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import fromstring

from evaluation.symlg.builder import SCRIPTS, Builder, Fragment, Row
from evaluation.symlg.graph import MAX_SYMBOLS, SymLG, Unconverted

_START = re.compile(r"<math[\s>]")
_END = re.compile(r"</math\s*>")
_ENTITY = re.compile(r"&(\w+;)")
_ROWS = ("math", "mrow", "semantics")
_TABLES = ("mtable", "mtr", "mtd")


def from_mathml(text: str) -> SymLG:
    """The symLG of the first <math> element in a MathML or HTML text. Raises Unconverted with the reason."""
    start = _START.search(text)
    end = start and _END.search(text, start.end())
    if not start or not end:
        raise Unconverted("no <math> element in the file")
    try:
        root = fromstring(_ENTITY.sub(_character, text[start.start() : end.end()]))
    except (ParseError, ValueError) as error:  # defusedxml's refusals are ValueErrors
        raise Unconverted(f"not well-formed MathML ({error})") from None
    if sum(1 for _ in root.iter()) > MAX_SYMBOLS:
        raise Unconverted(f"more than {MAX_SYMBOLS} elements")
    top = next((child for child in root if _tag(child) == "semantics"), root)
    if not any(_known(_tag(child)) for child in top):
        raise Unconverted("nothing is left of the expression (only styled text or space)")
    builder = Builder()
    return builder.graph(_fragment(builder, root))


def _character(match: re.Match[str]) -> str:
    return escape(html5[match[1]]) if match[1] in html5 else match[0]


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2].lower()


def _fragment(builder: Builder, root: Element) -> Fragment:
    """Build from the leaves up, without recursion: (element, its finished children) frames on a stack."""
    stack: list[tuple[Element, list[Fragment], int]] = [(root, [], 0)]
    while True:
        element, parts, at = stack.pop()
        if _tag(element) not in ("mi", "mo", "mn") and at < len(element):
            stack.append((element, parts, at + 1))
            child = element[at]
            if _known(_tag(child)):
                stack.append((child, [], 0))
            continue
        part = _element(builder, _tag(element), element, parts)
        if not stack:
            return part
        stack[-1][1].append(part)


def _known(tag: str) -> bool:
    if tag in _TABLES:
        raise Unconverted("matrices are not supported")
    return tag in ("mi", "mo", "mn", "mfrac", "msqrt", "mroot", *_ROWS) or tag in SCRIPTS


def _element(builder: Builder, tag: str, element: Element, parts: list[Fragment]) -> Fragment:
    if tag in _ROWS:
        return parts[0] if len(parts) == 1 else Row(parts)
    if tag in SCRIPTS:
        return builder.script(tag, parts)
    if tag == "mfrac":
        return builder.fraction(builder.symbol("-", bare=True), parts)
    if tag == "msqrt":
        return builder.root(builder.symbol(r"\sqrt", bare=True), [Row(parts)], indexed=False)
    if tag == "mroot":
        return builder.root(builder.symbol(r"\sqrt", bare=True), parts, indexed=True)
    return builder.symbol(" ".join("".join(element.itertext()).split()))
