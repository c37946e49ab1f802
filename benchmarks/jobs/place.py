"""Where a job does its work: its data and its workspace, on a disk that all who work there share. It resumes from the
files in its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.errors import gpu_failure


class Died(Exception):
    """A job was killed from outside (by a signal, for want of memory, with its node) and can be started again."""


@dataclass
class Place:
    """The data, an archive or a folder of texts, and the workspace that contains a job's folder."""

    data: Path
    workspace: Path
    opened: Archive | None = None  # the archive, if it is open already

    def archive(self) -> Archive:
        self.opened = self.opened or open_archive(self.data)
        return self.opened


class Here:
    """Jobs in this process, one at a time: every job has ended when `start` returns. A failing GPU ends all, as this
    process cannot use it again."""

    def __init__(self, place: Place):
        self.place, self.results = place, dict[str, Exception | None]()

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Do job(place, *arguments)."""
        try:
            self.results[name] = job(self.place, *arguments)
        except Exception as error:
            if gpu_failure(error):
                raise
            self.results[name] = error

    def ended(self, seconds: float) -> dict[str, Exception | None]:
        """The jobs that were done since the last call, with what they raised."""
        results, self.results = self.results, {}
        return results

    def stop(self) -> None:
        """Nothing is running."""
