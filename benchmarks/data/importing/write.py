"""`import-data`: any known layout becomes an archive in CoMER's, its images prepared, its captions in tokens.

Images go through a spool on disk, so that memory holds captions alone. The same source and choices give the same bytes.
"""

import json
import os
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, NamedTuple

import cv2
import numpy as np

from hmerbench.benchmarks.data.archive import DONE, PREPARED_MARKER, WRITERS, abridged, counted_words, unknown_words
from hmerbench.benchmarks.data.importing import inkml, pickled, tables
from hmerbench.benchmarks.data.importing.captions import Limits, Unsplit, caption_of
from hmerbench.benchmarks.data.importing.source import (
    LISTING,
    NO_CAPTION,
    Choice,
    Expression,
    Row,
    Source,
    chosen,
    held_out,
)
from hmerbench.benchmarks.data.normalize_image import Prepared, decoded, prepare
from hmerbench.benchmarks.errors import FAULTS, UserError
from hmerbench.benchmarks.printing import console, counted, err_console, progress, show
from hmerbench.evaluation.scoring.inputs import composed
from hmerbench.evaluation.stores import MAX_CAPTIONS
from hmerbench.evaluation.symlg import Unconverted, from_latex

DATE = (1980, 1, 1, 0, 0, 0)  # of every entry, so that equal content gives equal bytes
COMPRESSION = 9  # of images: at another level an import would be another archive, with another digest


class Reader(NamedTuple):
    """A layout, in the order in which sources are asked for it."""

    name: str
    found: Callable[[Source], bool]
    read: Callable[[Source], Iterator[Expression]]


READERS = (
    Reader("InkML", lambda source: bool(source.tables(".inkml")), inkml.read),
    Reader("parquet", lambda source: bool(source.tables(".parquet")), tables.read_parquet),
    Reader("pickled images", pickled.found, pickled.read),
    Reader("table with columns", tables.has_columns, tables.read_tables),
    Reader("numbered formulas", lambda source: any(tables.numbered(source)), tables.read_numbered),
    Reader("list of captions", lambda source: any(tables.lists(source)), tables.read_captions),
    Reader("a file for each image", tables.has_one_each, tables.read_one_each),
)


def reader_of(source: Source) -> Reader:
    """The layout of a source, told by its content. Raises UserError for none."""
    if reader := next((reader for reader in READERS if reader.found(source)), None):
        return reader
    known = (
        "ID.inkml, caption.txt (ID; a tab, blank, comma, semicolon or bar; LaTeX) beside images, ID.txt for each, "
        "metadata.jsonl or .csv, a JSON list, parquet, numbered formulas, or images.pkl; a name with blanks needs a tab"
    )
    unread = next((f"; {fault}" for fault in source.unread.values()), "")
    raise UserError(f"{source.path}: holds no captions in a known layout; there should be {known}{unread}")


def import_data(path: Path, target: Path, choice: Choice, limits: Limits = "keep", tidy: bool = True) -> None:
    """Write the archive `target`, and beside it a list of every expression, what was changed and what was left out.

    What is not made `tidy` is taken as it is: captions in tokens, images as a network reads them. Raises UserError for
    a source in no known layout, and if nothing is left.
    """
    source = Source(path)
    reader = reader_of(source)
    console.print(f"{path}: {reader.name}")
    with tempfile.TemporaryFile(dir=target.parent) as spool:
        rows = list(chosen(_spooled(reader.read(source), source, spool, limits, tidy), choice, source))
        if choice.test_share:  # of one image, so that no second caption of it gets into the other split
            rows = held_out(_unique(rows, source, spool), choice, source)
        rows = _unique(_scorable(rows, source), source, spool)
        listing = target.with_suffix(LISTING)
        with listing.open("w", encoding="utf-8") as file:
            for row in rows:
                told = {name: value for name, value in asdict(row).items() if name not in ("start", "size", "dark")}
                file.write(json.dumps(told, ensure_ascii=False) + "\n")
            for reason, names in source.left_out.items():
                file.writelines(json.dumps({"left_out": name, "reason": reason}) + "\n" for name in names)
        _report(rows, source.left_out, limits)
        if not rows:
            count = sum(map(len, source.left_out.values()))
            raise UserError(f"{path}: no expression is left of {count:,}; {listing} says why")
        _write(target, rows, spool, {"layout": reader.name, "limits": limits, "tidy": tidy, **asdict(choice)})
    console.print(f"{target}: {counted(len(rows), 'expression')}; {listing.name} lists them, and what was left out")


def _spooled(
    expressions: Iterator[Expression], source: Source, spool: IO[bytes], limits: Limits, tidy: bool
) -> Iterator[Row]:
    """The expressions that can be used, their images prepared and written to the spool."""
    for found in progress(expressions, "importing"):
        try:
            caption = caption_of(found.latex, limits, tidy)
            prepared = _prepared(source, found.image, tidy)
        except Unsplit as fault:
            source.leave_out(found.name, f"caption {fault}")
        except FAULTS as fault:
            source.leave_out(found.name, str(fault).removeprefix(": "))
        else:
            start, size = spool.tell(), spool.write(_png(prepared.image))
            told = composed(found.name), found.split, caption.tokens, found.writer, found.latex
            dark = not tidy and bool(np.median(prepared.image) > 127)
            yield Row(*told, dict(caption.changes), prepared.done, start, size, dark)
    for graph in source.tables(".lg"):
        source.leave_out(graph, "a label graph; the ground truth of a test set is made from its captions")
    for name, fault in source.unread.items():
        source.leave_out(name, fault.removeprefix(f"{source.path}: "))
    for image in source.unnamed_images():
        source.leave_out(image, NO_CAPTION)


def _prepared(source: Source, image: str | bytes | np.ndarray, tidy: bool) -> Prepared:
    held = source.read(image) if isinstance(image, str) else image
    if tidy:
        return prepare(held, "")
    return Prepared(held if isinstance(held, np.ndarray) else decoded(held, ""))


def _png(ink: np.ndarray) -> bytes:
    options = [cv2.IMWRITE_PNG_COMPRESSION, COMPRESSION, cv2.IMWRITE_PNG_BILEVEL, int(np.isin(ink, (0, 255)).all())]
    return cv2.imencode(".png", ink, options)[1].tobytes()


def _scorable(rows: list[Row], source: Source) -> Iterator[Row]:
    """Those of test sets whose caption has a label graph, and all of the training set."""
    for row in rows:
        try:
            if row.split != "train":
                from_latex(row.tokens)
        except Unconverted as fault:
            odd = ", ".join(unknown_words([row.tokens]))
            reason = f"test caption does not convert to symLG ({fault}{odd and f'; not of CROHME: {odd}'})"
            source.leave_out(f"{row.split}/{row.id}", reason)
        else:
            yield row


def _unique(rows: Iterable[Row], source: Source, spool: IO[bytes]) -> list[Row]:
    """The rows with splits and ids that can be names of files, each once in its split."""
    kept: dict[tuple[str, str], Row] = {}
    for row in rows:
        before = row.id
        row.split, row.id = (re.sub(r"^[^\w]|[^\w.+-]", "_", name) for name in (row.split, row.id))
        if row.id != before:
            row.changes["id made a name of a file"] = 1
        if (other := kept.setdefault((row.split, row.id), row)) is not row:
            same = "two captions of one image" if other.tokens != row.tokens else "listed twice"
            same = same if _image(other, spool) == _image(row, spool) else "another image of its name; rename it"
            source.leave_out(f"{row.split}/{row.id}", same)
    return [kept[key] for key in sorted(kept)]


def _image(row: Row, spool: IO[bytes]) -> bytes:
    spool.seek(row.start)
    return spool.read(row.size)


def _write(target: Path, rows: list[Row], spool: IO[bytes], record: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:  # of this import alone
        partial = Path(scratch, target.name)
        with zipfile.ZipFile(partial, "w") as archive:
            for split in sorted({row.split for row in rows}):
                mine = [row for row in rows if row.split == split]
                text = "".join(f"{row.id}\t{' '.join(row.tokens)}\n" for row in mine).encode()
                if len(text) > MAX_CAPTIONS:
                    fault = f"{len(text):,} bytes, and an archive's may have {MAX_CAPTIONS:,}"
                    raise UserError(f"{target}: the captions of {split} have {fault}; import them in parts")
                _add(archive, f"data/{split}/caption.txt", text, zipfile.ZIP_DEFLATED)
                columns = {
                    WRITERS: {row.id: row.writer for row in mine},
                    DONE: {row.id: "; ".join(row.prepared) for row in mine},
                }
                for file, told in columns.items():
                    if lines := "".join(f"{id_}\t{words}\n" for id_, words in told.items() if words):
                        _add(archive, f"data/{split}/{file}", lines.encode(), zipfile.ZIP_DEFLATED)
                for row in mine:
                    _add(archive, f"data/{split}/img/{row.id}.png", _image(row, spool), zipfile.ZIP_STORED)
            _add(archive, f"data/{PREPARED_MARKER}", json.dumps(record, sort_keys=True).encode(), zipfile.ZIP_STORED)
        os.replace(partial, target)


def _add(archive: zipfile.ZipFile, name: str, content: bytes, method: int) -> None:
    entry = zipfile.ZipInfo(name, DATE)
    entry.external_attr, entry.compress_type = 0o644 << 16, method
    archive.writestr(entry, content)


def _report(rows: list[Row], left_out: dict[str, list[str]], limits: Limits) -> None:
    """Print what is in the archive, what was changed and what was left out, each as counts."""
    if rows:
        counts = Counter(row.split for row in rows)
        show("imported", [{"split": split, "expressions": counts[split]} for split in sorted(counts)])
    changes, done = Counter[str](), Counter[str]()
    for row in rows:
        changes.update(row.changes.keys())
        done.update(re.sub(r" by .*", "", step) for step in row.prepared)
    for what, found in (("captions", changes), ("images", done)):
        for rule, count in found.most_common():
            console.print(f"  {what}: {rule} in {count:,}")
    if limits == "keep" and any(rule.startswith("written") for rule in changes):
        console.print(r"  CROHME writes \sum \limits _, and networks trained on it read that: --limits add makes it so")
    if dark := sum(row.dark for row in rows):
        fault = "not white on black, as networks read them, and --as-is leaves them so; import without it"
        err_console.print(f"{counted(dark, 'image')} {fault}")
    if new := unknown_words(row.tokens for row in rows):
        console.print(f"  not among CROHME's symbols: {counted_words(new)}")
    for reason, names in sorted(left_out.items(), key=lambda item: -len(item[1])):
        err_console.print(f"left out, {reason}: {len(names):,} ({abridged(names)})")
