"""Text files that name images and hold their LaTeX, in three layouts.

A list of captions has a line for each image, its name and its LaTeX: CoMER, MNE, HME100K, CAN and others. Between them
is a tab, a blank, a comma, a semicolon or a bar, and either may come first: what names images is told by the images
that are there.

Numbered formulas, of which lists name the images: im2latex-100k and what is built on it. `im2latex_formulas.lst` with
`im2latex_train.lst` (number, image, kind), `formulas.norm.lst` with `train.lst` (image, number), or
`train.formulas.norm.txt` with `train.matching.txt`. Numbers count from 0.

A file of LaTeX for each image, of its name: `a.png` and `a.txt` or `a.tex`, in one folder or in two.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple

from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named, split_told

LISTS = (".txt", ".tsv", ".lst", ".csv", ".psv", ".list")
LINES = 50  # of a list, by which its form is told
NUMBERED = (".lst", ".txt")
_NUMBERED = re.compile(r"(?:(?P<first>\d+)\s+(?P<image>\S+)|(?P<name>\S+)\s+(?P<last>\d+))(?:\s+\w+)?\s*")
ONE_EACH = (".txt", ".tex", ".latex", ".gt")
FEWEST = 2  # files that images have the names of: one may be a note


class Form(NamedTuple):
    """What stands between name and LaTeX, and whether the name is last."""

    between: str = "\t"
    last: bool = False


TABBED = Form()
FORMS = [Form(between, last) for last in (False, True) for between in "\t|;, "]


def with_image(
    source: Source, beside: str, name: str, latex: str, split: str, left_out: LeftOut, writer: str = ""
) -> Iterator[Expression]:
    """The expression of a caption, if it has one image."""
    images = source.images(beside, name)
    if len(images) == 1:
        yield Expression(PurePosixPath(images[0]).stem, images[0], latex, split, writer)
    elif images:
        left_out.add(name, f"two images of one name ({', '.join(images[:2])})")
    else:
        left_out.add(name, "no image for the caption")


def _beside(table: str) -> str:
    return PurePosixPath(table).parent.as_posix()


# ---------------------------------------------------------------------------------------------- lists of captions


def has_captions(source: Source) -> bool:
    """Whether any text file begins with the name of an image and LaTeX."""
    return any(_lists(source))


def read_captions(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    for table, form in _lists(source):
        for name, latex in pairs(source.lines(table), form):
            split = split_named(table) or split_told(name)
            yield from with_image(source, _beside(table), name, latex, split, left_out)


def pairs(lines: Iterable[str], form: Form = TABBED) -> Iterator[tuple[str, str]]:
    """Name and LaTeX of every line that is not empty."""
    return (pair(line, form) for line in lines if line.strip())


def pair(line: str, form: Form = TABBED) -> tuple[str, str]:
    """Name and LaTeX of a line; a name with blanks needs the tab, a line of tabs without one has a blank for it."""
    between, last = form
    if between in ",;|":
        try:
            cells = next(csv.reader([line], delimiter=between), [""])  # noqa: TID251 (its columns have no names)
        except csv.Error:  # a cell of more than 131,072 characters
            cells = line.split(between)
        name, latex = (cells[-1], between.join(cells[:-1])) if last else (cells[0], between.join(cells[1:]))
    else:
        if between == "\t" and "\t" not in line:
            between = " "
        first, _, second = line.strip(" ").rpartition(between) if last else line.strip(" ").partition(between)
        name, latex = (second, first) if last else (first, second)
    return name.strip(), latex.strip()


def _lists(source: Source) -> Iterator[tuple[str, Form]]:
    """The lists among the text files, each in the form in which most of its first lines name images."""
    for table in source.tables(*LISTS):
        lines = [line for line in islice(source.lines(table), LINES) if line.strip()]
        named = {form: sum(_names(source, _beside(table), line, form) for line in lines) for form in FORMS}
        best = max(FORMS, key=lambda form: named[form])  # of several, the first
        if named[best]:
            yield table, best


def _names(source: Source, beside: str, line: str, form: Form) -> bool:
    """Whether a line in a form names an image and has LaTeX."""
    name, latex = pair(line, form) if form.between in line else ("", "")
    return bool(latex and source.find(beside, name))


# ---------------------------------------------------------------------------------------------- numbered formulas


def has_numbers(source: Source) -> bool:
    """Whether there are formulas, and a list whose every line is an image and a number."""
    return bool(_formulas(source)) and any(_numbered(source))


def read_numbered(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all lists; their formulas are in the file that has the name of the split, else in the
    first."""
    for table in _numbered(source):
        split, files = split_named(table), _formulas(source)
        file = next((name for name in files if split and split in PurePosixPath(name).name), files[0])
        formulas = source.text(file).split("\n")
        for line in filter(None, source.lines(table)):
            name, number = _name_and_number(line)
            if number >= len(formulas):
                left_out.add(name, "its number is above that of the last formula")
            else:
                yield from with_image(source, _beside(table), name, formulas[number], split, left_out)


def _formulas(source: Source) -> list[str]:
    return [name for name in source.tables(*NUMBERED) if "formulas" in PurePosixPath(name).name]


def _numbered(source: Source) -> Iterator[str]:
    for table in source.tables(*NUMBERED):
        lines = [line for line in islice(source.lines(table), 5) if line.strip()]
        listed = "formulas" not in PurePosixPath(table).name and lines and all(map(_NUMBERED.fullmatch, lines))
        if listed and any(source.find(_beside(table), _name_and_number(line)[0]) for line in lines):
            yield table


def _name_and_number(line: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(line)
    return (match["image"] or match["name"], int(match["first"] or match["last"])) if match else (line, 1 << 62)


# ---------------------------------------------------------------------------------------- a file for each image


def has_one_each(source: Source) -> bool:
    """Whether some files have the names of images."""
    named = (name for name in source.tables(*ONE_EACH) if source.find(_beside(name), PurePosixPath(name).stem))
    return not source.listed and len([*islice(named, FEWEST)]) == FEWEST


def read_one_each(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    for name in source.tables(*ONE_EACH):
        beside, latex = _beside(name), " ".join(source.text(name).split())
        split = split_named(f"{beside}/x")
        yield from with_image(source, beside, PurePosixPath(name).stem, latex, split, left_out)
