"""The workspace of an archive's runs, and the announcement of the data before anything starts."""

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from hmerbench.benchmarks.data.archive import Archive, counted_words, open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.printing import console

EVALUATED = "local/evaluated"  # of what `evaluate` reads of CROHME, under results/
LAST = "last-data.txt"  # in local/: where the data of one's own are that were used last


def open_data(crohme: Path | None, results: Path, trains: bool = True) -> Archive:
    """The archive to work on: `crohme`, which needs no training set unless it `trains`, or else the embedded set,
    generated if necessary."""
    if crohme is not None:
        return open_archive(crohme, trains)
    from hmerbench.benchmarks.data.synthetic import embedded  # needs matplotlib

    return open_archive(embedded(results / "local" / "embedded" / "data.zip"))


def workspace(archive: Archive, results: Path) -> Path:
    """The folder that contains runs/ for this archive: results/ for CROHME, one under results/local/ for other data."""
    if archive.name == "crohme":
        return results
    name = archive.name if archive.name == "embedded" else f"{archive.name}-{archive.digest[:8]}"
    return results / "local" / name


def remember(archive: Archive, results: Path) -> None:
    """Record where data of one's own is, so that the report finds it."""
    if archive.name not in ("crohme", "embedded"):
        write_atomically(results / "local" / LAST, os.fsencode(archive.path.absolute()) + b"\n")


def last_own(results: Path) -> Path | None:
    """Where the last data of one's own was; None if there was none."""
    record = results / "local" / LAST
    return Path(os.fsdecode(record.read_bytes().rstrip(b"\n"))) if record.exists() else None


def report_command(archive: Archive, results: Path) -> str:
    """How to see every image of an archive, with what was read."""
    given = "" if results == Path("results") else f" RESULTS={quote(str(results))}"
    return f"make report CROHME={quote(str(archive.path))}{given}"


def select_splits(archive: Archive, years: Sequence[str]) -> list[str]:
    """The test sets of these years, by default all. Raises UserError for one that the archive lacks, and if it has
    none."""
    if not archive.tests:
        fix = "put the captions of one into data/NAME/caption.txt; `hmerbench train` needs none"
        raise UserError(f"{archive.path}: it has no test set; {fix}")
    for year in years:
        if year not in archive.tests:
            have = ", ".join(archive.tests)
            fix = "give CROHME with --crohme (CROHME=)" if archive.name == "embedded" else "name one of these"
            raise UserError(f"{archive.path}: it has no test set '{year}', only {have}; {fix}")
    return list(years or archive.tests)


def announce(archive: Archive) -> None:
    """Print which data is used, with a warning if it is not CROHME."""
    console.print(f"data: {archive.path}, {archive.edition}")
    if other := archive.other_words:
        console.print(f"words that CROHME does not have, and the captions that have each: {counted_words(other)}")
    if archive.name != "crohme":
        console.print(
            f" {archive.name.upper()} DATA: these are NOT CROHME numbers. "
            "CROHME=data.zip gives those; `make crohme` fetches it. ",
            style="bold black on yellow",
        )
