"""Atomic writes, locks and downloads. Imports no torch, so that tables and figures load none."""

import base64
import errno
import gzip
import hashlib
import io
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hmerbench.benchmarks.errors import UserError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write and sync a temporary file, then replace the target: a reader sees either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # not the process id: two containers that share a folder may both be process 1
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(partial, "wb") as file:
            _lock(file)  # until it is in place: `remove_partial` leaves it to this process
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            if os.name == "nt":  # Windows replaces no open file
                file.close()
            os.replace(partial, path)
    except OSError as error:  # the error of a full disk names no file
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Delete what killed processes left of files that they were writing; what others still write stays."""
    for partial in folder.rglob(".*.*.part"):
        with suppress(FileNotFoundError), open(partial, "rb") as file:
            if _lock(file):
                partial.unlink(missing_ok=True)


def refuse_pipe(path: Path) -> None:
    """Raise UserError for a pipe, socket or device, from which reading may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: this is a pipe or device; give a file")


def folders_with(name: str, *roots: Path) -> list[Path]:
    """The folders at or below `roots` that hold a file of this name, sorted within each root, seed 10 after seed 9."""

    def natural_key(path: Path) -> list[str | int]:
        parts = re.split(r"([0-9]+)", path.as_posix())  # every second part is a number
        return [int(part) if number % 2 else part for number, part in enumerate(parts)]

    def visible(path: Path, root: Path) -> bool:  # hidden folders hold what is being packed
        return not any(part.startswith(".") for part in path.relative_to(root).parts)

    found = {root: [path for path in root.rglob(name) if visible(path, root)] for root in roots}
    return [path.parent for root in roots for path in sorted(found[root], key=natural_key)]


def sha256(path: Path) -> str:
    """Of the content of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: Path) -> str:
    """Sixteen hex digits over the content of a file."""
    return sha256(path)[:16]


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A deterministic zip archive of files by name: the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def compressed(content: bytes) -> str:
    """The content gzipped, in base64, of which no character is special to HTML; the same text for the same content."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


@contextmanager
def locked(folder: Path, name: str = ".training", seconds: float = 0) -> Iterator[None]:
    """Hold the lock `name` in `folder`, so that no other process works there at the same time.

    Waits at most `seconds` for another process, then raises UserError. The lock belongs to the open file, so a killed
    process releases it; on a file system without locks, none is held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / name).is_symlink():  # its target would be overwritten
        raise UserError(f"{folder / name}: this is a link, but its place is for a lock; delete it")
    with open(folder / name, "a+") as file:
        deadline = time.monotonic() + seconds
        while not _lock(file):
            if time.monotonic() >= deadline:
                file.seek(0)
                holder = file.read() or "another process"
                raise UserError(f"{folder}: {holder} is working in it; wait until it ends, or choose another folder")
            time.sleep(0.1)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _lock(file: IO[Any]) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        return True
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


MAX_DOWNLOAD = 1 << 30  # bytes; CROHME is 30 MB
CURL = ("curl", "--fail", "--location", "--retry", "2", "--connect-timeout", "30", "--speed-time", "60")


def git_blob(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def download(target: Path, url: str, digest: str, hash_of: Callable[[Path], str] = git_blob) -> Path:
    """Download `url` to `target`, which is replaced atomically, with curl, and return it.

    An incomplete download is kept in TARGET.part, from which the next call resumes. Raises UserError if curl fails, and
    for a file with the wrong digest, which is deleted.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (part.is_file() and hash_of(part) == digest):
        # its progress is shown well by a terminal alone
        quiet = [] if sys.stderr and sys.stderr.isatty() else ["--silent"]
        options = ["--continue-at", "-", "--max-filesize", str(MAX_DOWNLOAD), "--write-out", "%{errormsg}"]
        command = [*CURL, *quiet, *options, "--output", str(part), "--", url]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            raise UserError(f"curl is not installed: install it, or fetch {url} to {target} yourself") from None
        if done.returncode not in (0, 33, 36):  # 33 and 36: nothing to resume, so the digest decides
            why = done.stdout.strip() or f"curl exited with status {done.returncode}"
            raise UserError(f"{url}: {why}; run it again to resume {part}, or give another address")
    received = hash_of(part) if part.is_file() else "nothing"
    if received != digest:
        part.unlink(missing_ok=True)
        raise UserError(f"{url}: expected the digest {digest}, got {received}; run it again, or give another address")
    os.replace(part, target)
    return target
