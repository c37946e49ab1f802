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
from hmerbench.evaluation.strict import json_entries, json_lines, rows_of

ENDINGS = (".jsonl", ".json", ".csv", ".tsv")
IDS = ("id", "img_id", "image")
TEXTS = ("tokens", "pred", "latex")
NEEDED = "id (or img_id, image) and tokens (or pred, latex)"

_IMAGES = (".bmp", ".png", ".jpg", ".jpeg")


def rows(path: Path) -> Iterator[tuple[str, str]]:
    """The id and the LaTeX of every row. Raises InputError with the line or entry that is wrong."""
    with readable(path), path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            for where, row in rows_of(file, path, "\t" if path.suffix == ".tsv" else ",", (IDS, TEXTS), NEEDED):
                yield _prediction(row, where)
        elif path.suffix == ".json" and not _is_lines(file):
            for where, key, row in json_entries(file, path, f"must be a JSON list of objects with {NEEDED}"):
                named = {"image": key} | (row if isinstance(row, dict) else {"pred": row})
                yield _prediction(row if key is None else named, where)
        else:
            for where, row in json_lines(file, path, f"not a JSON object with {NEEDED}"):
                yield _prediction(row, where)


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
