"""Predictions in one file: JSON lines, a JSON list, or a table with a header line (.csv, .tsv).

A row has an id (`id`, `img_id` or `image`, the name of an image file) and a prediction (`tokens`, `pred` or `latex`: a
text, or in JSON a list of tokens). Anything else in it is ignored, such as the n-best of `recognize --json`. A JSON
mapping has the image or id before each prediction.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from hmerbench.evaluation import InputError, readable
from hmerbench.evaluation.strict import json_of, rows_of

ENDINGS = (".jsonl", ".json", ".csv", ".tsv")
IDS = ("id", "img_id", "image")
TEXTS = ("tokens", "pred", "latex")
NEEDED = "id (or img_id, image) and tokens (or pred, latex)"
MAX_LINE = 4 << 20  # characters; a row of `recognize --json` has a few thousand
MAX_LIST = 128 << 20  # of a .json, which is read whole; lines have no such limit

_IMAGES = (".bmp", ".png", ".jpg", ".jpeg")


def rows(path: Path) -> Iterator[tuple[str, str]]:
    """The id and the LaTeX of every row. Raises InputError with the line or entry that is wrong."""
    with readable(path), path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            for where, row in rows_of(file, path, "\t" if path.suffix == ".tsv" else ",", (IDS, TEXTS), NEEDED):
                yield _prediction(row, where)
        elif path.suffix == ".json" and not _is_lines(file):
            yield from _list(path, file.read(MAX_LIST + 1))
        else:
            yield from _lines(path, file)


def _is_lines(file: io.TextIOBase) -> bool:
    """Whether a .json holds JSON lines by another name: several objects, or one with the keys of a row."""
    first = file.read(1 << 20).lstrip()
    file.seek(0)
    line, _, rest = first.partition("\n")
    return first[:1] == "{" and (rest.lstrip()[:1] == "{" or any(f'"{name}"' in line for name in IDS))


def tsv(predictions: Mapping[str, Sequence[str]]) -> str:
    """Tokens by id as the text of a .tsv with the columns id and tokens, sorted by id."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(("id", "tokens"))
    writer.writerows((id_, " ".join(tokens)) for id_, tokens in sorted(predictions.items()))
    return text.getvalue()


def _lines(path: Path, file: io.TextIOBase) -> Iterator[tuple[str, str]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"{path}, line {number}"
        if len(line) > MAX_LINE:
            raise InputError(f"{where}: is longer than {MAX_LINE >> 20} million characters; is it a prediction?")
        if line.strip():
            yield _prediction(json_of(line, where, f"not a JSON object with {NEEDED}"), where)


def _list(path: Path, text: str) -> Iterator[tuple[str, str]]:
    fault = f"must be a JSON list of objects with {NEEDED}"
    if len(text) > MAX_LIST:
        raise InputError(f"{path}: is larger than {MAX_LIST >> 20} MB; write it as JSON lines (.jsonl)")
    found = json_of(text, path, fault) if text.strip() else []
    if isinstance(found, dict):  # by id
        found = [{"image": key} | (row if isinstance(row, dict) else {"pred": row}) for key, row in found.items()]
    if not isinstance(found, list):
        raise InputError(f"{path}: {fault}")
    for number, row in enumerate(found, 1):
        yield _prediction(row, f"{path}, entry {number}")


def _prediction(row: object, where: str) -> tuple[str, str]:
    names = row if isinstance(row, Mapping) else {}
    id_, text = (next((name for name in known if name in names), None) for known in (IDS, TEXTS))
    if id_ is None or text is None:
        raise InputError(f"{where}: not a JSON object with {NEEDED}")
    key, latex = names[id_], names[text]
    try:
        latex = latex if isinstance(latex, str) else " ".join(latex) if isinstance(latex, list) else None
        valid = isinstance(key, str) and latex is not None
        (latex or "").encode()  # JSON may hold lone surrogates ("\ud800"), which no file can
    except (TypeError, UnicodeEncodeError):
        valid = False
    if not valid or not isinstance(latex, str):
        raise InputError(f"{where}: {id_} must be a string and {text} a text or a list of strings")
    if id_ == "image":
        file = PurePosixPath(key.replace("\\", "/"))
        key = file.stem if file.suffix.lower() in _IMAGES else file.name
    return key, latex
