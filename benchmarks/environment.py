"""Where a run is made: the device with its switches; hardware, versions, revision, written beside every result."""

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.errors import UserError

PACKAGES = ["hmerbench", "torch", "numpy", "opencv-python-headless", "safetensors", "pydantic", "mlflow", "optuna"]


def best_device(number: int = 0) -> torch.device:
    """What to work on: a GPU where there is one, with what slows it down or rounds its numbers switched off.

    Raises UserError for a GPU whose driver is too old, rather than work on the CPU without a word.
    """
    if not torch.cuda.is_available():
        if "too old" in (reason := why_no_gpu()) and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            raise UserError(f"{reason}; update it, or set CUDA_VISIBLE_DEVICES= (to nothing) to work on the CPU")
        return torch.device("cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)  # builds a plan for every step of a search, 0.4 s each on Hopper
    torch.backends.cuda.matmul.allow_tf32 = False  # of 23 bits TF32 keeps 10; torch's convolutions use it unasked
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(f"cuda:{number}")


def why_no_gpu() -> str:
    """What torch says where it finds no GPU to work on, in a sentence; nothing where it finds one."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        return str(error).split(". ")[0].rstrip(".")
    return ""


def environment(device: torch.device) -> dict[str, Any]:
    """System facts as plain data."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "bf16_matrix_unit": device.type == "cpu" and bf16_unit() == "matrix unit",
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": versions,
        "revision": revision(),
    }


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The CPU's own name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: *(.+)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return named[1].strip() if named else platform.processor() or platform.machine()


def bf16_unit() -> str | None:
    """What the processor multiplies bf16 with in hardware, so that bf16 pays; None where nothing does."""
    units = {"matrix unit": "_is_amx_tile_supported", "AVX-512": "_is_avx512_bf16_supported"}  # private: they may go
    return next((unit for unit, check in units.items() if getattr(torch.cpu, check, bool)()), None)


def revision() -> str | None:
    """The git revision of this checkout, with `+` after it where files were changed; None outside a checkout."""
    describe = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    with suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    return None
