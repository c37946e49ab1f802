"""`make crohme`: fetches CoMER's data.zip from where its authors publish it, by curl, which resumes; then checks it."""

import hashlib
import os
import subprocess
from pathlib import Path

from benchmarks.errors import UserError

URL = "https://github.com/Green-Wood/CoMER/raw/master/data.zip"
# What git knows of the authors' file: sha1 of "blob SIZE\0" + content. Nothing else is published about it.
GIT_BLOB = "4f6b9856f8d9a26b885fe05a64546e2ff89ba253"

MAX_BYTES = 1 << 30  # CROHME has 30 MB
CURL = ("curl", "--fail", "--location", "--retry", "2", "--connect-timeout", "30", "--speed-time", "60")


def download(target: Path, url: str = URL, git_blob: str = GIT_BLOB) -> Path:
    """Fetches `url` to `target` and returns it; `target` is always absent, the old file or the new one.

    What has arrived is kept in TARGET.part, where the next call resumes. Raises UserError for what curl cannot fetch,
    and for a file with another digest, which is deleted.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (part.is_file() and _git_blob(part) == git_blob):
        command = [*CURL, "--continue-at", "-", "--max-filesize", str(MAX_BYTES), "--write-out", "%{errormsg}"]
        try:
            done = subprocess.run([*command, "--output", str(part), "--", url], stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            raise UserError(f"curl is not installed: install it, or fetch {url} to {target} yourself") from None
        if done.returncode not in (0, 33, 36):  # the latter two: it cannot resume there, which the digest decides
            why = done.stdout.strip() or f"curl ends with code {done.returncode}"
            raise UserError(f"{url}: {why}; run it again to resume {part}, or give another address")
    found = _git_blob(part) if part.is_file() else "nothing"
    if found != git_blob:
        part.unlink(missing_ok=True)
        raise UserError(f"{url}: git blob {found} came, {git_blob} is wanted; run it again, or give another address")
    os.replace(part, target)
    return target


def _git_blob(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
