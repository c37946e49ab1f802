"""The weights that are used where none are named: in a checkout, those of the best committed run; in an installation,
which has none, a copy of them that is fetched once into a cache and known by its digests."""

import hashlib
import os
from pathlib import Path

from hmerbench.benchmarks.data.download import download
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import COMMITTED
from hmerbench.benchmarks.runs.folder import RunFolder

RUN = "comer-fusion/large-seed7"  # the best committed run
DIGESTS = {  # SHA-256 of the files that recognition needs
    "config.yaml": "65fa3a7796002bbbbf99e8cb886c3cb5e94c94fccdfcea47a14a2803b0132c4e",
    "best.safetensors": "935a7211c4919b14d2ce990a92b3426d01b641eab8dbf65fe46a1e757a4ac1e7",
}
SOURCE = "HMERBENCH_WEIGHTS"  # the variable that says where they are to be had


def default_weights() -> Path:
    """A run folder with weights. Raises UserError where there is none and HMERBENCH_WEIGHTS names none."""
    if COMMITTED.is_dir():
        return best_run()
    folder = cache() / f"{DIGESTS['best.safetensors'][:16]}" / RUN
    missing = [name for name in DIGESTS if not (folder / name).is_file()]
    if missing and not os.environ.get(SOURCE):
        raise UserError(
            f"no weights are here: set {SOURCE} to the folder or address of the suite's results/reproduced, from which "
            f"{RUN} is then fetched once ({folder}), or name a run folder or a .ckpt file of your own (--weights)"
        )
    for name in missing:
        download(folder / name, f"{address(os.environ[SOURCE])}/{RUN}/{name}", DIGESTS[name], sha256)
    return folder


def best_run() -> Path:
    """The committed run with weights that has the highest ExpRate over all its test sets."""
    runs = [run for run in RunFolder.under(COMMITTED) if run.has_weights]
    if not runs:
        raise UserError(f"{COMMITTED}: no run there has weights; give a run folder of your own with --weights")
    return max(runs, key=lambda run: run.exprate).path


def cache() -> Path:
    """Folder of what is fetched: HMERBENCH_CACHE, else hmerbench/ in the user's cache."""
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HMERBENCH_CACHE") or Path(own) / "hmerbench")


def address(source: str) -> str:
    """The URL of an address or a folder."""
    return source.rstrip("/") if "://" in source else Path(source).resolve().as_uri()


def sha256(path: Path) -> str:
    """Digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
