"""The main job on a tiny archive, as the command line calls it."""

from pathlib import Path

from hmerbench.benchmarks import reproduce as job
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.jobs.engine import Placing
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.workspace import select_splits


def reproduce(
    rows: list[str], preset: str, seeds: list[int], archive: Path, results: Path, years=(), placing=None, force=False
) -> None:
    """The main job, as the command line calls it."""
    opened = open_archive(archive)
    configs = [resolve(row, preset, seed, opened) for row in rows for seed in seeds]
    job.reproduce(configs, opened, select_splits(opened, years), results, placing or Placing(), force)
