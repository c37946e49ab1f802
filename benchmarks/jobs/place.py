"""Where a job does its work: its data and its folder, wherever it runs; it resumes from the files in its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.errors import gpu_failure


class Died(Exception):
    """A job was killed from outside (by a signal, for want of memory, with its node) and can be started again."""


class Killed(Died):
    """A signal killed the job, or a process of its own."""


class Bystander(Died):
    """A job was stopped because another one was killed, which is no fault of its own."""


class Place:
    """The data, an archive or a folder of texts, and the workspace that contains a job's folder: on this machine, the
    workspace itself."""

    def __init__(self, data: Path, workspace: Path, opened: Archive | None = None):
        """`opened`: the archive, if it is open already."""
        self.path, self.workspace, self.opened = data, workspace, opened

    def data(self) -> Path:
        return self.path

    def archive(self) -> Archive:
        self.opened = self.opened or open_archive(self.data())
        return self.opened

    def pull(self, name: str) -> Path:
        """The folder `name` of the workspace, with everything that earlier attempts left in it."""
        return self.workspace / name

    def push(self, name: str) -> None:
        """Bring the folder's present files to the driver, in case this job dies: from here, they are there already."""


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
