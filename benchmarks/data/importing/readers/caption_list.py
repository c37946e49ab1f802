"""A text file with a line for each image, its name and its LaTeX: CoMER, MNE, HME100K, CAN and others.

Between them is a tab, a blank, a comma, a semicolon or a bar, and either may come first: what names images is told by
the images that are there.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple

from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named, split_told

ENDINGS = (".txt", ".tsv", ".lst", ".csv", ".psv", ".list")
LINES = 50  # of a list, by which its form is told


class Form(NamedTuple):
    """What stands between name and LaTeX, and whether the name is last."""

    between: str = "\t"
    last: bool = False


TABBED = Form()
FORMS = [Form(between, last) for last in (False, True) for between in "\t|;, "]


def found(source: Source) -> bool:
    """Whether any text file begins with the name of an image and LaTeX."""
    return any(_lists(source))


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all lists."""
    for table, form in _lists(source):
        beside = PurePosixPath(table).parent.as_posix()
        for name, latex in pairs(source.lines(table), form):
            yield from with_image(source, beside, name, latex, split_named(table) or split_told(name), left_out)


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
    for table in source.tables(*ENDINGS):
        beside = PurePosixPath(table).parent.as_posix()
        lines = [line for line in islice(source.lines(table), LINES) if line.strip()]
        named = {form: sum(_names(source, beside, line, form) for line in lines) for form in FORMS}
        best = max(FORMS, key=lambda form: named[form])  # of several, the first
        if named[best]:
            yield table, best


def _names(source: Source, beside: str, line: str, form: Form) -> bool:
    """Whether a line in a form names an image and has LaTeX."""
    name, latex = pair(line, form) if form.between in line else ("", "")
    return bool(latex and source.find(beside, name))
