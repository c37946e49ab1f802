"""The weights that are used where none are named: in a checkout, those of the best committed run; in an installation,
which has none, a copy of them that is fetched once into a cache and known by its digests."""

import os
from pathlib import Path

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import download, sha256
from hmerbench.benchmarks.paths import COMMITTED
from hmerbench.benchmarks.runs.folder import RunFolder

RUN = "comer-fusion/large-seed7"  # the best committed run
DIGESTS = {  # SHA-256 of the files that recognition needs
    "config.yaml": "65fa3a7796002bbbbf99e8cb886c3cb5e94c94fccdfcea47a14a2803b0132c4e",
    "best.safetensors": "935a7211c4919b14d2ce990a92b3426d01b641eab8dbf65fe46a1e757a4ac1e7",
}
FAST_RUN = "comer-fusion/medium-seed7"  # the best committed one of a smaller network
FAST_DIGESTS = {
    "config.yaml": "b89b08eff3a434034544c67a2cb8104ed733ef623572566d95fa273ab00e6dd8",
    "best.safetensors": "2af7443426f9c9982dec62b89e1338a89fcc5b5b15986ed4ec28b2dbcf849ee0",
}
SOURCE = "HMERBENCH_WEIGHTS"  # the variable that says where they are to be had


def default_weights(fast: bool = False) -> Path:
    """A run folder with weights; if `fast`, of a smaller network. Raises UserError where there is none and
    HMERBENCH_WEIGHTS names none."""
    if COMMITTED.is_dir():
        return best_run(fast)
    run, digests = (FAST_RUN, FAST_DIGESTS) if fast else (RUN, DIGESTS)
    folder = cache() / f"{digests['best.safetensors'][:16]}" / run
    missing = [name for name in digests if not (folder / name).is_file()]
    if missing and not os.environ.get(SOURCE):
        raise UserError(
            f"no weights are here: set {SOURCE} to the folder or address of the suite's results/reproduced, from which "
            f"{run} is then fetched once ({folder}), or name a run folder or a .ckpt file of your own (--weights)"
        )
    for name in missing:
        download(folder / name, f"{address(os.environ[SOURCE])}/{run}/{name}", digests[name], sha256)
    return folder


def best_run(fast: bool = False) -> Path:
    """The committed run with weights that has the highest ExpRate over the test sets that all have read; if `fast`, of
    those whose weights are at most half as large as the largest."""
    runs = [run for run in RunFolder.under(COMMITTED) if run.has_weights]
    if not runs:
        raise UserError(f"{COMMITTED}: no run there has weights; give a run folder of your own with --weights")
    sizes = [run.weights_file.stat().st_size for run in runs]
    small = [run for run, size in zip(runs, sizes, strict=True) if 2 * size <= max(sizes)]
    shared = set[str].intersection(*(set(run.scores) for run in runs))
    return max(small if fast and small else runs, key=lambda run: sum(run.scores[split].exact for split in shared)).path


def cache() -> Path:
    """Folder of what is fetched: HMERBENCH_CACHE, else hmerbench/ in the user's cache."""
    own = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("HMERBENCH_CACHE") or Path(own) / "hmerbench")


def address(source: str) -> str:
    return source.rstrip("/") if "://" in source else Path(source).resolve().as_uri()
