"""`make crohme`: fetches CoMER's data.zip from where its authors publish it, resumably, and checks it."""

import contextlib
import errno
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from benchmarks.errors import UserError

URL = "https://github.com/Green-Wood/CoMER/raw/master/data.zip"
# What git knows of the authors' file: sha1 of "blob SIZE\0" + content. Nothing else is published about it.
GIT_BLOB = "4f6b9856f8d9a26b885fe05a64546e2ff89ba253"

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_CHUNK = 1 << 16
_MAX_BYTES = 4 << 30


def download(
    target: Path,
    url: str = URL,
    *,
    git_blob: str | None = GIT_BLOB,
    sha256: str | None = None,
    timeout: float = 30,
) -> Path:
    """Fetches `url` to `target` and returns it; `target` is always absent, the old file or the new one.

    What has arrived is kept in TARGET.part, beside it TARGET.part.tag with the server's ETag; the next call
    goes on from there, or starts again where the server cannot continue or has another file by now.
    Raises UserError for an unreachable host, an HTTP error, a cut connection or a wrong digest.
    """
    part, tag = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.tag")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(url, part, tag, timeout)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url}: the server answers {error.code} {error.reason}; give another address") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, OSError) and (error.filename or error.errno in _DISK):
            raise UserError(f"{part}: {error.strerror}; make room or choose another folder, then go on") from None
        reason = getattr(error, "reason", error) or type(error).__name__
        raise UserError(f"{url}: {reason}; run it again to go on, or give another address") from None
    _check(part, url, git_blob, sha256)
    os.replace(part, target)
    tag.unlink(missing_ok=True)
    return target


def _fetch(url: str, part: Path, tag: Path, timeout: float) -> None:
    """Fills `part`; raises OSError or HTTPException when that fails, keeping what has come so far."""
    with _open(url, part, tag, timeout) as response:
        resumed = response.status == 206
        have = part.stat().st_size if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        if (total or 0) > _MAX_BYTES:
            raise ValueError(f"offers {total:,} bytes, which is no CROHME archive")
        with open(part, "ab" if resumed else "wb") as file, _progress(part.stem, total, have) as advance:
            if not resumed:
                tag.write_text(response.headers.get("ETag", ""))
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                advance(len(chunk))
                have += len(chunk)
                if have > _MAX_BYTES:
                    raise ValueError(f"more than {_MAX_BYTES:,} bytes came, which is no CROHME archive")
    if total is not None and have < total:
        raise ConnectionError(f"connection cut at {have:,} of {total:,} bytes")


def _open(url: str, part: Path, tag: Path, timeout: float) -> HTTPResponse:
    """Asks for the rest of `part`, or for the whole file (status 200) where that cannot be continued."""
    have = part.stat().st_size if part.exists() else 0
    etag = tag.read_text() if tag.exists() else ""
    if have:
        # If-Range makes the server send the whole file when its ETag is another now; weak ones do not count.
        wanted = {"Range": f"bytes={have}-"} | ({"If-Range": etag} if etag.startswith('"') else {})
        try:
            response = _get(url, wanted, timeout)
            if response.status == 200 or _continues(response, have, etag):
                return response
            response.close()
        except urllib.error.HTTPError as error:
            if error.code != 416:  # 416: there is no rest, so `part` is of another file
                raise
    return _get(url, {}, timeout)


def _get(url: str, headers: dict[str, str], timeout: float) -> HTTPResponse:
    headers = {"User-Agent": "hmerbench", "Accept-Encoding": "identity"} | headers
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)


def _continues(response: HTTPResponse, have: int, etag: str) -> bool:
    starts_here = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    return response.status == 206 and starts_here and response.headers.get("ETag", "") == etag


def _check(part: Path, url: str, git_blob: str | None, sha256: str | None) -> None:
    """Compares digests; a wrong file is removed, since going on from it would never help."""
    blob = hashlib.sha1(b"blob %d\0" % part.stat().st_size, usedforsecurity=False)
    plain = hashlib.sha256()
    with open(part, "rb") as file:
        while chunk := file.read(1 << 20):
            blob.update(chunk)
            plain.update(chunk)
    for name, want, got in (("git blob", git_blob, blob.hexdigest()), ("sha256", sha256, plain.hexdigest())):
        if want and want.lower() != got:
            part.unlink()
            part.with_name(part.name + ".tag").unlink(missing_ok=True)
            raise UserError(f"{url}: {name} {got} came, {want} is wanted; try again or elsewhere")


@contextlib.contextmanager
def _progress(name: str, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), *speed) as progress:
        task = progress.add_task(name, total=total, completed=done)
        yield lambda n: progress.advance(task, n)
