"""`python -m evaluation`: score, compare and explain predictions."""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from evaluation import InputError, lgeval
from evaluation.inputs import parse_captions

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Predictions = Annotated[Path, typer.Option(help="folder of ID.txt, zip of them, or .jsonl")]
Truth = Annotated[str, typer.Option(help="ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg")]
Captions = Annotated[Path | None, typer.Option(help="ID<TAB>tokens lines, for a folder of .lg")]


@app.callback()
def _commands() -> None:
    pass  # keeps `score` a command of its own


@app.command()
def score(
    predictions: Predictions,
    ground_truth: Truth,
    captions: Captions = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the score as JSON")] = False,
    per_expression: Annotated[Path | None, typer.Option(help="write one CSV row an expression")] = None,
    workdir: Annotated[Path | None, typer.Option(help="keep the scorer's files here")] = None,
    set_name: Annotated[str, typer.Option("--set", help="name of the set in the signature")] = "unknown",
    search: Annotated[str, typer.Option(help="search in the signature")] = "unknown",
    select: Annotated[str, typer.Option(help="checkpoint selection in the signature")] = "unknown",
) -> None:
    """Expression rates of predictions, as the CROHME scorer counts them."""
    fields = {"set": set_name, "search": search, "select": select}
    with ExitStack() as stack:
        folder = workdir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        result = lgeval.evaluate(predictions, ground_truth, fields, folder, _captions(captions))
    if result.stray:
        print(f"note: {result.stray} predictions have no ground truth and are left out", file=sys.stderr)
    if per_expression:
        write_csv(per_expression, map(asdict, result.expressions))
    if as_json:
        print(json.dumps(result.score.as_dict(), indent=2))
    else:
        print_score(result.score)


def print_score(score: lgeval.Score) -> None:
    print(score)
    for name, count, rate in (
        ("exact", score.exact, score.exprate),
        ("<= 1 error", score.le1, score.exprate_le1),
        ("<= 2 errors", score.le2, score.exprate_le2),
        ("<= 3 errors", score.le3, score.exprate_le3),
        ("structure", score.structure, score.structure_rate),
        ("tokens exact", score.token_exact, score.token_exprate),
    ):
        if count is not None:
            print(f"{name:>13} {count:>5} of {score.n}  {rate:6.2f} %")
    for row in score.by_length or []:
        rate = "" if row["exprate"] is None else f"{row['exprate']:6.2f} %"
        print(f"{row['bucket']:>13} {row['exact']:>5} of {row['n']}  {rate}")
    print(f"missing {score.missing}, not convertible {score.unconverted}; both count as wrong")


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows of equal keys as one CSV file, whole or not at all."""
    rows = list(rows)
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _captions(path: Path | None) -> dict[str, list[str]] | None:
    if path is None:
        return None
    try:
        return parse_captions(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None


def main() -> int:
    """Run the command line; every bad input is one line on stderr."""
    try:
        app(standalone_mode=False)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # typer's usage errors; it vendors or depends on click, whose classes differ between versions
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return getattr(error, "exit_code", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
