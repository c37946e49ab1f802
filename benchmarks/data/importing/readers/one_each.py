"""A file of LaTeX for each image, of its name: `a.png` and `a.txt` or `a.tex`, in one folder or in two."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from hmerbench.benchmarks.data.importing.readers.caption_list import with_image
from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named

ENDINGS = (".txt", ".tex", ".latex", ".gt")
FEWEST = 2  # files that images have the names of: one may be a note


def found(source: Source) -> bool:
    """Whether some files have the names of images."""
    named = (name for name in source.tables(*ENDINGS) if source.find(*_place(name)))
    return not source.listed and sum(1 for _, _ in zip(named, range(FEWEST), strict=False)) == FEWEST


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all files."""
    for name in source.tables(*ENDINGS):
        beside, stem = _place(name)
        latex = " ".join(source.text(name).split())
        yield from with_image(source, beside, stem, latex, split_named(f"{PurePosixPath(name).parent}/x"), left_out)


def _place(name: str) -> tuple[str, str]:
    path = PurePosixPath(name)
    return path.parent.as_posix(), path.stem
