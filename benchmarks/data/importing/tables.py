"""Text files and tables that name images and hold their LaTeX.

A list of captions has a line for each image, its name and its LaTeX: CoMER, MNE, HME100K, CAN and others. Between them
is a tab, a blank, a comma, a semicolon or a bar, and either may come first: what names images is told by the images
that are there.

Numbered formulas, of which lists name the images: im2latex-100k and what is built on it. `im2latex_formulas.lst` with
`im2latex_train.lst` (number, image, kind), `formulas.norm.lst` with `train.lst` (image, number), or
`train.formulas.norm.txt` with `train.matching.txt`. Numbers count from 0.

A file of LaTeX for each image, of its name: `a.png` and `a.txt` or `a.tex`, in one folder or in two.

Tables with named columns: metadata.jsonl and .csv of Hugging Face's image folders, lists of JSON objects, and parquet
files of its data sets, with a column of images {bytes, path} and one of LaTeX.
"""

import csv
import io
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from hmerbench.benchmarks.data.archive import MAX_IMAGE_BYTES
from hmerbench.benchmarks.data.importing.source import Expression, Source, says_split, split_of, split_of_image, usual
from hmerbench.benchmarks.errors import FAULTS, UserError, printable
from hmerbench.evaluation.strict import json_entries, json_lines, rows_of
from hmerbench.models.files import one_line

LISTS = (".txt", ".tsv", ".lst", ".csv", ".psv", ".list")
LINES = 50  # of a list, by which its form is told
NUMBERED = (".lst", ".txt")
_NUMBERED = re.compile(r"(?:(?P<first>\d+)\s+(?P<image>\S+)|(?P<name>\S+)\s+(?P<last>\d+))(?:\s+\w+)?\s*")
ONE_EACH = (".txt", ".tex", ".latex", ".gt")
_COMMENT = re.compile(r"(?<!\\)%.*")  # such as the %ID of a prediction file
FEWEST = 2  # files that images have the names of: one may be a note
NAMED = "name its columns file_name and latex in the first line of a .csv or .tsv"
THIRD = f"a third column after a second tab; {NAMED}"


class Form(NamedTuple):
    """What stands between name and LaTeX, and whether the name is last."""

    between: str = "\t"
    last: bool = False


TABBED = Form()
FORMS = [Form(between, last) for last in (False, True) for between in "\t|;, "]


# ---------------------------------------------------------------------------------------------- lists of captions


def read_captions(source: Source) -> Iterator[Expression]:
    for table, form in lists(source):
        _refuse_columns(source, table, form)
        for name, latex in pairs(source.lines(table), form):
            if form.between == "\t" and "\t" in latex:
                source.leave_out(name, THIRD)
            else:
                yield from source.expressions(table, name, latex, split_of(table) or split_of_image(name))


def _refuse_columns(source: Source, table: str, form: Form) -> None:
    """Refuse a table whose first line gives its columns other names than `read_tables` knows, or that has a column of
    a few words: a third column would become a part of the LaTeX."""
    first, *others = (_cells(line, form.between) for line in source.filled_lines(table, LINES))
    if form.between == " " or len(first) < 3 or any(len(cells) != len(first) for cells in others):
        return
    columns = [*zip(first, *others, strict=True)]
    columns.pop(-1 if form.last else 0)
    few = next(filter(None, map(_few_words, columns)), "")
    if few or not any(source.find(table, cell.strip()) for cell in first):
        told = f"one of its columns has {few}" if few else f"its columns are {', '.join(first)}"
        raise UserError(f"{source.path}: {table}: {printable(told[:100])}; {NAMED}")


def _few_words(column: Sequence[str]) -> str:
    """The words of a column that says splits, or has a few words again and again."""
    words = dict.fromkeys(cell.strip() for cell in column)
    few = 2 * len(words) <= len(column) or all(says_split(usual(word)) for word in words)
    return " or ".join(words) if few and all(re.fullmatch("[A-Za-z_]{3,}", word) for word in words) else ""


def pairs(lines: Iterable[str], form: Form = TABBED) -> Iterator[tuple[str, str]]:
    """Name and LaTeX of every line that is not empty."""
    return (pair(line, form) for line in lines if line.strip())


def pair(line: str, form: Form = TABBED) -> tuple[str, str]:
    """Name and LaTeX of a line; a name with blanks needs the tab, a line of tabs without one has a blank for it."""
    between, last = form
    if between in ",;|":
        cells = _cells(line, between)
        name, latex = (cells[-1], between.join(cells[:-1])) if last else (cells[0], between.join(cells[1:]))
    else:
        if between == "\t" and "\t" not in line:
            between = " "
        first, _, second = line.strip(" ").rpartition(between) if last else line.strip(" ").partition(between)
        name, latex = (second, first) if last else (first, second)
    return name.strip(), latex.strip()


def _cells(line: str, between: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=between), [""])  # noqa: TID251 (its columns have no names)
    except csv.Error:  # a cell of more than 131,072 characters
        return line.split(between)


def lists(source: Source) -> Iterator[tuple[str, Form]]:
    """The lists among the text files, each in the form in which most of its first lines name images."""
    for table in source.tables(*LISTS):
        lines = source.filled_lines(table, LINES)
        named = {form: sum(_names(source, table, line, form) for line in lines) for form in FORMS}
        best = max(FORMS, key=lambda form: named[form])  # of several, the first
        if named[best]:
            yield table, best


def _names(source: Source, table: str, line: str, form: Form) -> bool:
    """Whether a line in a form names an image and has LaTeX."""
    name, latex = pair(line, form) if form.between in line else ("", "")
    return bool(latex and source.find(table, name))


# ---------------------------------------------------------------------------------------------- numbered formulas


def read_numbered(source: Source) -> Iterator[Expression]:
    """The expressions of all lists; their formulas are in the file of the split, else in the first of none, else in the
    only one."""
    told = {name: split_of(name) for name in _formulas(source)}
    for table in numbered(source):
        split = split_of(table)
        files = [name for name in told if told[name] == split] or [name for name in told if not says_split(told[name])]
        if not files and len(told) > 1:
            source.leave_out(table, "formulas of other splits alone")
            continue
        formulas = source.text(next(iter(files or told))).split("\n")
        for line in filter(None, source.lines(table)):
            name, number = _name_and_number(line)
            if number >= len(formulas):
                source.leave_out(name, "its number is above that of the last formula")
            else:
                yield from source.expressions(table, name, formulas[number], split)


def _formulas(source: Source) -> list[str]:
    return [name for name in source.tables(*NUMBERED) if "formulas" in PurePosixPath(name).name]


def numbered(source: Source) -> Iterator[str]:
    """The lists whose every line is an image and a number, if there are formulas, too."""
    for table in source.tables(*NUMBERED) if _formulas(source) else ():
        lines = source.filled_lines(table, 5)
        listed = "formulas" not in PurePosixPath(table).name and lines and all(map(_NUMBERED.fullmatch, lines))
        if listed and any(source.find(table, _name_and_number(line)[0]) for line in lines):
            yield table


def _name_and_number(line: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(line)
    return (match["image"] or match["name"], int(match["first"] or match["last"])) if match else (line, 1 << 62)


# ---------------------------------------------------------------------------------------- a file for each image


def has_one_each(source: Source) -> bool:
    """Whether some files have the names of images."""
    named = (name for name in source.tables(*ONE_EACH) if source.find(name, PurePosixPath(name).stem))
    return not source.listed and len([*islice(named, FEWEST)]) == FEWEST


def read_one_each(source: Source) -> Iterator[Expression]:
    for name in source.tables(*ONE_EACH):
        path, lines = PurePosixPath(name), source.filled_lines(name)
        latex = " ".join(" ".join(_COMMENT.sub("", line) for line in lines).split())
        if name not in source.unread:
            yield from source.expressions(name, path.stem, latex, split_of(f"{path.parent}/x"))


# ------------------------------------------------------------------------------------------------- tables with columns


TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
IMAGE = ("file_name", "image_path", "image", "img", "img_path", "path", "filename", "file", "name", "img_id", "id")
LATEX = (
    *("latex", "text", "label", "caption", "gt", "formula", "latex_formula", "ground_truth", "tex", "normalizedLabel"),
    *("equation", "latex_code", "annotation", "transcription", "target", "truth", "expression", "sentence"),
)
FIRST = 5  # rows that tell what a table holds
NOT_JSON = "not JSON; correct it"
ROWS = 8  # of parquet read at a time: a file may have one image of MAX_IMAGE_BYTES for all of its rows
MAX_GROWTH = 10  # times the size of a parquet file: images are compressed already
SPLIT, WRITER = ("split", "subset", "set"), ("writer", "writer_id", "user")


class Columns(NamedTuple):
    """The columns of a table that are read, by name; "" for one that it lacks."""

    image: str
    latex: str
    split: str
    writer: str

    @classmethod
    def among(cls, names: Container[str]) -> "Columns":
        """The first of some names that each may have."""
        return cls(*(next((name for name in of if name in names), "") for of in (IMAGE, LATEX, SPLIT, WRITER)))


def has_columns(source: Source) -> bool:
    """Whether any table has a column of images and one of LaTeX."""
    return next(_fitting(source), None) is not None


def _fitting(source: Source) -> Iterator[tuple[str, Columns]]:
    """Those tables, with their columns."""
    for table in source.tables(*TABLES):
        try:
            columns = _columns(source, table)
        except FAULTS as fault:
            if source.listed or PurePosixPath(table).stem == "metadata":
                raise
            source.unread[table] = str(fault)
        else:
            if columns.latex:
                yield table, columns


def read_tables(source: Source) -> Iterator[Expression]:
    for table, columns in _fitting(source):
        for number, row in enumerate(rows(source, table), 1):
            if not {columns.image, columns.latex} & row.keys() and all((others := Columns.among(_plain(row)))[:2]):
                columns = others  # of the next list of a JSON object
            name, latex = value(row, columns.image), value(row, columns.latex)
            if not name or not latex:
                empty = " and ".join(column for column in columns[:2] if not value(row, column))
                source.leave_out(f"{table}, row {number}", f"no image or no LaTeX in the row: {empty} is empty")
                continue
            split = value(row, columns.split) or split_of_image(name) or split_of(table)
            yield from source.expressions(table, name, latex, split, value(row, columns.writer))


def value(row: Mapping[str, Any], column: str) -> str:
    """The cell of a column as text, without halves of characters, as JSON may have; a list is one of tokens."""
    found = row.get(column)
    if found is None or isinstance(found, dict):
        return ""
    text = " ".join(map(str, found)) if isinstance(found, list) else str(found)
    return re.sub("[\ud800-\udfff]", "\ufffd", text).strip()


def rows(source: Source, table: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, each by column; what is no object has no columns. Raises InputError for a damaged one."""
    ending, where = PurePosixPath(table).suffix.lower(), f"{source.path}: {table}"
    with source.opened(table) as file:
        if ending in (".csv", ".tsv"):
            for _, row in rows_of(file, where, _between(source, table)):
                yield {name.strip(): cell for name, cell in row.items()}
        elif ending == ".json":
            yield from _unrolled(json_entries(file, where, NOT_JSON, lists=True))
        else:
            yield from (_object(row) for _, row in json_lines(file, where, NOT_JSON))


def _unrolled(entries: Iterable[tuple[str, str | None, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows of lists; of an object without any, a row for each name of an image with its LaTeX."""
    texts, listed = dict[str, str](), False
    for _, key, value in entries:
        listed |= key is None
        if key is None:
            yield _object(value)
        elif isinstance(value, str):
            texts[key] = value
    if not listed:
        yield from ({"image": name, "latex": text} for name, text in texts.items())


def _object(row: object) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else {}


def _plain(row: Mapping[str, Any]) -> set[str]:
    return {name for name, cell in row.items() if not isinstance(cell, dict)}


def _columns(source: Source, table: str) -> Columns:
    """The columns of a table, by its first line or, of JSON, those of its first rows that name both an image and LaTeX,
    rather those that a row fills; "" if none does. A row that leaves one empty is not read from another. Raises as
    `rows` does."""
    if table.lower().endswith((".csv", ".tsv")):
        names = {name.strip(" \"'") for name in _header(source, table).split(_between(source, table))}
        columns = Columns.among(names)
        return columns if columns.image and columns.latex else Columns("", "", "", "")
    named = [_plain(row) for row in islice(rows(source, table), FIRST)]
    names = {name for each in named if all(Columns.among(each)[:2]) for name in each}
    filled = Columns.among({name for name in names if any(value(row, name) for row in rows(source, table))})
    return Columns(*(best or other for best, other in zip(filled, Columns.among(names), strict=True)))


def _header(source: Source, table: str) -> str:
    return next((line for line in source.lines(table) if line.strip()), "")


def _between(source: Source, table: str) -> str:
    """What separates the columns: where numbers have a decimal comma, office programs write semicolons."""
    return "\t" if table.lower().endswith(".tsv") else max(",;", key=_header(source, table).count)


def read_parquet(source: Source) -> Iterator[Expression]:
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
            unpacked = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
        except (arrow.ArrowException, OSError) as error:
            source.leave_out(table, f"not parquet ({one_line(error)})")
            continue
        if unpacked > max(MAX_IMAGE_BYTES, MAX_GROWTH * len(content)):
            source.leave_out(table, f"its {len(content):,} bytes unpack to {unpacked:,}")
            continue
        kinds = {field.name: field.type for field in file.schema_arrow}
        structs = {name for name, kind in kinds.items() if arrow.types.is_struct(kind)}
        binary = (arrow.binary(), arrow.large_binary())
        images = [name for name, kind in kinds.items() if name in structs or kind in binary]
        columns = Columns.among(kinds.keys() - structs)
        if not images or not columns.latex:
            have = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            source.leave_out(table, f"no column of images as bytes, or none of LaTeX, only {have}")
            continue
        number = 0
        try:
            for row in chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(batch_size=ROWS)):
                number += 1
                held = row[images[0]] if isinstance(row[images[0]], dict) else {"bytes": row[images[0]]}
                content, path = held.get("bytes"), held.get("path") or f"{PurePosixPath(table).stem}_{number}"
                latex = value(row, columns.latex)
                if not isinstance(content, bytes) or not latex or len(content) > MAX_IMAGE_BYTES:
                    source.leave_out(f"{table}, row {number}", "no image or no LaTeX in the row")
                    continue
                split = value(row, columns.split) or split_of(table)
                yield Expression(PurePosixPath(path).stem, content, latex, split, value(row, columns.writer))
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            source.leave_out(table, f"damaged from row {number + 1} on ({one_line(error)})")
