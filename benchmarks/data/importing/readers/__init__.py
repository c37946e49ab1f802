"""One reader a layout. Each has `found`, whether a source is laid out so, and `read`, its expressions."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hmerbench.benchmarks.data.importing.readers import (
    caption_list,
    columns,
    inkml,
    numbered,
    one_each,
    parquet,
    pickled,
)
from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source
from hmerbench.benchmarks.errors import UserError


class Reader(NamedTuple):
    """A layout, in the order in which sources are asked for it."""

    name: str
    found: Callable[[Source], bool]
    read: Callable[[Source, LeftOut], Iterator[Expression]]


READERS = (
    Reader("InkML", inkml.found, inkml.read),
    Reader("parquet", parquet.found, parquet.read),
    Reader("pickled images", pickled.found, pickled.read),
    Reader("table with columns", columns.found, columns.read),
    Reader("numbered formulas", numbered.found, numbered.read),
    Reader("list of captions", caption_list.found, caption_list.read),
    Reader("a file for each image", one_each.found, one_each.read),
)


def reader_of(source: Source) -> Reader:
    """The layout of a source, told by its content. Raises UserError for none."""
    for reader in READERS:
        if reader.found(source):
            return reader
    known = (
        "ID.inkml, caption.txt (ID, a tab or a blank, LaTeX) beside images, ID.txt for each, metadata.jsonl or .csv, "
        "a JSON list, parquet, numbered formulas, or images.pkl"
    )
    raise UserError(f"{source.path}: holds no captions in a known layout; there should be {known}")
