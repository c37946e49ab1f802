"""The program: register the commands, configure the libraries, report every error as one line."""

import errno
import os
import re
import signal
import sys
import threading

# isort: off
from hmerbench.benchmarks.cli import data, runs, scoring, images, results  # noqa: F401  (imported to register commands, in this order)

# isort: on
from hmerbench.benchmarks.cli.options import app
from hmerbench.benchmarks.errors import FAULTS, gpu_failure, lacks_memory, out_of_memory_reason, printable
from hmerbench.benchmarks.runtime import configure_libraries, configure_output

# commands that go on where they were stopped
RESUMED = {"reproduce", "reproduce-lm", "train", "predict", "tune", "trial", "evaluate"}
EXTRAS = {"torch": "recognize", "cv2": "recognize", "PIL": "recognize", "safetensors": "recognize", "ray": "ray"}
EXTRAS |= dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "export")
LOST = r"Connection (closed|reset|refused)|ncclRemoteError"  # how gloo and NCCL report that another process has ended


def main() -> int:
    """Run the command line; return the exit code. HMERBENCH_DEBUG=1 shows tracebacks."""
    configure_libraries(*sys.argv[1:2])
    configure_output()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster's limit: stop as after Ctrl-C
    try:
        code = app(standalone_mode=False)
        if sys.stdout:  # not closed
            sys.stdout.flush()
        if code == 130:
            raise KeyboardInterrupt  # recent Typer returns this exit code; older versions raise
        return code if isinstance(code, int) else 0
    except BaseException as error:
        if os.environ.get("HMERBENCH_DEBUG") or isinstance(error, SystemExit | GeneratorExit):
            raise
        return _report(error)


def _report(error: BaseException) -> int:
    """Print an error to stderr; return the exit code."""
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
        kept = f": finished stages and the last checkpoint are kept; {_again()} to resume"
        print(f"\nstopped{kept if RESUMED & {*sys.argv[1:2]} else ''}", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    if show := getattr(error, "show", None):  # a usage error, whose class Typer does not export
        show()
        return getattr(error, "exit_code", 2)
    print(f"error: {_message(error)}", file=sys.stderr)
    if isinstance(error, OSError) and not error.filename:  # stdout is full or closed: nothing is to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def _again() -> str:
    """How to continue: --force would discard what was done under it so far."""
    return f"run the same command again{' without --force (FORCE=1)' if '--force' in sys.argv else ''}"


def _message(error: BaseException) -> str:
    text = printable(" ".join(str(error).split()))
    if isinstance(error, FAULTS):
        return text
    if failure := gpu_failure(error):
        return f"the GPU failed ({failure}); finished stages and the last checkpoint are kept: {_again()}"
    if lacks_memory(error):
        fix = "reduce training.batching.pixels, or set CUDA_VISIBLE_DEVICES= (to nothing) to use the CPU"
        return f"{out_of_memory_reason(error)}; {fix}"
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text:
        return "this machine's memory is too small; reduce training.batching.pixels, or the network"
    if isinstance(error, OSError):
        fixes = {
            errno.ENOSPC: f"free disk space and {_again()}",
            errno.EROFS: "choose a writable folder (RESULTS=, --results)",
            errno.EACCES: "make it readable, or choose a writable folder (RESULTS=, --results)",
        }
        fix = fixes.get(error.errno or 0, f"fix this and {_again()}")
        return f"{printable(error.filename or 'output')}: {error.strerror or text}; {fix}"
    if isinstance(error, RuntimeError) and "WORLD_SIZE" in os.environ and re.search(LOST, text):
        lost = "the connection to another process of this training was lost"
        return f"{lost}: fix what that process reports, then start all of them again"
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get((error.name or "").partition(".")[0], "suite")
        setup = "setup" if extra in ("recognize", "suite") else "setup-dev"
        return f"{text}; this command needs more: make {setup}, or pip install 'hmerbench[{extra}]'"
    return f"{type(error).__name__}: {text[:300]} (unexpected, probably a bug; HMERBENCH_DEBUG=1 shows the traceback)"
