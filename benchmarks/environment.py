"""The environment of a run: the device and its switches, how the run is computed; hardware, versions, revision,
recorded with every result."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import CHECKOUT, suite_version
from hmerbench.benchmarks.runtime import CORES, GRAPHS, ON_GPU, WORKERS, cores

CODE = ("benchmarks", "models", "evaluation")
PACKAGES = ["torch", "numpy", "opencv-python-headless", "safetensors", "pydantic", "mlflow", "optuna"]


def best_device(number: int = 0) -> torch.device:
    """A GPU if there is one, else the CPU; on a GPU, switches off what slows down the search or reduces precision.

    Raises UserError for a GPU whose driver is too old, rather than silently use the CPU, and RuntimeError, as CUDA does
    for a GPU that fails, if a job's GPU is gone.
    """
    if not torch.cuda.is_available():
        if "too old" in (reason := gpu_error()) and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            raise UserError(f"{reason}; update it, or set CUDA_VISIBLE_DEVICES= (to nothing) to work on the CPU")
        if ON_GPU in os.environ:
            raise RuntimeError(f"CUDA error: {reason}")
        return torch.device("cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)  # builds a plan for every step of a search, 0.4 s each on Hopper
    torch.backends.cuda.matmul.allow_tf32 = False  # TF32 keeps 10 of 23 bits; torch's convolutions use it by default
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # bf16 products are summed in float32
    return torch.device(f"cuda:{number}")


def gpu_error() -> str:
    """The first sentence of torch's error if it finds no usable GPU; "" if it finds one."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        return str(error).split(". ")[0].rstrip(".")
    return ""


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and revision as plain data."""
    versions = {}
    with suppress(OSError):
        versions["hmerbench"] = suite_version()  # where it is not installed, too: without one, a run is external
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "gpu": device.type == "cuda",
        "threads": torch.get_num_threads(),
        "bf16_unit": bf16_unit(device.type),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": versions,
        "revision": revision(),
    }


def device_name(device: torch.device) -> str:
    """Model name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def processor() -> str:
    """The CPU's model name if the system gives it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: *(.+)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return model[1].strip() if model else platform.processor() or platform.machine()


def bf16_unit(device: str) -> str | None:
    """The hardware unit for bf16 products of this computer's processor ("cpu") or GPU ("cuda").

    None if it has none: emulated, such products take three times as long as those of float32, so that the settings'
    `bf16` then stands for float32.
    """
    if device == "cuda":
        return "GPU" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    units = {"matrix unit": "_is_amx_tile_supported", "AVX-512": "_is_avx512_bf16_supported"}  # private, may disappear
    return next((unit for unit, check in units.items() if getattr(torch.cpu, check, bool)()), None)


def in_bf16(wanted: bool, device: torch.device) -> bool:
    """Whether products on a device are in bf16: where the settings want it and the device has a unit for it."""
    return wanted and bf16_unit(device.type) is not None


def revision() -> str | None:
    """The git revision of this checkout, if files were changed with `+` and a digest of the changes, those of code that
    git does not know yet among them; that of an unpacked `git archive`; None elsewhere."""
    with suppress(OSError, subprocess.CalledProcessError):
        commit = _git("rev-parse", "HEAD", "HEAD:./pyproject.toml").split()[0].decode()  # not that of a project around
        new = _git("ls-files", "-z", "--others", "--exclude-standard", *(f"{code}/*.py" for code in CODE)).split(b"\0")
        changes = [_git("diff", "--no-ext-diff", "--no-color", "--full-index", "HEAD")]
        changes += [part for name in new[:-1] for part in (name, (CHECKOUT / os.fsdecode(name)).read_bytes())]
        changed = b"\0".join(changes)
        return commit + (f"+{hashlib.sha256(changed).hexdigest()[:8]}" if changed else "")
    with suppress(OSError):
        archived = (CHECKOUT / "hmerbench/REVISION").read_text().strip()
        return None if archived.startswith("$") else archived
    return None


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=CHECKOUT, capture_output=True, check=True).stdout


# ----------------------------------------------------------------------------------------------- how a run is computed


# Nothing here changes what is computed beyond rounding, so none of it is part of a run. The device decides, or the
# variables that the options of `train` and `reproduce` set.
MAX_WORKERS = 4  # processes that prepare the batches of a run on a GPU
MAX_SEARCH_PROCESSES = 8  # processes that search a test set on a GPU, each with a context and a network of its own
SEARCH_GIB = 8  # of the GPU's memory that one of them may take (estimated)


@dataclass(frozen=True)
class Execution:
    """How the batches of a run are made and its steps are run."""

    workers: int  # processes that prepare batches in advance; 0: the training itself does
    graphs: bool  # steps are recorded as CUDA graphs, one for each shape, and replayed

    @classmethod
    def on(cls, device: torch.device, world: int = 1) -> "Execution":
        """That of one of `world` processes on a device.

        A CPU trains with all its cores, so none is left for workers; several processes exchange gradients within a
        step, which is then not recorded. Raises UserError for a variable that cannot be followed.
        """
        gpu = device.type == "cuda"
        workers = _number(WORKERS, max(1, min(MAX_WORKERS, own_cores() // world - 1)) if gpu else 0)
        graphs = _number(GRAPHS, int(gpu and world == 1), 1)
        if graphs and not (gpu and world == 1):
            raise UserError(f"{GRAPHS}=1: only a single process on a GPU records its steps; leave it out")
        return cls(workers, bool(graphs))


def own_cores() -> int:
    """The cores that this job may use."""
    return _number(CORES, cores())


def search_processes(device: torch.device) -> int:
    """Processes that search a test set together: on a GPU, which waits for the host in a search, one a core, as far as
    memory that is free now goes."""
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MAX_SEARCH_PROCESSES, own_cores(), free // (SEARCH_GIB << 30)))


def _number(name: str, default: int, largest: int = 4096) -> int:
    """The value of an environment variable, a whole number up to `largest`."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 4 or int(text) > largest:
        raise UserError(f"{name}={text[:40]}: give a whole number from 0 to {largest}, or leave it out")
    return int(text)
