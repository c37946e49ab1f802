"""The verb `recognize`: images to LaTeX, one line each."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.recognition.photographs import short
from benchmarks.recognition.recognizer import Recognition, Recognizer


def recognize(
    images: Sequence[Path], weights: Path | None = None, *, as_json: bool = False, nbest: int = 10, show: bool = False
) -> int:
    """Prints the LaTeX of every image, one line each, after its name where there are several; or JSON lines.

    An image that cannot be recognized gets one line on stderr and the others go on; so does a doubtful reading.
    `show` draws the attention to IMAGE.attention.png, and says so on stderr. Returns how many failed.
    """
    recognizer, failed = Recognizer.load(weights), 0
    for path in images:
        try:
            found = recognizer(path)
            named = f"{path}\t{found.latex}" if len(images) > 1 else found.latex
            print(found.as_json(nbest) if as_json else named, flush=True)
            if found.doubtful:
                note = "read with little confidence; is it a picture of one expression, cut out?"
                print(f"doubtful: {path}: {note} ({found.nbest[0].confidence:.0%} a token)", file=sys.stderr)
            if show:
                _show(recognizer, found)
        except Exception as error:  # what is wrong with one image is no reason to leave the others unread
            failed += 1
            print(f"error: {error if isinstance(error, UserError) else f'{path}: {short(error)}'}", file=sys.stderr)
    return failed


def _show(recognizer: Recognizer, found: Recognition) -> None:
    from benchmarks.report.figures.attention import picture

    target = Path(f"{found.name}.attention.png")
    try:
        write_atomically(target, picture(recognizer.attention(found)))
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}; copy the image to a folder that can be written") from None
    print(f"attention: {target}", file=sys.stderr)
