"""What is imported: the files of a folder, of a zip, or one file with what lies beside it; and which split an
expression belongs to: as its source or a list says, or a share held out by writer or formula."""

import io
import os
import re
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.evaluation import lines
from hmerbench.evaluation.scoring.inputs import composed
from hmerbench.evaluation.stores import ENDINGS, MAX_CAPTIONS, MAX_ENTRIES, ZipStore, read_text, refuse_large
from hmerbench.evaluation.strict import first_twice

NO_CAPTION, NO_IMAGE = "no caption for the image", "no image for the caption"
MAX_TABLE = 1 << 30  # bytes of images in one file
MAX_TEXT = 256 << 20  # bytes of a list of captions; an archive's have 64 MB
LISTING = ".import.jsonl"  # ending of the list that an import leaves beside its archive
_PASSED_OVER = re.compile(rf"(^|/)(\.|__)|{re.escape(LISTING)}$")
IMAGE_FOLDERS = ("", "img", "imgs", "image", "images")


@dataclass(frozen=True)
class Expression:
    """An expression as its source has it."""

    name: str  # of its image, without folder and ending
    image: str | bytes | np.ndarray  # a file of the source, its content, or a gray image (H, W)
    latex: str
    split: str = ""  # "" if the source does not tell
    writer: str = ""


@dataclass
class Row:
    """An expression on its way into the archive."""

    id: str
    split: str
    tokens: tuple[str, ...]
    writer: str
    latex: str  # as the source has it
    changes: dict[str, int]  # of the caption, by rule
    prepared: tuple[str, ...]  # what was done to the image
    start: int  # of the image in the spool
    size: int
    dark: bool  # its ink, on a light ground; only of an image that is left as it is


class Source:
    """The files at a place by name, with forward slashes, hidden ones, what macOS leaves and lists of imports passed
    over; and what of them is not imported."""

    def __init__(self, path: Path):
        refuse_pipe(path)
        if not path.exists():
            raise UserError(f"{path}: there is nothing; give a folder, a zip, or a file of captions")
        self.path, self.listed = path, None if path.is_dir() or path.suffix.lower() == ".zip" else path.name
        self._zip = ZipStore(path, root="") if path.suffix.lower() == ".zip" else None
        self._named = set[str]()  # image files that captions name
        self._root = path if path.is_dir() else path.parent
        self.left_out: dict[str, list[str]] = {}  # names of expressions by reason
        self.unread: dict[str, str] = {}  # files beside others that may hold captions, and what is wrong with them

    def leave_out(self, name: str, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(name)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes by name, sorted."""
        if self._zip is not None:
            found = self._zip.sizes
        else:
            files = (file for file in self._files() if file.is_file())
            found = {file.relative_to(self._root).as_posix(): file.stat().st_size for file in files}
        names = sorted(name for name in found if name == self.listed or not _PASSED_OVER.search(name))
        if len(names) > 4 * MAX_ENTRIES:
            raise UserError(f"{self.path}: holds more than {4 * MAX_ENTRIES:,} files; import it in parts")
        return {name: found[name] for name in names}

    def _files(self) -> Iterator[Path]:
        """What lies in the folder, also behind links, but for hidden folders and links to one that holds it."""
        above = {str(self._root): {os.path.realpath(self._root)}}  # of a folder, where it and those above it really are
        for folder, inner, names in os.walk(self._root, followlinks=True):
            yield from (Path(folder, name) for name in names)
            paths = {name: os.path.join(folder, name) for name in inner if not _PASSED_OVER.search(name)}
            inner[:] = [name for name, path in paths.items() if not _leads_back(path, above[folder])]
            above |= {paths[name]: above[folder] | {os.path.realpath(paths[name])} for name in inner}

    def tables(self, *endings: str) -> list[str]:
        """Names of files with these endings: the one that was given, or all."""
        names = [self.listed] if self.listed else list(self.sizes)
        return [name for name in names if name.lower().endswith(endings)]

    def read(self, name: str, limit: int = MAX_TABLE) -> bytes:
        """The content of a file. Raises UserError."""
        if self._zip is not None:
            return self._zip.read(name, limit)
        refuse_large(self._root / name, self.sizes[name], limit)
        return (self._root / name).read_bytes()

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[str]]:
        """The text of a file, in UTF-8. Raises UserError."""
        try:
            yield io.TextIOWrapper(io.BytesIO(self.read(name, MAX_TEXT)), "utf-8-sig", newline="")
        except UnicodeDecodeError:
            raise UserError(f"{self.path}: {name} is not UTF-8 text; save it as that") from None

    def text(self, name: str) -> str:
        with self.opened(name) as file:
            return file.read()

    def lines(self, name: str) -> Iterator[str]:
        """The lines of a file, without what ends them. Raises UserError."""
        with self.opened(name) as file:
            yield from (line.rstrip("\r\n") for line in file)

    def filled_lines(self, name: str, count: int | None = None) -> list[str]:
        """Those of the first `count` lines, or of all, that are not blank; of a file that is not UTF-8, but one of
        several, none."""
        try:
            return [line for line in islice(self.lines(name), count) if line.strip()]
        except UserError as fault:
            if self.listed:
                raise
            self.unread[name] = str(fault)
            return []

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.sizes:
            path = PurePosixPath(name)
            if path.suffix.lower() in ENDINGS:
                found.setdefault(composed(path.stem), []).append(name)
        return found

    def expressions(self, table: str, name: str, latex: str, split: str, writer: str = "") -> Iterator[Expression]:
        """The expression of a caption in a table, if `name` is that of one image."""
        images = self.find(table, name, split)
        self._named.update(images)
        if len(images) == 1:
            yield Expression(PurePosixPath(images[0]).stem, images[0], latex, split, writer)
        elif images:
            self.leave_out(name, f"two images of one name ({', '.join(images[:2])})")
        elif others := self.find(table, name):
            folder = PurePosixPath(others[0]).parent
            self.leave_out(name, f"its image is in {folder}/, the folder of another split; name the folder, too")
        else:
            self.leave_out(name, NO_IMAGE)

    def find(self, table: str, name: str, split: str = "") -> list[str]:
        """The image files that `name`, in a table, can mean: the nearest. It may lack its ending, and its path; then
        none in the folder of another split than that of its own folder or `split`."""
        path, beside = PurePosixPath(name.replace("\\", "/")), PurePosixPath(table).parent
        for folder in IMAGE_FOLDERS:
            if (exact := (beside / folder / path).as_posix().lstrip("./")) in self.sizes:
                return [exact]
        stems = {path.name, path.stem} if path.suffix.lower() in ENDINGS else {path.name}
        found = [PurePosixPath(file) for stem in sorted(stems) for file in self._by_stem.get(composed(stem), ())]
        split = split_of_image(name) or usual(split)
        for near in (beside, *beside.parents):  # the source itself last
            below = [file for file in found if file.is_relative_to(near)]
            if own := [file for file in below if not _differ(split, split_of_image(str(file.relative_to(near))))]:
                return list({os.path.realpath(self._root / file): str(file) for file in own}.values())  # also by a link
        return []

    def unnamed_images(self) -> list[str]:
        """Image files that no caption names; none if captions do not name files."""
        files = {file for files in self._by_stem.values() for file in files} if self._named else set[str]()
        return sorted(files - self._named)


def _leads_back(path: str, above: set[str]) -> bool:
    """Whether a folder is a link to one of the folders above it, or to what is around one."""
    real = os.path.realpath(path)
    return os.path.islink(path) and any(os.path.commonpath([other, real]) == real for other in above)


# -------------------------------------------------------------------------------------------------------------- splits

# words of paths and columns; those of --split and its list, such as train1 of several folds, are kept, but for synonyms
SPLITS = {"train": re.compile(r"train[a-z]*\d*"), "valid": re.compile(r"(val|dev)(id[a-z]*|set)?\d*")}
SYNONYMS = {"train": "train", "training": "train"}
SYNONYMS |= dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "valid")
# folders that tell no split
GENERIC = {"data", "img", "imgs", "images", "image", "captions", "caption", "labels", "label", "metadata", "inkml"}


def usual(told: str) -> str:
    """`train` or `valid` for a word of a path that means it, such as `TrainINKML` or `val2017`; any other as it is."""
    return next((split for split, words in SPLITS.items() if words.fullmatch(told.lower())), told)


def split_of(name: str) -> str:
    """The split that the path of a file tells: the nearest part that says train, valid or test, or else the folder."""
    path = PurePosixPath(name)
    for part in (path.stem, *reversed(path.parts[:-1])):
        for word in map(usual, re.split(r"[-_.]", part.lower())):
            if word in SPLITS or word.startswith("test"):
                year = re.match(r"(\d{2,4})_test", part)  # 14_test_labels.txt
                return f"test_{year[1]}" if year else word
    folders = [part for part in path.parts[:-1] if part.lower() not in GENERIC]
    return folders[-1] if folders else ""


def split_of_image(image: str) -> str:
    """The split that the folders of an image tell, if they say train, valid, test or a year of CROHME."""
    told = split_of((PurePosixPath(image.replace("\\", "/")).parent / "image").as_posix())
    return told if says_split(told) else ""


def says_split(told: str) -> bool:
    """Whether it says train, valid, test or a year of CROHME, not only some folder."""
    return told in SPLITS or bool(re.fullmatch(r"test.*|20[12]\d", told))


def _differ(first: str, second: str) -> bool:
    """Whether both say a split, and not the same; `test` may be any test set, of a year with two digits or four."""
    if first == second or not (says_split(first) and says_split(second)):
        return False
    years = {re.sub(r"\D", "", told)[-2:] or told for told in (first, second)} - {"test"}
    return len(years) > 1 or not {first, second}.isdisjoint(SPLITS)


@dataclass(frozen=True)
class Choice:
    """How splits are told. `listed` are lines of ID and split; `test_share` is held out of what is not a test set;
    `everything` goes to one split."""

    everything: str = ""
    listed: tuple[tuple[str, str], ...] = ()
    test_share: float = 0.0
    seed: int = 7

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise UserError(f"--test-share {self.test_share:g}: must lie between 0 and 1, such as 0.1")


def chosen(rows: Iterable[Row], choice: Choice, source: Source) -> Iterator[Row]:
    """The rows with their splits; those that a list does not name are left out. What nothing tells is a test set, or
    what one is held out of."""
    lists, found = dict(choice.listed), set[str]()
    for row in rows:
        told = lists.get(row.id, "") if lists else choice.everything
        said = SYNONYMS.get(told.lower(), told) or usual(row.split)
        row.split = said or ("train" if choice.test_share else "test")
        found.add(row.id)
        if lists and not told:
            source.leave_out(row.id, "not in the list of splits")
        else:
            yield row
    for id_ in sorted(lists.keys() - found):
        source.leave_out(id_, "in the list of splits, but no expression that could be read has this id")


def held_out(rows: list[Row], choice: Choice, source: Source) -> list[Row]:
    """`test_share` of what is in train becomes the test set: whole writers where they are known, whose formulas that
    occur in train are left out; else whole formulas."""
    pool = [row for row in rows if row.split == "train"]
    if rows and not pool:
        raise UserError("--test-share: every expression is in a test set already; leave it out, or use --split train")
    by_writer = all(row.writer for row in pool) and len({row.writer for row in pool}) > 1
    groups: dict[Hashable, list[Row]] = {}
    for row in pool:
        groups.setdefault(row.writer if by_writer else row.tokens, []).append(row)
    held, wanted = set[int](), choice.test_share * len(pool)
    for key in sorted(groups, key=lambda key: sha256(f"{choice.seed} {key}".encode()).digest()):
        if len(held) >= wanted:
            break
        held |= {id(row) for row in groups[key]}
    for row in pool:
        row.split = "test" if id(row) in held else "train"
    seen = {row.tokens for row in pool if row.split == "train"}
    kept = []
    for row in rows:
        if id(row) in held and row.tokens in seen:
            source.leave_out(row.id, "of a held-out writer, but its formula occurs in train")
        else:
            kept.append(row)
    return kept


def listed(path: Path) -> tuple[tuple[str, str], ...]:
    """The ids and splits in a file: lines of an id, a blank or a tab, and a split. Raises UserError or InputError."""
    words = [composed(line).split() for line in lines(read_text(path, MAX_CAPTIONS)) if line.strip()]
    if not words or any(len(pair) != 2 for pair in words):
        raise UserError(f"{path}: a list of splits has an id and a split on every line, such as `a1 train`")
    if twice := first_twice(id_ for id_, _ in words):
        raise UserError(f"{path}: the id {twice} occurs twice; keep one")
    return tuple((id_, split) for id_, split in words)
