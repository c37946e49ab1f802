"""Which official scorer is meant: the reading of LaTeX and the edition of the tools, as named rules.

"The official scorer" is several programs: what pandoc makes of LaTeX differs between its versions, and so do
convert2symLG and LgEval. The defaults are those of the paper and of the published ground truth.
"""

from dataclasses import dataclass
from typing import NamedTuple

from evaluation import InputError


@dataclass(frozen=True)
class Reading:
    """How a version of pandoc parses LaTeX (the TeX reader of its library texmath)."""

    name: str
    pairs_brackets: bool  # ( ... ), [ ... ] and | ... | are groups, on which a script hangs as a whole
    bracket_arguments: bool  # [ ... ] is one argument of \frac or \sqrt, as { ... } is
    bare_roots: bool  # \sqrt and \frac without what they need: \sqrt alone is an object
    brace_arguments: bool  # \{ is an argument

    @property
    def pandoc(self) -> str:
        """The version of pandoc, as in 2.17."""
        return self.name.removeprefix("pandoc-")


READINGS = {
    reading.name: reading
    for reading in (
        Reading("pandoc-1.19", False, True, False, True),
        Reading("pandoc-2.17", True, False, True, False),
    )
}


@dataclass(frozen=True)
class Edition:
    """The versions of convert2symLG and LgEval, with the rules in which they differ."""

    name: str
    conv: str
    lgeval: str
    second_inside: bool  # a root without index is Inside-related to its second member too
    splits_numbers: bool  # 12 is two symbols
    inter: bool  # LgEval's INTER: label sets that share a label agree
    whole_pairs: bool  # Summary.txt counts pairs of nodes as 12, not 12.00


EDITIONS = {
    edition.name: edition
    for edition in (
        Edition("crohme2019", "1.4", "0.3.5", True, False, True, False),
        Edition("mixed", "1.4", "0.3.8", True, False, False, True),
        Edition("current", "1.5", "0.3.8", False, True, False, True),
    )
}
DEFAULT_READING, DEFAULT_EDITION = READINGS["pandoc-1.19"], EDITIONS["crohme2019"]


class Rules(NamedTuple):
    """A reading and an edition: all that decides how a text is scored."""

    reading: Reading = DEFAULT_READING
    edition: Edition = DEFAULT_EDITION


PAPER = Rules()


def rules(reading: str = DEFAULT_READING.name, edition: str = DEFAULT_EDITION.name) -> Rules:
    """The rules of these names. Raises InputError with the names there are."""
    if reading not in READINGS:
        raise InputError(f"{reading}: no such reading; there are {', '.join(READINGS)}")
    if edition not in EDITIONS:
        raise InputError(f"{edition}: no such edition; there are {', '.join(EDITIONS)}")
    return Rules(READINGS[reading], EDITIONS[edition])
