"""What a job works on and in, wherever it runs; every job resumes from what its folder holds."""

from pathlib import Path

from benchmarks.data.archive import Archive, open_archive


class Died(Exception):
    """A job that did not end but went away (killed, out of memory, its node lost), and can be started again."""


class Place:
    """The archive, and the workspace in which a job keeps its folder: on this machine, the workspace itself."""

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
