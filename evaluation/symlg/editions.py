"""The versions of the official scorer as named rules: pandoc's reading of LaTeX differs between versions, and so do
convert2symLG and LgEval. The defaults are those of the paper and of the published ground truth."""

from typing import NamedTuple

from hmerbench.evaluation import InputError


class Reading(NamedTuple):
    r"""How a version of pandoc parses LaTeX (the TeX reader of its library texmath). In the newer one, ( ... ), [ ... ]
    and | ... | are groups, to which a script attaches as a whole, \sqrt without an argument is an object, [ ... ] and
    \{ are no arguments, and \dotsb, \hdots and their like are symbols."""

    name: str
    newer: bool = False


class Edition(NamedTuple):
    """The versions of convert2symLG and LgEval, with the rules in which they differ; the defaults are the paper's."""

    name: str
    conv: str
    lgeval: str
    second_inside: bool = True  # a root without index is Inside-related to its second member too
    splits_numbers: bool = False  # 12 is two symbols
    inter: bool = True  # LgEval's INTER: label sets that share a label agree
    whole_pairs: bool = False  # Summary.txt counts pairs of nodes as 12, not 12.00


class Rules(NamedTuple):
    r"""A reading and an edition, which together determine how a text is scored. `neutral`: whether \limits stands after
    an operator makes no difference, in prediction and truth (`scoring.conventions`); no official scorer does so."""

    reading: Reading
    edition: Edition
    neutral: bool = False

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the tools, as a signature names them."""
        pandoc = self.reading.name.removeprefix("pandoc-")
        versions = {"conv": self.edition.conv, "pandoc": pandoc, "lgeval": self.edition.lgeval}
        return versions | ({"limits": "neutral"} if self.neutral else {})


_PANDOC_1 = Reading("pandoc-1.19")
_PANDOC_2 = Reading("pandoc-2.17", newer=True)
_CROHME2019 = Edition("crohme2019", "1.4", "0.3.5")
_MIXED = _CROHME2019._replace(name="mixed", lgeval="0.3.8", inter=False, whole_pairs=True)
_CURRENT = _MIXED._replace(name="current", conv="1.5", second_inside=False, splits_numbers=True)
PAPER = Rules(_PANDOC_1, _CROHME2019)
READINGS = {reading.name: reading for reading in (_PANDOC_1, _PANDOC_2)}
EDITIONS = {edition.name: edition for edition in (_CROHME2019, _MIXED, _CURRENT)}


def rules(reading: str = PAPER.reading.name, edition: str = PAPER.edition.name, *, neutral: bool = False) -> Rules:
    """The rules by name. Raises InputError with the known names."""
    for kind, name, known in (("reading", reading, READINGS), ("edition", edition, EDITIONS)):
        if name not in known:
            raise InputError(f"{name}: no such {kind} exists; choose from {', '.join(known)}")
    return Rules(READINGS[reading], EDITIONS[edition], neutral)
