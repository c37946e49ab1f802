"""Predictions in one file: JSON lines, a JSON list, or a table with a header line (.csv, .tsv).

A row has an id (`id`, `img_id` or `image`, the name of an image file) and a prediction (`tokens`, `pred` or `latex`: a
text, or in JSON a list of tokens). Anything else in it is ignored, such as the n-best of `recognize --json`.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hmerbench.evaluation import InputError, readable
from hmerbench.evaluation.scoring.tokens import prediction_file

ENDINGS = (".jsonl", ".json", ".csv", ".tsv")
IDS = ("id", "img_id", "image")
TEXTS = ("tokens", "pred", "latex")
NEEDED = "id (or img_id, image) and tokens (or pred, latex)"

_IMAGES = (".bmp", ".png", ".jpg", ".jpeg")


def rows(path: Path) -> Iterator[tuple[str, str]]:
    """The id and the prediction file's text of every row. Raises InputError with the line or entry that is wrong."""
    with readable(path), path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            yield from _table(path, csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))
        elif path.suffix == ".json" and file.read(1 << 20).lstrip()[:1] != "{":  # else JSON lines by another name
            file.seek(0)
            yield from _list(path, file.read())
        else:
            file.seek(0)
            yield from _lines(path, file)


def tsv(predictions: Mapping[str, Sequence[str]]) -> str:
    """Tokens by id as the text of a .tsv with the columns id and tokens, sorted by id."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(("id", "tokens"))
    writer.writerows((id_, " ".join(tokens)) for id_, tokens in sorted(predictions.items()))
    return text.getvalue()


def _lines(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise InputError(f"{where}: not a JSON object with {NEEDED}") from None
            yield _prediction(row, where)


def _list(path: Path, text: str) -> Iterator[tuple[str, str]]:
    try:
        found = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise InputError(f"{path}: must be a JSON list of objects with {NEEDED}")
    for number, row in enumerate(found, 1):
        yield _prediction(row, f"{path}, entry {number}")


def _table(path: Path, reader: Any) -> Iterator[tuple[str, str]]:
    try:
        header = next(reader, [])
        if header and not (set(header) & set(IDS) and set(header) & set(TEXTS)):
            shown = ", ".join(header)[:80]
            raise InputError(f"{path}: its columns are {shown}; name them {NEEDED} in the first line")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if row and len(row) != len(header):
                raise InputError(f"{where}: {len(row)} fields under {len(header)} columns")
            if row:
                yield _prediction(dict(zip(header, row, strict=True)), where)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not a table ({error})") from None


def _prediction(row: object, where: str) -> tuple[str, str]:
    names = row if isinstance(row, Mapping) else {}
    id_, text = (next((name for name in known if name in names), None) for known in (IDS, TEXTS))
    if id_ is None or text is None:
        raise InputError(f"{where}: not a JSON object with {NEEDED}")
    key, tokens = names[id_], names[text]
    if isinstance(tokens, str):
        tokens = tokens.split()
    try:
        "".join(tokens).encode()  # JSON may hold lone surrogates ("\ud800"), which no file can
        valid = isinstance(key, str) and isinstance(tokens, list)
    except (TypeError, UnicodeEncodeError):
        valid = False
    if not valid:
        raise InputError(f"{where}: {id_} must be a string and {text} a text or a list of strings")
    if id_ == "image":
        file = PurePosixPath(key.replace("\\", "/"))
        key = file.stem if file.suffix.lower() in _IMAGES else file.name
    return key, prediction_file(key, tokens)
