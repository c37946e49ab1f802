"""Which official scorer is meant, as named rules: what pandoc makes of LaTeX differs between its versions, and so do
convert2symLG and LgEval. The defaults are those of the paper and of the published ground truth."""

from typing import NamedTuple

from evaluation import InputError


class Reading(NamedTuple):
    """How a version of pandoc parses LaTeX (the TeX reader of its library texmath)."""

    name: str
    pairs_brackets: bool  # ( ... ), [ ... ] and | ... | are groups, on which a script hangs as a whole
    bracket_arguments: bool  # [ ... ] is one argument of \frac or \sqrt, as { ... } is
    bare_roots: bool  # \sqrt and \frac without what they need: \sqrt alone is an object
    brace_arguments: bool  # \{ is an argument


class Edition(NamedTuple):
    """The versions of convert2symLG and LgEval, with the rules in which they differ."""

    name: str
    conv: str
    lgeval: str
    second_inside: bool  # a root without index is Inside-related to its second member too
    splits_numbers: bool  # 12 is two symbols
    inter: bool  # LgEval's INTER: label sets that share a label agree
    whole_pairs: bool  # Summary.txt counts pairs of nodes as 12, not 12.00


class Rules(NamedTuple):
    """A reading and an edition: all that decides how a text is scored."""

    reading: Reading
    edition: Edition

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the tools, as a signature names them."""
        pandoc = self.reading.name.removeprefix("pandoc-")
        return {"conv": self.edition.conv, "pandoc": pandoc, "lgeval": self.edition.lgeval}


PAPER = Rules(
    Reading("pandoc-1.19", False, True, False, True), Edition("crohme2019", "1.4", "0.3.5", True, False, True, False)
)
READINGS = {PAPER.reading.name: PAPER.reading, "pandoc-2.17": Reading("pandoc-2.17", True, False, True, False)}
EDITIONS = {
    PAPER.edition.name: PAPER.edition,
    "mixed": Edition("mixed", "1.4", "0.3.8", True, False, False, True),
    "current": Edition("current", "1.5", "0.3.8", False, True, False, True),
}


def rules(reading: str = PAPER.reading.name, edition: str = PAPER.edition.name) -> Rules:
    """The rules of these names. Raises InputError with the names there are."""
    for kind, name, known in (("reading", reading, READINGS), ("edition", edition, EDITIONS)):
        if name not in known:
            raise InputError(f"{name}: no such {kind}; there are {', '.join(known)}")
    return Rules(READINGS[reading], EDITIONS[edition])
