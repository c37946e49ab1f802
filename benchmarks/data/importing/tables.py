"""Tables with named columns: metadata.jsonl and .csv of Hugging Face's image folders, lists of JSON objects, and
parquet files of its data sets, with a column of images {bytes, path} and one of LaTeX."""

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from hmerbench.benchmarks.data.importing.lists import with_image
from hmerbench.benchmarks.data.importing.source import MAX_IMAGE, Expression, LeftOut, Source, split_named, split_told
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation import InputError
from hmerbench.evaluation.strict import json_entries, json_lines, rows_of
from hmerbench.models.weights import one_line

TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
IMAGE = ("file_name", "image_path", "image", "img", "img_path", "path", "filename", "file", "name", "img_id", "id")
LATEX = (
    *("latex", "text", "label", "caption", "gt", "formula", "latex_formula", "ground_truth", "tex", "normalizedLabel"),
    *("equation", "latex_code", "annotation", "transcription", "target", "truth", "expression", "sentence"),
)
FIRST = 5  # rows that tell what a table holds
NOT_JSON = "not JSON"
ROWS = 8  # of parquet read at a time: a file may have one image of MAX_IMAGE for all of its rows
MAX_GROWTH = 10  # times the size of a parquet file: images are compressed already
SPLIT, WRITER = ("split", "subset", "set"), ("writer", "writer_id", "user")


def has_columns(source: Source) -> bool:
    """Whether any table has a column of images and one of LaTeX."""
    for table in source.tables(*TABLES):
        try:
            if _fits(source, table):
                return True
        except UserError:
            if source.listed or PurePosixPath(table).stem == "metadata":
                raise
    return False


def read_tables(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    for table in source.tables(*TABLES):
        if not _fits(source, table):
            continue
        beside = PurePosixPath(table).parent.as_posix()
        for number, row in enumerate(rows(source, table), 1):
            image, latex = _named(row, IMAGE), _named(row, LATEX)
            if not image or not latex:
                left_out.add(f"{table}, row {number}", "no image or no LaTeX in the row")
                continue
            split = value(row, SPLIT) or split_told(str(row[image])) or split_named(table)
            name, text = str(row[image]), str(row[latex])
            yield from with_image(source, beside, name, text, split, left_out, value(row, WRITER))


def value(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """The first of some columns that a row fills, as text."""
    name = _named(row, columns)
    return str(row[name]).strip() if name else ""


def rows(source: Source, table: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, each by column; what is no object has no columns. Raises UserError for a damaged one."""
    ending, where = PurePosixPath(table).suffix.lower(), f"{source.path}: {table}"
    with source.opened(table) as file:
        try:
            if ending in (".csv", ".tsv"):
                yield from (row for _, row in rows_of(file, where, "\t" if ending == ".tsv" else ","))
            elif ending == ".json":
                yield from _unrolled(json_entries(file, where, NOT_JSON, lists=True))
            else:
                yield from (_columns(row) for _, row in json_lines(file, where, NOT_JSON))
        except InputError as error:
            raise UserError(f"{error}; correct it") from None


def _unrolled(entries: Iterable[tuple[str, str | None, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows of lists; of an object without any, a row for each name of an image with its LaTeX."""
    texts, listed = dict[str, str](), False
    for _, key, value in entries:
        listed |= key is None
        if key is None:
            yield _columns(value)
        elif isinstance(value, str):
            texts[key] = value
    if not listed:
        yield from ({"image": name, "latex": text} for name, text in texts.items())


def _columns(row: object) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else {}


def _fits(source: Source, table: str) -> bool:
    """Whether a table's first line, or one of the first rows of JSON, names both columns. Raises UserError."""
    if table.lower().endswith((".csv", ".tsv")):
        line = next((line for line in source.lines(table) if line.strip()), "")
        named = [{name.strip(" \"'") for name in line.split("\t" if table.lower().endswith(".tsv") else ",")}]
    else:
        named = [{*row} for row in islice(rows(source, table), FIRST)]
    return any({*IMAGE} & names and {*LATEX} & names for names in named)


def _named(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    return next((name for name in columns if row.get(name) not in (None, "") and not isinstance(row[name], dict)), "")


def has_parquet(source: Source) -> bool:
    return bool(source.tables(".parquet"))


def read_parquet(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all parquet files, a few in memory at a time."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{source.path}: parquet is read with pip install pyarrow; install that") from None
    for table in source.tables(".parquet"):
        try:
            content = source.read(table)
            file = parquet.ParquetFile(io.BytesIO(content))
            columns, groups = file.schema_arrow.names, map(file.metadata.row_group, range(file.num_row_groups))
            unpacked = sum(group.total_byte_size for group in groups)
        except (arrow.ArrowException, OSError) as error:
            left_out.add(table, f"not parquet ({one_line(error)})")
            continue
        if unpacked > max(MAX_IMAGE, MAX_GROWTH * len(content)):
            left_out.add(table, f"its {len(content):,} bytes unpack to {unpacked:,}")
            continue
        kinds = {name: file.schema_arrow.field(name).type for name in columns}
        images = [name for name, kind in kinds.items() if arrow.types.is_struct(kind) or arrow.types.is_binary(kind)]
        if not images or not any(name in LATEX for name in columns):
            have = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            left_out.add(table, f"no column of images as bytes, or none of LaTeX, only {have}")
            continue
        number = 0
        for batch in file.iter_batches(batch_size=ROWS):
            for row in batch.to_pylist():
                number += 1
                held = row[images[0]]
                content = held.get("bytes") if isinstance(held, dict) else held
                path = (held.get("path") if isinstance(held, dict) else "") or f"{PurePosixPath(table).stem}_{number}"
                latex = value(row, LATEX)
                if not isinstance(content, bytes) or not latex or len(content) > MAX_IMAGE:
                    left_out.add(f"{table}, row {number}", "no image or no LaTeX in the row")
                    continue
                split = value(row, SPLIT) or split_named(table)
                yield Expression(PurePosixPath(path).stem, content, latex, split, value(row, WRITER))
