"""Formulas by the number of their line, and lists of images with these numbers: im2latex-100k and what is built on it.

`im2latex_formulas.lst` with `im2latex_train.lst` (number, image, kind), `formulas.norm.lst` with `train.lst` (image,
number), or `train.formulas.norm.txt` with `train.matching.txt`. Numbers count from 0.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from hmerbench.benchmarks.data.importing.readers.caption_list import with_image
from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named

ENDINGS = (".lst", ".txt")
_LINE = re.compile(r"(?:(?P<first>\d+)\s+(?P<image>\S+)|(?P<name>\S+)\s+(?P<last>\d+))(?:\s+\w+)?\s*")


def found(source: Source) -> bool:
    """Whether there are formulas, and a list whose every line is an image and a number."""
    return bool(_formulas(source)) and any(_lists(source))


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all lists."""
    for table in _lists(source):
        split, lines = split_named(table), source.lines(table)
        formulas = source.text(_belonging(_formulas(source), split)).split("\n")
        for line in filter(None, lines):
            name, number = _read(line)
            if number >= len(formulas):
                left_out.add(name, "its number is above that of the last formula")
            else:
                yield from with_image(source, _beside(table), name, formulas[number], split, left_out)


def _formulas(source: Source) -> list[str]:
    return [name for name in source.tables(*ENDINGS) if "formulas" in PurePosixPath(name).name]


def _belonging(formulas: list[str], split: str) -> str:
    """Those of a split, if its name says so; else the first."""
    return next((name for name in formulas if split and split in PurePosixPath(name).name), formulas[0])


def _lists(source: Source) -> Iterator[str]:
    for table in source.tables(*ENDINGS):
        lines = [line for line in islice(source.lines(table), 5) if line.strip()]
        listed = "formulas" not in PurePosixPath(table).name and lines and all(map(_LINE.fullmatch, lines))
        if listed and any(source.find(_beside(table), _read(line)[0]) for line in lines):
            yield table


def _read(line: str) -> tuple[str, int]:
    match = _LINE.fullmatch(line)
    if match is None:
        return line, 1 << 62
    return match["image"] or match["name"], int(match["first"] or match["last"])


def _beside(table: str) -> str:
    return PurePosixPath(table).parent.as_posix()
