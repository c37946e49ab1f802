"""What a bug report should start with: what is here, what is broken or known to go badly, and the fix of each.

`broken` is what the main job needs and would fail by; `warn` costs time, a mirror or a stage beside it. Every check
stands alone: what cannot be imported is a finding, not an end.
"""

import importlib
import json
import locale
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from benchmarks.printing import console

GIB = 2**30
PYTHON = (3, 11)
TORCH = ((2, 11), (2, 13))  # the releases this suite is tested with
SHARED_MEMORY = Path("/dev/shm")
MAPS = Path("/proc/self/maps")
SHOWN = ("numpy", "opencv-python-headless", "mlflow", "optuna", "pandas")  # with their versions
RIVALS = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")

Status = Literal["ok", "info", "warn", "broken"]


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, how it is, and how to fix it."""

    name: str
    status: Status
    words: str
    fix: str = ""


def examine(crohme: Path | None, results: Path) -> list[Check]:
    """All checks, in the order in which a person would ask; nothing is written but a file that is removed again."""
    place = results if crohme else results / "local/embedded"  # where the job's runs lie
    of_the_machine = (python, machine, packages, torch_and_devices, opencv, openmp, text_encoding, shared_memory)
    of_the_job = (partial(disk, results), partial(data, crohme, results), scorer, partial(tracking, place))
    found: list[Check] = []
    for check in (*of_the_machine, *of_the_job):
        try:
            found += check()
        except Exception as error:  # a check that fails is a finding
            if os.environ.get("HMERBENCH_DEBUG"):
                raise
            name = getattr(getattr(check, "func", check), "__name__", "check").replace("_", " ")
            words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            found.append(Check(name, "warn", f"could not be examined ({words})", "HMERBENCH_DEBUG=1 shows where"))
    return found


def show(checks: list[Check], as_json: bool) -> None:
    """Prints the findings, one line each with the fix below, or as JSON."""
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False))
        return
    colors = {"ok": "green", "info": "dim", "warn": "yellow", "broken": "bold red"}
    for check in checks:
        console.print(f"[{colors[check.status]}]{check.status:<7}[/]", end="")
        console.print(f"{check.name:<16}{check.words}", markup=False)
        if check.fix:
            console.print(f"{'':<23}→ {check.fix}", markup=False)


def python() -> Iterator[Check]:
    """Its version."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON:
        yield Check("python", "broken", f"{version}, older than 3.11", "make setup PYTHON=python3.11")
    else:
        yield Check("python", "ok", f"{version} at {sys.executable}")


def machine() -> Iterator[Check]:
    """Revision, processor, load and memory."""
    from benchmarks.environment import cores, processor, revision

    yield Check("revision", "info", revision() or "not a git checkout")
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    yield Check("processor", "info", f"{processor()}, {cores()} cores, OMP_NUM_THREADS {threads}")
    load = os.getloadavg()[0]
    if load > cores() / 2 and threads != "1":
        fix = "export OMP_NUM_THREADS=1 while it is: beside another job, one thread is quicker than several"
        yield Check("load", "warn", f"the machine is busy: {load:.1f} jobs run on its {cores()} cores", fix)
    import psutil

    memory = psutil.virtual_memory().total / GIB
    fix = "" if memory >= 4 else "the presets laptop, hour and paper may need 4 GiB; use smoke"
    yield Check("memory", "warn" if fix else "ok", f"{memory:.1f} GiB", fix)


def packages() -> Iterator[Check]:
    """Every requirement of pyproject.toml, the core ones as needed, those of the suite as wanted."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in metadata.requires("hmerbench") or []]
    core = [wanted for wanted in requirements if wanted.marker is None]
    suite = [wanted for wanted in requirements if wanted.marker and wanted.marker.evaluate({"extra": "suite"})]
    groups: dict[Status, list[Requirement]] = {"broken": core, "warn": suite}
    for status, group in groups.items():
        found = {wanted: _version(wanted.name) for wanted in group}
        wrong = [
            f"{wanted.name} {version or 'missing'}"
            for wanted, version in found.items()
            if version is None or not wanted.specifier.contains(version, prereleases=True)
        ]
        if wrong:
            yield Check("packages", status, f"{', '.join(wrong)}: not as pyproject.toml wants", "make setup")
        else:
            words = ", ".join(f"{wanted.name} {version}" for wanted, version in found.items() if wanted.name in SHOWN)
            yield Check("packages", "ok", f"{len(found)} are as required: {words}, …")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_and_devices() -> Iterator[Check]:
    """torch's release, and what it can compute on."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check("torch", "broken", f"cannot be imported ({error})", "make setup")
        return
    if TORCH[0] <= tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) <= TORCH[1]:
        yield Check("torch", "ok", torch.__version__)
    else:
        words = f"{torch.__version__}: numbers are only known for 2.11 to 2.13"
        yield Check("torch", "warn", words, "make setup, or run make regress and look")
    from benchmarks.environment import bf16_unit

    cuda, built = torch.cuda, torch.version.cuda
    if cuda.is_available():
        names = ", ".join(cuda.get_device_name(number) for number in range(cuda.device_count()))
        yield Check("devices", "ok", f"{names}; the main job takes the preset fast")
    elif built:
        words = f"torch is built for CUDA {built}, but no GPU can be used; the main job takes the preset smoke"
        fix = "install the NVIDIA driver, or the CPU build: pip install torch --index-url "
        yield Check("devices", "warn", words, fix + "https://download.pytorch.org/whl/cpu")
    elif unit := bf16_unit():
        yield Check("devices", "ok", f"no GPU, but bf16 in hardware ({unit}); the main job takes the preset smoke")
    else:
        words = "no GPU; all presets but paper train in bf16, which this processor does not have in hardware"
        yield Check("devices", "info", words, "a copy of the preset with bf16: false may be quicker: PRESET=mine.yaml")


def opencv() -> Iterator[Check]:
    """Whether it can be imported and is the only one."""
    rivals = [name for name in RIVALS if _version(name)]
    fix = f"pip uninstall {' '.join(rivals) or 'opencv-python'}; pip install --force-reinstall opencv-python-headless"
    try:
        import cv2
    except (ImportError, OSError) as error:
        yield Check("opencv", "broken", f"cannot be imported ({error})", fix)
        return
    if rivals:
        yield Check("opencv", "warn", f"{', '.join(rivals)} lies over opencv-python-headless", fix)
    else:
        yield Check("opencv", "ok", cv2.__version__)


def openmp() -> Iterator[Check]:
    """Two kinds of OpenMP in one process fight over the cores, or abort it."""
    if not MAPS.exists():
        return
    for name in ("torch", "cv2", "scipy.stats"):  # what the main job loads into its process
        try:
            importlib.import_module(name)
        except (ImportError, OSError):
            continue  # told by its own check
    loaded = set(re.findall(r"\S*/lib(gomp|iomp5|omp)[-.]\S*so\S*", MAPS.read_text()))
    if len(loaded) > 1:
        fix = "install all packages from one source (make setup); until then export OMP_NUM_THREADS=1"
        yield Check("openmp", "warn", f"two runtimes are loaded: {', '.join(sorted(loaded))}", fix)
    else:
        yield Check("openmp", "ok", f"one runtime: {', '.join(loaded) or 'none'}")


def text_encoding() -> Iterator[Check]:
    """Whether text files are read as UTF-8."""
    name = locale.getpreferredencoding(False)
    if name.lower().replace("-", "") == "utf8":
        yield Check("locale", "ok", name)
    else:
        yield Check("locale", "broken", f"text files are read as {name}, ours are UTF-8", "export PYTHONUTF8=1")


def shared_memory() -> Iterator[Check]:
    """Whether there is enough of it for NCCL and Ray."""
    if not SHARED_MEMORY.is_dir():
        return
    size = shutil.disk_usage(SHARED_MEMORY).total / GIB
    if size < 0.25:
        words = f"{SHARED_MEMORY} has {size:.2f} GiB: torchrun on several devices (NCCL) and Ray need more"
        yield Check("shared memory", "warn", words, "docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm")
    else:
        yield Check("shared memory", "ok", f"{size:.1f} GiB at {SHARED_MEMORY}")


def disk(results: Path) -> Iterator[Check]:
    """Whether results can be written, and how much."""
    place = next(path for path in (results, *results.resolve().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield Check("disk", "broken", f"{place}: cannot be written ({error.strerror})", "choose a place with RESULTS=")
        return
    free = shutil.disk_usage(place).free / GIB
    if free < 1:
        yield Check("disk", "broken", f"{free:.2f} GiB free at {place.resolve()}", "make room, or choose RESULTS=")
    else:
        yield Check("disk", "ok", f"{free:.1f} GiB free at {place.resolve()}")


def data(crohme: Path | None, results: Path) -> Iterator[Check]:
    """Whether the archive can be read, and which edition it is."""
    from benchmarks.data.archive import open_archive
    from benchmarks.errors import UserError

    fix = "make crohme"
    if crohme is None:
        words = "the embedded set (NOT CROHME), made on the spot"
        yield Check("data", "info", words, "make crohme, then CROHME=data/crohme.zip, for CROHME's numbers")
        if _version("matplotlib") is None:
            yield Check("data", "broken", "the embedded set needs matplotlib", "make setup, or give CROHME=")
        crohme, fix = results / "local/embedded/data.zip", "delete the file"
        if not crohme.exists():
            return
    try:
        archive = open_archive(crohme)
    except UserError as error:
        yield Check("data", "broken", str(error), fix)
        return
    known = archive.name != "foreign"
    fix = "" if known else "its numbers are kept apart in results/local/; make crohme fetches the published edition"
    yield Check("data", "ok" if known else "warn", f"{archive.path}, {archive.edition}", fix)


def scorer() -> Iterator[Check]:
    """Whether the scripts score ten known cases as the official scorer does."""
    from evaluation.scoring.run_scripts import own_scripts, scripts, self_check

    whose = f"{'our own scripts' if own_scripts() else 'LGEVAL_BIN'}, {scripts()}"
    if failures := self_check():
        fix = "make setup" if own_scripts() else "unset LGEVAL_BIN to use ours, or name folders that hold all scripts"
        yield Check("scorer", "broken", f"{whose}: {'; '.join(failures)}", fix)
    else:
        yield Check("scorer", "ok", f"{whose}: ten known cases right")


def tracking(place: Path) -> Iterator[Check]:
    """MLflow's store; runs are never stopped by it, so the worst is a warning."""
    from benchmarks.tracking.tracking_store import reach, without_password

    later = "runs go on without; python -m benchmarks track FOLDER logs them later"
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(place / 'mlflow.db').resolve()}"
    shown = without_password(uri)
    if _version("mlflow") is None:
        yield Check("tracking", "warn", f"mlflow is not installed; {later}", "make setup")
    elif "://" not in uri or uri.startswith("file:"):
        words = f"MLFLOW_TRACKING_URI={shown}: a folder, which MLflow no longer takes; {later}"
        yield Check("tracking", "warn", words, "export MLFLOW_TRACKING_URI=sqlite:///mlflow.db or a server's address")
    else:
        try:
            yield Check("tracking", "ok", f"{shown}: {reach(uri)}")
        except Exception as error:  # every driver has its own
            why = " ".join(str(error).split("\n")[0].split()).replace(uri, shown)[:160] or type(error).__name__
            local = uri.startswith("sqlite")
            fix = "close what locks it, or move the file away" if local else "start it, or fix its address"
            yield Check("tracking", "warn", f"{shown}: not usable ({why}); {later}", fix)
