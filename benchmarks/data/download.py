"""Download a file with curl, which resumes, and verify it: a published set, from its authors, or weights."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hmerbench.benchmarks.errors import UserError

MAX_BYTES = 1 << 30  # CROHME is 30 MB
CURL = ("curl", "--fail", "--location", "--retry", "2", "--connect-timeout", "30", "--speed-time", "60")


def git_blob(path: Path) -> str:
    """Git's id of a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def download(target: Path, url: str, digest: str, digest_of: Callable[[Path], str] = git_blob) -> Path:
    """Download `url` to `target`, which is replaced atomically, and return it.

    An incomplete download is kept in TARGET.part, from which the next call resumes. Raises UserError if curl fails, and
    for a file with the wrong digest, which is deleted.
    """
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (part.is_file() and digest_of(part) == digest):
        quiet = [] if sys.stderr.isatty() else ["--silent"]  # else its progress, which only a terminal shows well
        command = [*CURL, *quiet, "--continue-at", "-", "--max-filesize", str(MAX_BYTES), "--write-out", "%{errormsg}"]
        try:
            done = subprocess.run([*command, "--output", str(part), "--", url], stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            raise UserError(f"curl is not installed: install it, or fetch {url} to {target} yourself") from None
        if done.returncode not in (0, 33, 36):  # 33 and 36: nothing to resume, so the digest decides
            why = done.stdout.strip() or f"curl exited with status {done.returncode}"
            raise UserError(f"{url}: {why}; run it again to resume {part}, or give another address")
    received = digest_of(part) if part.is_file() else "nothing"
    if received != digest:
        part.unlink(missing_ok=True)
        raise UserError(f"{url}: expected the digest {digest}, got {received}; run it again, or give another address")
    os.replace(part, target)
    return target
