"""The archive and the folder of a job, wherever it runs; a job resumes from the files in its folder."""

from pathlib import Path

from hmerbench.benchmarks.data.archive import Archive, open_archive


class Died(Exception):
    """A job was killed from outside (by a signal, for want of memory, with its node) and can be started again."""


class Place:
    """The archive, and the workspace that contains a job's folder: on this machine, the workspace itself."""

    def __init__(self, archive: Path, workspace: Path):
        self.archive_path, self.workspace = archive, workspace

    def archive(self) -> Archive:
        """The archive to work on."""
        return open_archive(self.archive_path)

    def pull(self, name: str) -> Path:
        """The folder `name` of the workspace, with everything that earlier attempts left in it."""
        return self.workspace / name

    def push(self, name: str) -> None:
        """Save the folder's present files, in case this job dies."""
