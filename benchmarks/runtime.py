"""What a process is given: settings of libraries, made before their first use by the program and by the jobs it starts
elsewhere, and its share of the machine. Needs no torch."""

import codecs
import contextlib
import ctypes
import io
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # as in linux/prctl.h
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # as glibc's malloc.h numbers them
MIB = 1 << 20
PLAIN = str.maketrans({"–": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=", "±": "+-", "→": "->", "×": "x", "✓": "ok"})

# variables that say how runs are computed, which the processes of a command inherit (environment.Execution)
WORKERS, GRAPHS = "HMERBENCH_WORKERS", "HMERBENCH_GRAPHS"
CORES = "HMERBENCH_CORES"  # of this machine's, those that a job among others may use
ON_GPU = "HMERBENCH_ON_GPU"  # set for a job that is to use a GPU: without one it ends, to be started again

# oneDNN's 1,024 kernels: a thousand images of 930 shapes are read in 1.6 GB, and 300 as fast as with all kernels kept,
# which took 2.7 GB. One thread: on two busy cores, two that wait for each other took 174 s for an image, one took 3.5
READ = {"OMP_NUM_THREADS": "1"}
FOR_COMMAND = {
    # enough for the kernels of every padded shape of a training, about 0.5 MB each; a search, which needs few of its
    # own again, doubled the memory of the training before it
    "train": {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384"},
    **dict.fromkeys(("recognize", "draw", "export"), READ),
    # as many as a server that reads for ever may keep: 48 pictures of as many shapes took 0.5 GB in place of 1.3, and
    # 16.5 s of a processor in place of 15.2
    "serve": {**READ, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"},
}


def configure_libraries(command: str = "train") -> None:
    """Set the environment for what a command does, fast, repeatable, and with quiet libraries; variables the user has
    set are kept."""
    settings = {
        **FOR_COMMAND.get(command, FOR_COMMAND["train"]),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else matrix products on a GPU are not repeatable
        "OPENCV_FOR_THREADS_NUM": "1",  # images are too small to split, and OpenCV's threads compete with torch's
        # no telemetry: nothing is sent but to the requested tracking server, which must not hold up the work
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # errors are reported once, by the suite
        "GIT_PYTHON_REFRESH": "quiet",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    # by default glibc returns the memory that a step frees to the system and requests it again in the next one: 27,000
    # page faults, 7 % of the time of a step on a CPU. A server's threads would each keep that much
    keep = ((ARENA_MAX, 1),) if command == "serve" else ((TRIM_THRESHOLD, 512 * MIB), (TOP_PAD, 256 * MIB))
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        for option, value in ((MMAP_THRESHOLD, 32 * MIB), *keep):
            ctypes.CDLL(None).mallopt(option, value)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent(*_: object) -> None:
    """End this process at once if the one that started it is killed (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def configure_output() -> None:
    """Let stdout print what its encoding lacks in other characters, and file names that are not UTF-8 unchanged."""
    codecs.register_error("plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, after = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":  # a byte of a file name
        return character.encode("latin-1", "surrogateescape"), after
    plain = character.translate(PLAIN)
    return plain if plain.isascii() else "?", after
