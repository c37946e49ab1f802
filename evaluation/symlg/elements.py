"""MathML as a tree: what the readers of LaTeX and MathML make, and what the builder of symLGs takes."""

from collections.abc import Sequence
from typing import NamedTuple

from hmerbench.evaluation.symlg.graph import Unconverted


class Element(NamedTuple):
    """One element of MathML. A leaf (mi, mo, mn) has a text; all others have children. The text of an mrow says what
    it is if not a group: "fenced" (in brackets) or "text"."""

    tag: str
    text: str = ""
    children: "tuple[Element, ...]" = ()


LEAVES = ("mi", "mo", "mn")
OMITTED = ("mspace", "mstyle", "mtext", "mphantom", "menclose")  # convert2symLG drops them with their content
SPACE = Element("mspace")

_UPRIGHT = (r"\mathrm", r"\mathup")  # styles in which a letter stays the character that it is
_PRIMES = {"−": "-", "′": "'", "″": "''", "‴": "'''", "⁗": "''''", "ʹ": "'"}


def row(parts: Sequence[Element]) -> Element:
    """A row of parts; a single part needs none."""
    return parts[0] if len(parts) == 1 else Element("mrow", children=tuple(parts))


def fenced(opening: str, parts: Sequence[Element], closing: str) -> Element:
    """A row in brackets, which does not count as a group."""
    before, after = ((Element("mo", text),) if text else () for text in (opening, closing))
    return Element("mrow", "fenced", (*before, *parts, *after))


def is_group(part: Element) -> bool:
    """Whether an element is { ... } with other than one member."""
    return part.tag == "mrow" and not part.text


def ungrouped(parts: Sequence[Element]) -> Sequence[Element]:
    """The parts, or the members of the only part if that is a group."""
    return parts[0].children if len(parts) == 1 and is_group(parts[0]) else parts


def is_symbol(part: Element) -> bool:
    r"""Whether an element is one symbol or letter; \sin and its like are not."""
    return part.tag == "mi" or (part.tag == "mo" and not (len(part.text) > 1 and part.text[0].isalpha()))


def name_of(part: Element) -> str | None:
    r"""The name that \operatorname { part } has; None if the part is more than a name. Raises Unconverted for bold and
    other letters, which pandoc replaces."""
    names = [_name(member) for member in (part.children if is_group(part) else (part,))]
    return None if None in names else "".join(name or "" for name in names)


def _name(part: Element, styled: bool = False) -> str | None:
    if part.tag == "mstyle" and part.text not in _UPRIGHT:
        raise Unconverted(f"{part.text} in the name of an operator")
    if part.tag == "mstyle":
        names = [_name(member, styled=True) for member in part.children]
        return None if None in names else "".join(name or "" for name in names)
    if part.tag == "mo" and not styled:
        return _PRIMES.get(part.text, part.text) if is_symbol(part) else None
    return part.text if part.tag in LEAVES else None
