"""Files of an untrusted archive by name: a zip file, or the same layout unpacked as a folder."""

import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter
from functools import cached_property
from pathlib import Path, PurePosixPath

from hmerbench.benchmarks.errors import UserError

MAX_ENTRIES = 500_000
MAX_TOTAL = 8 << 30  # bytes unpacked; CROHME is 0.46 GB
TRUSTED = "take an archive from a trusted source"
# what zipfile raises for damaged, encrypted or unsupported archives
DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip


class ZipStore:
    """A zip file, read in place and never unpacked to disk. Names are relative to the folder `root` in it.

    Raises UserError for anything but a complete, plain zip of reasonable size.
    """

    def __init__(self, path: Path, root: str = "data/"):
        self.path, self._root = path, root
        try:
            self._zip = zipfile.ZipFile(path)
        except DAMAGED as error:
            raise UserError(
                f"{path}: truncated, or not a zip archive ({error}); "
                "give another, or move it away and fetch it again (`make crohme` fetches CROHME's images)"
            ) from None
        infos = [info for info in self._zip.infolist() if not info.is_dir()]
        total = sum(info.file_size for info in infos)
        if total > MAX_TOTAL or len(infos) > MAX_ENTRIES:
            raise UserError(
                f"{path}: unpacks to {total:,} bytes in {len(infos):,} files, "
                f"limits {MAX_TOTAL:,} and {MAX_ENTRIES:,}; {TRUSTED}"
            )
        for name, count in Counter(info.filename for info in infos).items():
            if name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
                raise UserError(f"{path}: entry {name!r} is no plain path within the archive; {TRUSTED}")
            if count > 1:
                raise UserError(f"{path}: entry {name!r} occurs {count} times; pack the archive again")
        files = (info for info in infos if not _hidden(info.filename))
        self._infos = {info.filename[len(root) :]: info for info in files if info.filename.startswith(root)}
        inner = re.compile(rf"(?!__MACOSX/)(.+)/{root}.+")  # `zip -r mine.zip mine` packs the folder above, too
        if not self._infos and (found := next(filter(None, (inner.fullmatch(info.filename) for info in infos)), None)):
            fix = f"zip it as `cd {found[1]} && zip -r ../{path.name} {root.rstrip('/')}`"
            raise UserError(f"{path}: its {root} lies under {found[1]}/; {fix}")
        # unpacked bytes by name, such as "train/caption.txt"
        self.sizes = {name: info.file_size for name, info in self._infos.items()}

    def crc(self, name: str) -> int:
        """CRC-32 of an entry as declared in the zip directory; `read` verifies it."""
        return self._infos[name].CRC

    def read(self, name: str, limit: int) -> bytes:
        """An entry's bytes. Raises UserError if they exceed `limit`, are damaged, or are not as declared."""
        where, declared = f"{self.path}: {self._root}{name}", self.sizes[name]
        refuse_large(where, declared, limit)
        try:
            with self._zip.open(self._infos[name]) as stream:
                content = stream.read(declared)  # no more, whatever it would inflate to; verifies the CRC at the end
        except (*DAMAGED, OSError) as error:  # OSError: damage found by bzip2
            raise UserError(f"{where} is damaged ({error}); fetch the archive again") from None
        if len(content) != declared:
            raise UserError(f"{where} is shorter than declared; fetch the archive again")
        return content


class FolderStore:
    """The same layout unpacked: the folder that contains data/, or the data/ folder itself."""

    def __init__(self, path: Path):
        self.path = path
        self._root = path / "data" if (path / "data").is_dir() else path

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes by name, such as "train/caption.txt"."""
        # folder by folder, as `**` would not follow links
        found = (file for depth in ("*", "*/*", "*/*/*") for file in self._root.glob(depth))
        files = (file for file in found if file.is_file() and not _hidden(file.name))
        return {file.relative_to(self._root).as_posix(): file.stat().st_size for file in files}

    def crc(self, name: str) -> int:
        return zlib.crc32((self._root / name).read_bytes())

    def read(self, name: str, limit: int) -> bytes:
        """A file's bytes. Raises UserError if they exceed `limit`, OSError if they cannot be read."""
        refuse_large(f"{self._root / name}:", self.sizes[name], limit)
        return (self._root / name).read_bytes()


Store = ZipStore | FolderStore


def _hidden(name: str) -> bool:
    """Whether a file is none of the archive's: macOS leaves a `._NAME` beside every file."""
    return PurePosixPath(name).name.startswith(".")


def refuse_large(where: str, size: int, limit: int) -> None:
    """Raise UserError for a file larger than any of its kind can be."""
    if size > limit:
        raise UserError(f"{where} holds {size:,} bytes, more than {limit:,}; {TRUSTED}")
