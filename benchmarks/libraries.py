"""What libraries are told before they are used: by the program, and by the jobs that it starts elsewhere."""

import contextlib
import ctypes
import os

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # as glibc's malloc.h numbers them
MIB = 1 << 20


def settle() -> None:
    """Sets the environment that makes training fast and repeatable, and libraries quiet; what a user has set stays."""
    settings = {
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "65536",  # kernels for every padded shape stay built
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else products on a GPU are not repeatable
        "OPENCV_FOR_THREADS_NUM": "1",  # an image is too small to share, and OpenCV's threads would fight torch's
        # nothing leaves this machine but to the tracking server asked for, and that may not hold the work up
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # what goes wrong is told once, by us
        "GIT_PYTHON_REFRESH": "quiet",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    # glibc hands what a step frees back to the system and asks for it again in the next: 27,000 page faults and 7 % of
    # the time of a step on a CPU
    with contextlib.suppress(AttributeError, OSError):  # another C library
        for option, value in ((MMAP_THRESHOLD, 32 * MIB), (TRIM_THRESHOLD, 512 * MIB), (TOP_PAD, 256 * MIB)):
            ctypes.CDLL(None).mallopt(option, value)
