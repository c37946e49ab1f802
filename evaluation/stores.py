"""Files of an archive by name: of an untrusted zip, never unpacked to disk, or of the same layout as a folder. That
published with CoMER is data/SPLIT/{caption.txt, img/ID.bmp, symLg/ID.lg}."""

import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hmerbench.evaluation import InputError, readable

MAX_BYTES = 4 << 20  # of one file of an expression; the largest symLG of CROHME has 30 kB
MAX_CAPTIONS = 64 << 20  # of a caption.txt: 100,000 expressions of 600 bytes
MAX_TEXTS = 1 << 30  # of files that are in memory together
MAX_TOTAL = 8 << 30  # of a zip, unpacked; CROHME is 0.46 GB
MAX_ENTRIES = 500_000
ENDINGS = (  # of images
    *(".bmp", ".png", ".jpg", ".jpeg", ".jp2", ".webp", ".tif", ".tiff", ".gif", ".avif", ".heic", ".heif"),
    *(".dib", ".ppm", ".pgm", ".pbm", ".pcx", ".ico", ".qoi"),
)
TRUSTED = "take an archive from a trusted source"


class Store:
    """Files by name, such as "train/caption.txt", but for hidden ones: macOS leaves a `._NAME` beside every file.

    `sizes` are in bytes. Raises InputError for whatever cannot be read.
    """

    path: Path
    sizes: dict[str, int]
    _place: str  # begins the name of a file in messages

    def where(self, name: str) -> str:
        """A file as messages call it."""
        return self._place + name

    def crc(self, name: str) -> int:
        """CRC-32 of a file; of a zip's as it declares, which `read` verifies."""
        raise NotImplementedError

    def read(self, name: str, limit: int) -> bytes:
        """A file's bytes. Raises InputError if they exceed `limit`, are damaged, or are not as declared."""
        raise NotImplementedError

    def text(self, name: str, limit: int = MAX_BYTES) -> str:
        with readable(self.where(name)):
            return self.read(name, limit).decode("utf-8-sig")

    def texts(self, ending: str, folder: str = "") -> Iterator[tuple[str, str]]:
        """The name, without folders and ending, and the text of every file below a folder that ends so."""
        names = [name for name in self.sizes if name.startswith(folder) and name.endswith(ending)]
        refuse_large(f"{self.path}: the whole of its {ending}", sum(self.sizes[name] for name in names), MAX_TEXTS)
        return ((name.rpartition("/")[2].removesuffix(ending), self.text(name)) for name in names)

    @property
    def splits(self) -> list[str]:
        return sorted(name.split("/")[0] for name in self.sizes if re.fullmatch(r"[^/]+/caption\.txt", name))

    def captions(self, split: str) -> str:
        """The text of a split's captions."""
        if split not in self.splits:
            raise no_split(self.path, split, self.splits)
        return self.text(f"{split}/caption.txt", MAX_CAPTIONS)

    def has_symlg(self, split: str) -> bool:
        return any(name.startswith(f"{split}/symLg/") and name.endswith(".lg") for name in self.sizes)


class ZipStore(Store):
    """A zip file, read in place. Names are relative to the folder `root` in it.

    Raises InputError for anything but a complete, plain zip of reasonable size.
    """

    def __init__(self, path: Path, root: str = "data/"):
        self.path, self._place = path, f"{path}: {root}"
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # a damaged directory also gives NotImplementedError, UnicodeDecodeError, ...
            fix = "move it away, and make or fetch it again (CROHME: `make crohme`)"
            raise InputError(f"{path}: truncated, or not a zip ({error}); {fix}") from None
        every = [(info.filename.replace("\\", "/"), info) for info in self._zip.infolist()]  # \ as Windows may write
        files = [(name, info) for name, info in every if not name.endswith("/")]
        if len(files) > MAX_ENTRIES:
            raise InputError(f"{path}: has {len(files):,} files, more than {MAX_ENTRIES:,}; {TRUSTED}")
        refuse_large(f"{path}: unpacked, it", sum(info.file_size for _, info in files), MAX_TOTAL)
        for name, count in Counter(name for name, _ in files).items():
            if name.startswith("/") or ":" in name or ".." in name.split("/"):
                raise InputError(f"{path}: entry {name!r} is no plain path within the archive; {TRUSTED}")
            if count > 1:
                raise InputError(f"{path}: entry {name!r} occurs {count} times; pack the archive again")
        shown = {name: info for name, info in files if not _hidden(name)}
        self._infos = {name.removeprefix(root): info for name, info in shown.items() if name.startswith(root)}
        # `zip -r mine.zip mine` packs the folder above, too
        if not self._infos and (found := next(filter(None, (re.match(rf"(.+)/{root}", name) for name in shown)), None)):
            fix = f"zip it as `cd {found[1]} && zip -r ../{path.name} {root.rstrip('/')}`"
            raise InputError(f"{path}: its {root} lies under {found[1]}/; {fix}")
        self.sizes = {name: info.file_size for name, info in self._infos.items()}

    def crc(self, name: str) -> int:
        return self._infos[name].CRC

    def read(self, name: str, limit: int) -> bytes:
        declared = self.sizes[name]
        refuse_large(self.where(name), declared, limit)
        try:
            with self._zip.open(self._infos[name]) as stream:
                content = stream.read(declared)  # no more, whatever it would inflate to; verifies the CRC at the end
                if len(content) != declared:
                    raise EOFError("shorter than declared")
                return content
        except Exception as error:  # those of zipfile, zlib and lzma share no base class
            fix = "fetch or make the archive again"
            raise InputError(f"{self.where(name)} is damaged, or cannot be unpacked ({error}); {fix}") from None


class FolderStore(Store):
    """The same unpacked: the folder that contains `root`, or that folder itself, and `depth` levels of folders within
    it, also behind links."""

    def __init__(self, path: Path, root: str = "data/", depth: int = 2):
        self.path, self._root = path, path / root if (path / root).is_dir() else path
        self._place = f"{self._root}/"
        self.sizes = dict(self._listed("", depth))

    def _listed(self, folder: str, depth: int) -> Iterator[tuple[str, int]]:
        with readable(self._root / folder):
            every = [*os.scandir(self._root / folder)]
            found = sorted((each.name, each.is_dir(), each.stat().st_size if each.is_file() else 0) for each in every)
        for name, inner, size in found:
            if inner and depth:
                yield from self._listed(f"{folder}{name}/", depth - 1)
            elif not inner and not _hidden(name):
                yield folder + name, size

    def crc(self, name: str) -> int:
        return zlib.crc32(self.read(name, self.sizes[name]))

    def read(self, name: str, limit: int) -> bytes:
        refuse_large(self.where(name), self.sizes[name], limit)
        if not (self._root / name).is_file():  # reading a pipe would block
            raise InputError(f"{self.where(name)}: is not a regular file; take it out")
        with readable(self.where(name)):
            return (self._root / name).read_bytes()


def no_split(path: Path, split: str, splits: Sequence[str]) -> InputError:
    return InputError(f"{path}: has no split {split}; it has {', '.join(splits) or 'none (no NAME/caption.txt)'}")


def _hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or "__MACOSX" in name.split("/")


def refuse_large(where: object, size: int, limit: int) -> None:
    """Raise InputError for a file larger than any of its kind can be."""
    if size > limit:
        raise InputError(f"{where} holds {size:,} bytes, more than {limit:,}; {TRUSTED}")


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of one file of at most `limit` bytes. Raises InputError."""
    with readable(path), path.open("rb") as file:
        content = file.read(limit + 1)
        if len(content) > limit:
            raise InputError(f"{path}: is larger than {limit >> 20} MB; give it in parts")
        return content.decode("utf-8-sig")
