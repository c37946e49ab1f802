"""Where runs on an archive lie, and what is said of the data before anything starts."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.data.archive import Archive, open_archive
from benchmarks.errors import UserError
from benchmarks.printing import console


def open_data(crohme: Path | None, results: Path) -> Archive:
    """The archive to work on; without CROHME the embedded set, made on the spot."""
    if crohme is not None:
        return open_archive(crohme)
    from benchmarks.data.synthetic import embedded  # needs matplotlib

    return open_archive(embedded(results / "local" / "embedded" / "data.zip"))


def workspace(archive: Archive, results: Path) -> Path:
    """Where runs on this archive lie: results/ for CROHME, a place apart for anything else."""
    if archive.name == "crohme":
        return results
    apart = archive.name if archive.name == "embedded" else f"{archive.name}-{archive.digest[:8]}"
    return results / "local" / apart


def test_splits(archive: Archive, years: Sequence[str]) -> list[str]:
    """The test sets of these years, all where none is named. Raises UserError for one that is not there."""
    for year in years:
        if year not in archive.test_splits:
            have = ", ".join(archive.test_splits)
            raise UserError(f"{archive.path}: no test set '{year}', it has {have}; CROHME is given with CROHME=")
    return list(years or archive.test_splits)


def announce(archive: Archive) -> None:
    """Says what is worked on; loudly where it is not CROHME."""
    console.print(f"data: {archive.path}, {archive.edition}", markup=False)
    if archive.name != "crohme":
        console.print(
            f" {archive.name.upper()} DATA: these are NOT CROHME numbers. "
            "CROHME=data.zip gives those; `make crohme` fetches it. ",
            style="bold black on yellow",
        )
