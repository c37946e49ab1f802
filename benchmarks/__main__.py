"""The door: the verbs, grouped; side effects on libraries; every error as one line."""

import errno
import io
import os
import sys

# isort: off
from benchmarks.cli import data, runs, results, images, checks  # noqa: F401  (each adds its verbs, in this order)

# isort: on
from benchmarks.cli.options import app
from benchmarks.errors import UserError, shortage
from benchmarks.libraries import settle
from evaluation import InputError
from models.errors import CheckpointError


def main() -> int:
    """Runs the command line. Every error is one line on stderr; HMERBENCH_DEBUG=1 shows tracebacks."""
    settle()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # the name of a file leaves as it came, even if it is not UTF-8
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        if app(standalone_mode=False) == 130:
            raise KeyboardInterrupt  # typer makes this exit code of it; older ones, an exception of their own
    except BaseException as error:
        if os.environ.get("HMERBENCH_DEBUG") or isinstance(error, SystemExit | GeneratorExit):
            raise
        return _tell(error)
    return 0


def _tell(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
        kept = "finished stages and the last checkpoint are kept; run the same command again to resume"
        print(f"\nstopped: {kept}", file=sys.stderr)
        return 130
    if show := getattr(error, "show", None):  # a usage error; typer hides click's classes
        show()
        return getattr(error, "exit_code", 2)
    print(f"error: {_words_for(error)}", file=sys.stderr)
    return 1


def _words_for(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, UserError | InputError | CheckpointError):
        return text
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not loaded for its name alone
        return (
            f"{shortage(error)}; a smaller training.batching.pixels, or CUDA_VISIBLE_DEVICES= for the CPU, needs none"
        )
    if isinstance(error, OSError):
        fixes = {
            errno.ENOSPC: "make room and run the same command again",
            errno.EROFS: "choose a place that can be written (RESULTS=, --results)",
            errno.EACCES: "choose a place that can be written (RESULTS=, --results)",
        }
        fix = fixes.get(error.errno or 0, "fix that and run the same command again")
        return f"{error.filename or 'a file'}: {error.strerror or text}; {fix}"
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; this verb needs the whole suite: pip install 'hmerbench[suite]', or make setup"
    return f"{type(error).__name__}: {text[:300]} (not foreseen: a fault of ours; HMERBENCH_DEBUG=1 shows where)"


if __name__ == "__main__":
    sys.exit(main())
