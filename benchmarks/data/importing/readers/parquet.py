"""Parquet files of Hugging Face's data sets: a column of images {bytes, path}, one of LaTeX."""

import io
from collections.abc import Iterator
from pathlib import PurePosixPath

from hmerbench.benchmarks.data.importing.readers.columns import LATEX, SPLIT, WRITER, value
from hmerbench.benchmarks.data.importing.source import MAX_IMAGE, Expression, LeftOut, Source, split_named
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.weights import one_line

ROWS = 8  # read at a time: a file may have one image of MAX_IMAGE for all of its rows
MAX_GROWTH = 10  # times the size of the file: images are compressed already


def found(source: Source) -> bool:
    """Whether there are such files."""
    return bool(source.tables(".parquet"))


def read(source: Source, left_out: LeftOut) -> Iterator[Expression]:
    """The expressions of all files, a few in memory at a time."""
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
