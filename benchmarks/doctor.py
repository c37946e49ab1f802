"""Diagnose the installation: what is present, what is broken, and how to fix it.

`broken` makes the main job fail; `warn` costs time, tracking or an optional stage. Checks are independent: one that
fails is reported as a finding and does not stop the others.
"""

import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from hmerbench.benchmarks.printing import console
from hmerbench.benchmarks.runtime import cores

GIB = 2**30
TORCH = ((2, 11), (2, 13))  # oldest and newest tested release
SHARED_MEMORY = Path("/dev/shm")
MAPS = Path("/proc/self/maps")
LISTED = ("numpy", "opencv-python-headless", "mlflow", "optuna", "pandas")  # shown with their versions
CONFLICTING = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")

Status = Literal["ok", "info", "warn", "broken"]


@dataclass(frozen=True)
class Check:
    """One finding: what was checked, its status and details, and the fix."""

    name: str
    status: Status
    words: str
    fix: str = ""


def examine(crohme: Path | None, results: Path, ptb: Path | None = None) -> list[Check]:
    """Run all checks. Nothing is written except a temporary file."""
    of_machine = (machine, packages, torch_and_devices, opencv, openmp, shared_memory, partial(disk, results))
    of_job = (partial(data, crohme, results), partial(text, ptb), scorer, partial(tracking, crohme, results))
    findings: list[Check] = []
    for check in (*of_machine, *of_job):
        try:
            findings += check()
        except Exception as error:
            if os.environ.get("HMERBENCH_DEBUG"):
                raise
            name = getattr(getattr(check, "func", check), "__name__", "check").replace("_", " ")
            words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            findings.append(Check(name, "warn", f"check failed ({words})", "HMERBENCH_DEBUG=1 shows the traceback"))
    return findings


def show(checks: list[Check], as_json: bool) -> None:
    """Print the findings as JSON, or one per line with the fix below."""
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1, ensure_ascii=False))
        return
    colors = {"ok": "green", "info": "dim", "warn": "yellow", "broken": "bold red"}
    for check in checks:
        console.print(f"{check.status:<7}", style=colors[check.status], end="")
        console.print(f"{check.name:<16}{check.words}")
        if check.fix:
            console.print(f"{'':<23}→ {check.fix}")


def machine() -> Iterator[Check]:
    from hmerbench.benchmarks.environment import processor, revision

    yield Check("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")
    yield Check("revision", "info", revision() or "not a git checkout")
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    yield Check("processor", "info", f"{processor()}, {cores()} cores, OMP_NUM_THREADS {threads}")
    load = os.getloadavg()[0]
    if load > cores() / 2 and threads != "1":
        fix = "export OMP_NUM_THREADS=1 meanwhile: on a busy machine, one thread is faster than several"
        yield Check("load", "warn", f"the machine is busy: load {load:.1f} on {cores()} cores", fix)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    need = "small and paper may need 4 GiB, medium and large 8 GiB" if memory >= 4 else "only smoke is sure to fit"
    fix = "" if memory >= 8 else need
    yield Check("memory", "warn" if fix else "ok", f"{memory:.1f} GiB", fix)


def packages() -> Iterator[Check]:
    """Installed versions against pyproject.toml: wrong core packages are `broken`, wrong suite packages `warn`."""
    from packaging.requirements import Requirement

    required = [Requirement(text) for text in metadata.requires("hmerbench") or []]

    def of(extra: str) -> list[Requirement]:  # "" for what every installation has
        ours = (each for each in required if each.name != "hmerbench")  # by which one extra names another
        return [each for each in ours if (each.marker.evaluate({"extra": extra}) if each.marker else not extra)]

    groups: dict[Status, tuple[str, str]] = {"broken": ("", "recognize"), "warn": ("train", "suite")}
    for status, (less, more) in groups.items():
        group = of(less) + of(more)
        versions = {package: _version(package.name) for package in group}
        wrong = [
            f"{package.name} {version or 'missing'}"
            for package, version in versions.items()
            if version is None or not package.specifier.contains(version, prereleases=True)
        ]
        if wrong:
            fix = f"make setup, or pip install 'hmerbench[{more}]'"
            yield Check("packages", status, f"{', '.join(wrong)}: not as pyproject.toml requires", fix)
        else:
            words = ", ".join(f"{package.name} {versions[package]}" for package in group if package.name in LISTED)
            yield Check("packages", "ok", f"{len(group)} are as required: {words}, …")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_and_devices() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Check("torch", "broken", f"cannot be imported ({error})", "make setup")
        return
    if TORCH[0] <= tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) <= TORCH[1]:
        yield Check("torch", "ok", torch.__version__)
    else:
        words = f"{torch.__version__}: tested with 2.11 to 2.13 only"
        yield Check("torch", "warn", words, "make setup, or check the numbers with make regress")
    from hmerbench.benchmarks.environment import bf16_unit

    cuda, built = torch.cuda, torch.version.cuda
    if cuda.is_available():
        names = ", ".join(cuda.get_device_name(number) for number in range(cuda.device_count()))
        yield Check("devices", "ok", f"{names}; default preset: large")
    elif built:
        words = f"torch is built for CUDA {built}, but no GPU is usable; default preset: smoke"
        fix = "install the NVIDIA driver, or the CPU build: pip install torch --index-url "
        yield Check("devices", "warn", words, fix + "https://download.pytorch.org/whl/cpu")
    elif unit := bf16_unit("cpu"):
        yield Check("devices", "ok", f"no GPU, but bf16 in hardware ({unit}); default preset: smoke")
    else:
        words = "no GPU, no bf16 in hardware: presets with bf16 train and read in float32, which takes longer"
        yield Check("devices", "info", f"{words}; default preset: smoke")


def opencv() -> Iterator[Check]:
    """Whether OpenCV can be imported, from a single package."""
    others = [name for name in CONFLICTING if _version(name)]
    fix = f"pip uninstall {' '.join(others) or 'opencv-python'}; pip install --force-reinstall opencv-python-headless"
    try:
        import cv2
    except (ImportError, OSError) as error:
        yield Check("opencv", "broken", f"cannot be imported ({error})", fix)
        return
    if others:
        yield Check("opencv", "warn", f"{', '.join(others)} overwrites opencv-python-headless", fix)
    else:
        yield Check("opencv", "ok", cv2.__version__)


def openmp() -> Iterator[Check]:
    """Whether only one OpenMP runtime is loaded: two compete for the cores, or abort the process."""
    if not MAPS.exists():
        return
    for name in ("torch", "cv2", "scipy.special"):  # the main job loads all of these
        try:
            importlib.import_module(name)
        except (ImportError, OSError):
            continue  # reported by its own check
    loaded = set(re.findall(r"\S*/lib(gomp|iomp5|omp)[-.]\S*so\S*", MAPS.read_text()))
    if len(loaded) > 1:
        fix = "install all packages from one source (make setup); until then export OMP_NUM_THREADS=1"
        yield Check("openmp", "warn", f"several runtimes are loaded: {', '.join(sorted(loaded))}", fix)
    else:
        yield Check("openmp", "ok", f"one runtime: {', '.join(loaded) or 'none'}")


def shared_memory() -> Iterator[Check]:
    """Whether shared memory is large enough for NCCL and Ray."""
    if not SHARED_MEMORY.is_dir():
        return
    size = shutil.disk_usage(SHARED_MEMORY).total / GIB
    if size < 0.25:
        words = f"{SHARED_MEMORY} has {size:.2f} GiB: torchrun on several devices (NCCL) and Ray need more"
        yield Check("shared memory", "warn", words, "docker run --shm-size=2g, or mount -o remount,size=2g /dev/shm")
    else:
        yield Check("shared memory", "ok", f"{size:.1f} GiB at {SHARED_MEMORY}")


def disk(results: Path) -> Iterator[Check]:
    folder = next(path for path in (results, *results.resolve().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Check("disk", "broken", f"{folder}: cannot be written ({error.strerror})", "choose a folder: RESULTS=")
        return
    free = shutil.disk_usage(folder).free / GIB
    if free < 1:
        fix = "free disk space, or choose a folder: RESULTS="
        yield Check("disk", "broken", f"{free:.2f} GiB free at {folder.resolve()}", fix)
    else:
        yield Check("disk", "ok", f"{free:.1f} GiB free at {folder.resolve()}")


def data(crohme: Path | None, results: Path) -> Iterator[Check]:
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.errors import FAULTS

    fix = ""  # an archive of one's own names it itself
    if crohme is None:
        words = "the embedded set (NOT CROHME), generated on demand"
        yield Check("data", "info", words, "for CROHME: make crohme, then set CROHME=data/crohme.zip")
        if _version("matplotlib") is None:
            yield Check("data", "broken", "the embedded set needs matplotlib", "make setup, or give CROHME=")
        crohme, fix = results / "local/embedded/data.zip", "delete the file"
        if not crohme.exists():
            return
    try:
        archive = open_archive(crohme)
    except FAULTS as error:
        *fault, its_fix = str(error).split("; ")
        yield Check("data", "broken", "; ".join(fault) or its_fix, fix or its_fix)
        return
    known = archive.name != "foreign"
    fix = "" if known else "its results go to results/local/; make crohme downloads the published edition"
    yield Check("data", "ok" if known else "warn", f"{archive.path}, {archive.edition}", fix)


def text(ptb: Path | None) -> Iterator[Check]:
    """Whether the language models' text can be read, and whether it is the paper's. The main job needs none."""
    from hmerbench.benchmarks.errors import UserError
    from hmerbench.benchmarks.language_models.corpus import read_corpus

    if ptb is None:
        fix = "for the paper's perplexities: PTB=folder of the Penn Treebank's train.txt, valid.txt and test.txt"
        yield Check("text", "info", "language models train on the LaTeX of the training captions", fix)
        return
    try:
        corpus = read_corpus(ptb)
    except UserError as error:
        yield Check("text", "warn", str(error), "or leave PTB= out: language models then train on captions")
        return
    lengths = " + ".join(f"{len(words):,}" for words in corpus.splits.values())
    words = f"{ptb}, {lengths} words, {len(corpus.lexicon):,} distinct"
    if corpus.name == "ptb":
        yield Check("text", "ok", f"{words}: the Penn Treebank")
    else:
        yield Check("text", "warn", f"{words}: not the paper's Penn Treebank", "its perplexities are no reproduction")


def _workspace(crohme: Path | None, results: Path) -> Path:
    from hmerbench.benchmarks.data.archive import open_archive
    from hmerbench.benchmarks.errors import FAULTS
    from hmerbench.benchmarks.runs.workspace import workspace

    if crohme is None or os.environ.get("MLFLOW_TRACKING_URI"):  # which needs no workspace
        return results / "local/embedded"
    with suppress(*FAULTS, OSError):  # `data` reports it
        return workspace(open_archive(crohme), results)
    return results


def scorer() -> Iterator[Check]:
    """Whether the scoring scripts agree with the official scorer on ten known cases."""
    from hmerbench.evaluation.scoring.outcome import own_scripts, scripts, self_check

    source = f"{'own scripts' if own_scripts() else 'LGEVAL_BIN'}, {scripts()}"
    if failures := self_check():
        fix = "make setup" if own_scripts() else "unset LGEVAL_BIN, or list folders that hold all scripts in it"
        yield Check("scorer", "broken", f"{source}: {'; '.join(failures)}", fix)
    else:
        yield Check("scorer", "ok", f"{source}: ten known cases scored correctly")


def tracking(crohme: Path | None, results: Path) -> Iterator[Check]:
    """Whether MLflow's store is usable; at worst a warning, as runs do not depend on it."""
    from hmerbench.benchmarks.errors import reason, without_secrets
    from hmerbench.benchmarks.tracking.tracking_store import artifacts_elsewhere, databases, reach, uri_in

    later = "runs continue without it; log them later with hmerbench track FOLDER"
    uri = uri_in(_workspace(crohme, results))
    shown = without_secrets(uri)
    if _version("mlflow") is None:
        yield Check("tracking", "warn", f"mlflow is not installed; {later}", "make setup")
    elif "://" not in uri or uri.startswith("file:"):
        words = f"MLFLOW_TRACKING_URI={shown}: a folder, which MLflow no longer supports; {later}"
        yield Check("tracking", "warn", words, "export MLFLOW_TRACKING_URI=sqlite:///mlflow.db, or a server's address")
    else:
        try:
            words = f"{shown}: {reach(uri)}"
            for path in databases(results):
                if moved := artifacts_elsewhere(path):
                    fix = f"move them to {path.resolve().parent}, if they are not there; then hmerbench track FOLDER"
                    yield Check("tracking", "warn", f"{path}: it names {', '.join(moved)} as its artifacts' place", fix)
            yield Check("tracking", "ok", words)
        except Exception as error:  # every database driver raises its own
            sqlite = uri.startswith("sqlite")
            fix = "close what locks it, or move the file away" if sqlite else "start the server, or fix its address"
            yield Check("tracking", "warn", f"{shown}: not usable ({reason(error, uri)}); {later}", fix)
