"""Scoring of CROHME predictions: LaTeX -> symLG -> LgEval metrics. Reads files; knows nothing of models."""

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

if __name__ != "hmerbench.evaluation":  # one module, one name
    if sys.argv[0] == "-m":
        from hmerbench.renamed import moved

        sys.exit(moved(__name__))
    raise ImportError("evaluation/ is imported as hmerbench.evaluation", name=__name__)


def printable(text: object) -> str:
    """The text as a terminal may print it: control characters, as file names may hold, are written out (\\n, \\x1b)."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], str(text))


class InputError(ValueError):
    """A file or argument that cannot be scored; the message is one line that names it and the fix."""


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Turn a failure to open or read `path` within the block into an InputError."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text; save it as that") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def run_program(run: Callable[[], int | None]) -> int:
    """Run a program and return its exit status; bad input becomes one line on stderr."""
    try:
        status = run()
        if sys.stdout:  # not closed
            sys.stdout.flush()
        return status or 0
    except InputError as error:
        print(f"error: {printable(error)}", file=sys.stderr)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        if not error.filename:  # stdout is full or closed: keep Python from flushing it again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except UnicodeEncodeError:
        fix = "rename a folder that is not UTF-8 text, or set PYTHONIOENCODING=utf-8"
        print(f"error: the output has a character that cannot be written here; {fix}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


def lines(text: str) -> list[str]:
    """The lines of a file's text: cut where files end them, not at the separators that Unicode also counts as such."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
