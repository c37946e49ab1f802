"""Tables with named columns: metadata.jsonl and .csv of Hugging Face's image folders, lists of JSON objects."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from hmerbench.benchmarks.data.importing.readers.caption_list import with_image
from hmerbench.benchmarks.data.importing.source import Expression, LeftOut, Source, split_named
from hmerbench.benchmarks.errors import UserError

ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
IMAGE = ("file_name", "image_path", "image", "img", "img_path", "path", "filename", "file", "name", "img_id", "id")
LATEX = (
    *("latex", "text", "label", "caption", "gt", "formula", "latex_formula", "ground_truth", "tex", "normalizedLabel"),
    *("equation", "latex_code", "annotation", "transcription", "target", "truth", "expression", "sentence"),
)
SPLIT, WRITER = ("split", "subset", "set"), ("writer", "writer_id", "user")


def found(source: Source) -> bool:
    """Whether any table has a column of images and one of LaTeX."""
    return any(_named(row, IMAGE) and _named(row, LATEX) for table in _tables(source) for row in _first(source, table))


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all tables."""
    for table in _tables(source):
        beside = PurePosixPath(table).parent.as_posix()
        for number, row in enumerate(rows(source, table), 1):
            image, latex = _named(row, IMAGE), _named(row, LATEX)
            if not image or not latex:
                left_out.add(f"{table}, row {number}", "no image or no LaTeX in the row")
                continue
            split = value(row, SPLIT) or split_named(str(row[image])) or split_named(table)
            name, text = str(row[image]), str(row[latex])
            yield from with_image(source, beside, name, text, split, left_out, value(row, WRITER))


def value(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """The first of some columns that a row fills, as text."""
    name = _named(row, columns)
    return str(row[name]).strip() if name else ""


def rows(source: Source, table: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, each by column. Raises UserError for one that is damaged."""
    text, ending = source.text(table), PurePosixPath(table).suffix.lower()
    if ending in (".csv", ".tsv"):
        yield from csv.DictReader(io.StringIO(text), delimiter="\t" if ending == ".tsv" else ",")
        return
    try:
        if ending == ".json":
            held = json.loads(text)
            listed = held if isinstance(held, list) else _unrolled(held)
        else:
            listed = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source.path}: {table} is not JSON ({error}); correct it") from None
    yield from (row for row in listed if isinstance(row, Mapping))


def _unrolled(held: object) -> list[Any]:
    """The rows of an object: the list that it holds, or a row for each name of an image with its LaTeX."""
    if not isinstance(held, dict):
        return []
    lists = [value for value in held.values() if isinstance(value, list)]
    pairs = [{"image": name, "latex": text} for name, text in held.items() if isinstance(text, str)]
    return lists[0] if lists else pairs


def _tables(source: Source) -> list[str]:
    return source.tables(*ENDINGS)


def _first(source: Source, table: str) -> list[Mapping[str, Any]]:
    try:
        return [row for row, _ in zip(rows(source, table), range(5), strict=False)]
    except UserError:
        if source.listed or PurePosixPath(table).stem == "metadata":
            raise
        return []


def _named(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    return next((name for name in columns if row.get(name) not in (None, "") and not isinstance(row[name], dict)), "")
