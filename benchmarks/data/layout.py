"""What lies in an archive, in the layout published with CoMER: data/SPLIT/{caption.txt, img/ID.bmp, symLg/ID.lg}; read
from an untrusted zip file, or from the same layout unpacked as a folder.

A test set of one's own needs no symLg: the ground truth is then made from its captions.
"""

import hashlib
import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from hmerbench.benchmarks.data.normalize_image import ENDINGS, mime_type
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.datasets import TRAIN, symlg_published
from hmerbench.evaluation.scoring.inputs import (
    MAX_BYTES,
    MAX_CAPTIONS,
    MAX_FILES,
    GroundTruth,
    from_captions,
    parse_captions,
)
from hmerbench.models.vocab import SPECIAL, Vocabulary

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
            if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
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
    return name.rpartition("/")[2].startswith(".")


def refuse_large(where: str, size: int, limit: int) -> None:
    """Raise UserError for a file larger than any of its kind can be."""
    if size > limit:
        raise UserError(f"{where} holds {size:,} bytes, more than {limit:,}; {TRUSTED}")


# ---------------------------------------------------------------------------------------------------------- the layout


MAX_IMAGE_BYTES = 64 << 20
WRITERS = "writers.txt"  # of a split that was imported: ids, and who wrote them
MAX_NAMED = 10  # unknown symbols or images, in an error

ID = re.compile(r"\w[\w.+-]*")  # ids and splits become file names
_SPLIT = re.compile(rf"({ID.pattern})/caption\.txt")


class Layout:
    """The splits of an archive, with their captions, the files of their images, and their ground truth. Captions are
    kept in memory, the rest is read on demand.

    Raises UserError, on opening or on reading, for anything that violates the layout.
    """

    def __init__(self, store: Store, trains: bool = True):
        self.path = store.path
        self._store = store
        splits = {match[1] for name in store.sizes if (match := _SPLIT.fullmatch(name))}
        if trains and TRAIN not in splits:
            raise UserError(
                f"{self.path}: no data/train/caption.txt in it, so not an archive in CoMER's layout; "
                "fetch CROHME with `make crohme`, or leave the archive out to use the embedded set"
            )
        if not splits:
            raise UserError(f"{self.path}: no data/NAME/caption.txt in it; put the captions of a test set there")
        self.test_splits: tuple[str, ...] = tuple(sorted(splits - {TRAIN}))
        self.splits: tuple[str, ...] = (*sorted(splits & {TRAIN}), *self.test_splits)
        self._caption_files = {split: store.read(f"{split}/caption.txt", MAX_CAPTIONS) for split in self.splits}
        self._captions = {split: self._parse_captions(split) for split in self.splits}
        for split in self.splits:
            self._check_complete(split)

    def _parse_captions(self, split: str) -> dict[str, list[str]]:
        where = f"{self.path}: data/{split}/caption.txt"
        try:
            text = self._caption_files[split].decode("utf-8-sig")
            captions = parse_captions(text, where)
        except UnicodeDecodeError:
            raise UserError(f"{where} is not UTF-8 text; save it as that") from None
        except InputError as error:
            raise UserError(f"{error}; fix it") from None
        for id_, tokens in captions.items():
            if not tokens or not ID.fullmatch(id_):
                number = [line.partition("\t")[0] for line in lines(text)].index(id_) + 1
                fault = "cannot be an id: take letters, digits and _ . + -" if tokens else "has no tokens"
                raise UserError(f"{where}, line {number}: {id_[:40]!r} {fault}; correct the line")
        if special := sorted({token for tokens in captions.values() for token in tokens} & {*SPECIAL}):
            raise UserError(f"{where}: {', '.join(special)} cannot be a symbol of a caption; write it otherwise")
        if not captions:
            raise UserError(f"{where} holds no expression; pack the archive again")
        if split != "train" and len(captions) > MAX_FILES:
            raise UserError(f"{where} has {len(captions):,} expressions, more than {MAX_FILES:,}; divide the test set")
        return captions

    def _check_complete(self, split: str) -> None:
        """Check that every caption has one image and, if any of the split has one, its ground truth."""
        scored = self.has_ground_truth(split)
        missing = [id_ for id_ in self._captions[split] if not self._images[split].get(id_)]
        if missing:
            fix = "add them, or drop the captions" if len(missing) > 1 else "add it, or drop the caption"
            raise UserError(f"{self.path}: no image data/{split}/img/ID.* for {abridged(missing)}; {fix}")
        if double := [" and ".join(names) for names in self._images[split].values() if len(names) > 1]:
            raise UserError(f"{self.path}: more than one image of an expression: {abridged(double)}; keep one")
        for id_ in self._captions[split]:
            if scored and (name := f"{split}/symLg/{id_}.lg") not in self._store.sizes:
                raise UserError(
                    f"{self.path}: no ground truth data/{name} for its caption; add it, or drop the caption"
                )
        if not scored and self._makes_ground_truth(split):
            self.ground_truth(split)  # now: to correct a caption after the training makes it another run

    @cached_property
    def _images(self) -> dict[str, dict[str, list[str]]]:
        """Names of image files by split and id, of any ending in small or capital letters."""
        found: dict[str, dict[str, list[str]]] = {split: {} for split in self.splits}
        for name in self._store.sizes:
            split, _, file = name.partition("/img/")
            id_, dot, ending = file.rpartition(".")
            if split in found and (dot + ending).lower() in ENDINGS and id_ in self._captions[split]:
                found[split].setdefault(id_, []).append(name)
        return found

    def captions(self, split: str) -> dict[str, list[str]]:
        """Tokens by id, in the order of caption.txt. Raises UserError for an unknown split."""
        if split not in self._captions:
            raise UserError(f"{self.path}: no split {split!r} in it; there are {', '.join(self.splits)}")
        return self._captions[split]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words of networks that are trained on this archive: the usual ones, then the others of its training set,
        sorted; so an archive without others has the usual vocabulary."""
        return Vocabulary().extended(self.words)

    @property
    def words(self) -> set[str]:
        return {word for tokens in self._captions.get(TRAIN, {}).values() for word in tokens}

    @cached_property
    def other_words(self) -> Counter[str]:
        """Words that are not among CROHME's, with the number of captions that have each."""
        usual = Vocabulary().ids.keys()
        captions = (tokens for captions in self._captions.values() for tokens in captions.values())
        return Counter(word for tokens in captions for word in {*tokens} - usual)

    def caption_md5(self, split: str) -> str:
        return hashlib.md5(self._caption_files[split], usedforsecurity=False).hexdigest()

    def picture(self, split: str, id_: str) -> bytes:
        (name,) = self._images[split][id_]
        return self._store.read(name, MAX_IMAGE_BYTES)

    def formats(self, split: str) -> dict[str, list[str]]:
        """The MIME types of a split's images, by the endings of their names."""
        found: dict[str, set[str]] = {}
        for id_, (name,) in self._images[split].items():
            found.setdefault(PurePosixPath(name).suffix, set()).add(mime_type(self.picture(split, id_)))
        return {ending: sorted(found[ending]) for ending in sorted(found)}

    def writers(self, split: str) -> dict[str, str]:
        """Writers by id, as far as `import-data` found any."""
        return self._column(split, WRITERS)

    def _column(self, split: str, file: str) -> dict[str, str]:
        """What a file of `ID<TAB>words` lines says of a split's images; empty without."""
        if (name := f"{split}/{file}") not in self._store.sizes:
            return {}
        text = self._store.read(name, MAX_CAPTIONS).decode("utf-8", "replace")
        return dict(line.split("\t", 1) for line in lines(text) if "\t" in line)

    def _makes_ground_truth(self, split: str) -> bool:
        """Whether captions may be the ground truth: of a test set, unless it was published with symLG."""
        return split != TRAIN and not symlg_published(split, self.caption_md5(split))

    def has_ground_truth(self, split: str) -> bool:
        return any(name.startswith(f"{split}/symLg/") for name in self._store.sizes)

    def ground_truth(self, split: str) -> dict[str, str]:
        """symLG text by id: the reference for scoring, which differs from the caption for a few of CROHME's.

        Made from the captions where a test set has none, unless it is one of CROHME's. Raises UserError for a caption
        that does not convert.
        """
        if not self.has_ground_truth(split) and self._makes_ground_truth(split):
            try:
                return dict(from_captions(self.captions(split), f"{self.path}: data/{split}/caption.txt"))
            except InputError as error:
                raise UserError(str(error)) from None
        texts = {}
        for id_ in self.captions(split):
            name = f"{split}/symLg/{id_}.lg"
            if name not in self._store.sizes:
                raise UserError(f"{self.path}: no ground truth data/{name}; add the symLG files of {split}")
            try:
                texts[id_] = self._store.read(name, MAX_BYTES).decode("utf-8-sig")
            except UnicodeDecodeError:
                raise UserError(f"{self.path}: data/{name} is not UTF-8 text; restore it") from None
        return texts

    def truth_of(self, split: str, ids: Iterable[str]) -> GroundTruth:
        """The ground truth of some expressions, to score what was read of them."""
        graphs, captions = self.ground_truth(split), self.captions(split)
        return GroundTruth({id_: graphs[id_] for id_ in ids}, {id_: captions[id_] for id_ in ids})


def abridged(items: Sequence[str]) -> str:
    """The first few of many items for a message, and how many others there are."""
    others = len(items) - MAX_NAMED
    return ", ".join(items[:MAX_NAMED]) + (f" and {counted(others, 'other')}" if others > 0 else "")
