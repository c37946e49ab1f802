"""A text file of `NAME<TAB>LaTeX` lines, or a blank for the tab, and images beside it: CoMER, MNE, HME100K, CAN."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named

ENDINGS = (".txt", ".tsv", ".lst")


def found(source: Source) -> bool:
    """Whether any text file begins with the name of an image and LaTeX."""
    return any(_lists(source))


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all lists."""
    for table in _lists(source):
        beside = PurePosixPath(table).parent.as_posix()
        for name, latex in pairs(source.text(table)):
            yield from with_image(source, beside, name, latex, split_named(table), left_out)


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


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Name and LaTeX of every line that is not empty."""
    for line in text.splitlines():
        if line.strip():
            yield pair(line)


def pair(line: str) -> tuple[str, str]:
    """Name and LaTeX of a line; a name with blanks needs the tab."""
    name, tab, latex = line.partition("\t")
    if not tab:
        name, _, latex = line.strip().partition(" ")
    return name.strip(), latex.strip()


def _lists(source: Source) -> Iterator[str]:
    for table in source.tables(*ENDINGS):
        beside = PurePosixPath(table).parent.as_posix()
        first = [pair(line) for line in source.text(table)[: 1 << 16].splitlines()[:50] if line.strip()]
        if any(latex and source.images(beside, name) for name, latex in first):
            yield table
