"""Where jobs run: processes of this machine, or the nodes of a Ray cluster.

An engine starts named jobs and says which have ended, and how; one that merely went away (killed, out of memory, its
node lost) has Died and can be started again, as every job goes on from what its folder holds. A job is a function
whose first argument is its Place: the archive, and the workspace in which it keeps its folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.data.archive import Archive, open_archive

ENGINES = ("local", "ray")


class Died(Exception):
    """A job that did not end but went away, with its process or its node."""


@dataclass(frozen=True)
class Ended:
    """A job that is over."""

    name: str
    error: Exception | None  # what the job raised; Died where it could not


class Place:
    """What a job works on and in: here, the workspace itself."""

    def __init__(self, archive: Path, workspace: Path):
        self.archive_path, self.workspace = archive, workspace

    def archive(self) -> Archive:
        """The archive to work on."""
        return open_archive(self.archive_path)

    def pull(self, name: str) -> Path:
        """The folder `name` of the workspace, with all that earlier attempts left in it."""
        return self.workspace / name

    def push(self, name: str) -> None:
        """Keeps what the folder holds now, should this job die."""


class Engine(Protocol):
    """What starts jobs; each is a function whose first argument is its Place."""

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Starts job(place, *arguments), or queues it until there is room."""
        ...

    def ended(self, seconds: float) -> list[Ended]:
        """The jobs that ended since, waiting so long for one."""
        ...

    def stop(self) -> None:
        """Ends what still runs."""
        ...
