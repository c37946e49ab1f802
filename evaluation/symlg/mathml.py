"""Presentation MathML -> symLG, by the rules of convert2symLG's mml2lg; and LaTeX -> MathML, as it is read for symLG.

Elements other than rows, tokens, scripts, fractions, roots and tables are dropped with their content, as in mml2lg.
"""

import re
from collections.abc import Sequence
from html import escape
from html.entities import html5
from xml.etree.ElementTree import Element as XML
from xml.etree.ElementTree import ParseError

from defusedxml.ElementTree import fromstring

from hmerbench.evaluation.symlg.builder import LEAVES, OWN_LABELS, ROWS, SCRIPTS, Element, graph_of
from hmerbench.evaluation.symlg.editions import PAPER, Edition
from hmerbench.evaluation.symlg.graph import MAX_SYMBOLS, SymLG, Unconverted
from hmerbench.evaluation.symlg.latex import from_latex, parse

NAMESPACE = "http://www.w3.org/1998/Math/MathML"

_START = re.compile(r"<math[\s>]")
_END = re.compile(r"</math\s*>")
_ENTITY = re.compile(r"&(\w+;)")
_KNOWN = {*LEAVES, *ROWS, *OWN_LABELS, *SCRIPTS}


def from_mathml(text: str, edition: Edition = PAPER.edition) -> SymLG:
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
    if not any(_tag(child) in _KNOWN for child in top):
        raise Unconverted("nothing is left of the expression (only styled text or space)")
    return graph_of(_elements(root), -1, edition)


def _character(match: re.Match[str]) -> str:
    return escape(html5[match[1]]) if match[1] in html5 else match[0]


def _tag(element: XML) -> str:
    return element.tag.rpartition("}")[2].lower()


def _elements(root: XML) -> Element:
    """The tree of the elements that the conversion knows, built without recursion: children first."""
    found = [root]
    for xml in found:
        if _tag(xml) not in LEAVES:
            found += [child for child in xml if _tag(child) in _KNOWN]
    made: dict[XML, Element] = {}
    for xml in reversed(found):
        text = " ".join("".join(xml.itertext()).split()) if _tag(xml) in LEAVES else ""
        made[xml] = Element(_tag(xml), text, tuple(made[child] for child in xml if child in made))
    return made[root]


def to_mathml(latex: str | Sequence[str]) -> str:
    """An expression (a text, or its tokens) as the <math> element that browsers typeset. Raises Unconverted."""
    from_latex(latex)  # refuses what is not an expression, too
    parts: list[str] = []
    todo: list[str | Element] = ["</math>", parse(latex), f'<math xmlns="{NAMESPACE}" display="block">']
    while todo:
        part = todo.pop()
        if isinstance(part, str):
            parts.append(part)
        elif part.tag in LEAVES:
            parts.append(f"<{part.tag}>{escape(part.text)}</{part.tag}>")
        else:
            todo += [f"</{part.tag}>", *reversed(part.children), f"<{part.tag}>"]
    return "".join(parts)
