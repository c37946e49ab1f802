"""Files that are never half written. Imports no torch, so that tables and figures load none."""

import errno
import fcntl
import io
import os
import socket
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.errors import UserError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes beside the target, makes it durable, then replaces it: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:  # a full disk names no file
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip of files by name: the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@contextmanager
def only_one(folder: Path, name: str = ".training", seconds: float = 0) -> Iterator[None]:
    """While this lasts no other process works in `folder` under the lock `name`.

    Waits at most `seconds` for one that does, then raises UserError. The lock is the open file's, so a process that is
    killed lets go of it; where a file system has no locks, none is held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "a+") as file:
        deadline = time.monotonic() + seconds
        while not _lock(file):
            if time.monotonic() >= deadline:
                file.seek(0)
                who = file.read() or "another process"
                raise UserError(f"{folder}: {who} works in it; wait until that ends, or choose another folder")
            time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
