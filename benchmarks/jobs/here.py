"""Jobs in this process: what an engine is where one job is done at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import FAULTS
from hmerbench.benchmarks.jobs.place import Place


class OpenPlace(Place):
    """The place of an archive that is open already."""

    def __init__(self, archive: Archive, workspace: Path):
        super().__init__(archive.path, workspace)
        self.opened = archive

    def archive(self) -> Archive:
        """The archive to work on."""
        return self.opened


class Here:
    """Every job has ended when `start` returns. Anything but a fault of its input, such as a full disk, ends all."""

    def __init__(self, archive: Archive, workspace: Path):
        self.place, self.results = OpenPlace(archive, workspace), dict[str, Exception | None]()

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Do job(place, *arguments)."""
        try:
            self.results[name] = job(self.place, *arguments)
        except FAULTS as error:
            self.results[name] = error

    def ended(self, seconds: float) -> dict[str, Exception | None]:
        """The jobs that were done since the last call, with what they raised."""
        results, self.results = self.results, {}
        return results

    def stop(self) -> None:
        """Nothing is running."""
