"""A data set: published (evaluation/datasets.py), embedded (synthetic.py) or one's own, read by the same code.

An archive has the layout published with CoMER (evaluation/stores.py). Images of one's own may be pictures of any kind:
normalize_image.py prepares them. A test set of one's own needs no symLg: its ground truth is made from its captions.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS
from hmerbench.benchmarks.data.normalize_image import Prepared, decoded, mime_type, prepare
from hmerbench.benchmarks.data.samples import Sample, evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.benchmarks.printing import counted, err_console
from hmerbench.evaluation import lines
from hmerbench.evaluation.datasets import TRAIN, Dataset, datasets, symlg_published
from hmerbench.evaluation.scoring.inputs import MAX_FILES, GroundTruth, composed, from_captions, parse_captions
from hmerbench.evaluation.stores import ENDINGS, MAX_BYTES, MAX_CAPTIONS, FolderStore, Store, ZipStore, no_split
from hmerbench.models.files import parse_json
from hmerbench.models.vocab import SPECIAL, Vocabulary

MAX_IMAGE_BYTES = 64 << 20
MAX_NAMED = 10  # unknown symbols or images, in an error
EMBEDDED_MARKER = "EMBEDDED.json"  # in data/: this archive was made by synthetic.py
PREPARED_MARKER = "PREPARED.json"  # in data/: these images are read as they are
DONE = "prepared.txt"  # of a split that was imported: ids, and what was done to their images
WRITERS = "writers.txt"  # of a split that was imported: ids, and who wrote them

ID = re.compile(r"\w[\w.+-]*")  # ids and splits become file names
_IMAGE = "|".join(ending[1:] for ending in ENDINGS)
_CONTENT = re.compile(rf"({ID.pattern})/(caption\.txt|img/[^/]+\.(?i:{_IMAGE})|symLg/[^/]+\.lg)|PREPARED\.json")


class Archive:
    """A data set at hand: its splits with their captions, images and ground truth, and which set it is, by name and by
    digest. Captions are kept in memory, the rest is read on demand.

    Raises UserError or InputError, on opening or on reading, for anything that violates the layout.
    """

    def __init__(self, store: Store, trains: bool = True):
        self.path = store.path
        self._store = store
        splits = {name for name in store.splits if not name.startswith(".")}
        if odd := sorted(name for name in splits if not ID.fullmatch(name)):
            fault = "cannot be the name of a set: take letters, digits and _ . + -; rename it"
            raise UserError(f"{store.where(odd[0])}: {fault}")
        if trains and splits and TRAIN not in splits:
            fix = "`import-data --split train` or `--test-share 0.1` makes a training set"
            found = abridged(sorted(splits))
            raise UserError(f"{self.path}: no data/train/caption.txt in it, only test sets ({found}); {fix}")
        if trains and not splits:
            raise UserError(
                f"{self.path}: no data/train/caption.txt in it, so not an archive in CoMER's layout; "
                "fetch CROHME with `make crohme`, or leave the archive out to use the embedded set"
            )
        if not splits:
            raise UserError(f"{self.path}: no data/NAME/caption.txt in it; put the captions of a test set there")
        self.tests: tuple[str, ...] = tuple(sorted(splits - {TRAIN}))
        self.splits: tuple[str, ...] = (*sorted(splits & {TRAIN}), *self.tests)
        self._texts = {split: store.captions(split) for split in self.splits}
        self._captions = {split: self._parse_captions(split) for split in self.splits}
        self.unreadable: dict[str, list[str]] = {}  # of splits that were read: which of their images cannot be, and why
        for split in self.splits:
            self._check_complete(split)

    def _parse_captions(self, split: str) -> dict[str, list[str]]:
        where, text = self._store.where(f"{split}/caption.txt"), self._texts[split]
        captions = parse_captions(text, where)
        for id_, tokens in captions.items():
            if not tokens or not ID.fullmatch(id_):
                number = [composed(line.partition("\t")[0]) for line in lines(text)].index(id_) + 1
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
        missing = [id_ for id_ in self._captions[split] if not self._images[split].get(id_)]
        if missing:
            fix = "add them, or drop the captions" if len(missing) > 1 else "add it, or drop the caption"
            raise UserError(f"{self.path}: no image data/{split}/img/ID.* for {abridged(missing)}; {fix}")
        if double := [" and ".join(names) for names in self._images[split].values() if len(names) > 1]:
            raise UserError(f"{self.path}: more than one image of an expression: {abridged(double)}; keep one")
        if self.has_ground_truth(split):
            self._graph_files(split)
        elif self._makes_ground_truth(split):
            self.ground_truth(split)  # now: to correct a caption after the training makes it another run

    @cached_property
    def _images(self) -> dict[str, dict[str, list[str]]]:
        """Names of image files by split and id, of any ending in small or capital letters."""
        found: dict[str, dict[str, list[str]]] = {split: {} for split in self.splits}
        for name in self._store.sizes:
            split, _, file = name.partition("/img/")
            id_, dot, ending = file.rpartition(".")
            id_ = composed(id_)
            if split in found and (dot + ending).lower() in ENDINGS and id_ in self._captions[split]:
                found[split].setdefault(id_, []).append(name)
        return found

    def captions(self, split: str) -> dict[str, list[str]]:
        """Tokens by id, in the order of caption.txt. Raises InputError for an unknown split."""
        if split not in self._captions:
            raise no_split(self.path, split, self.splits)
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
    def other_words(self) -> dict[str, int]:
        """`unknown_words` of all captions: those that are not among CROHME's."""
        return unknown_words(chain.from_iterable(captions.values() for captions in self._captions.values()))

    def caption_md5(self, split: str) -> str:
        return hashlib.md5(self._texts[split].encode(), usedforsecurity=False).hexdigest()

    def picture(self, split: str, id_: str) -> bytes:
        (name,) = self._images[split][id_]
        return self._store.read(name, MAX_IMAGE_BYTES)

    def formats(self, split: str) -> dict[str, list[str]]:
        """The MIME types of a split's images, by the endings of their names."""
        found: dict[str, set[str]] = {}
        for id_, (name,) in self._images[split].items():
            found.setdefault(PurePosixPath(name).suffix, set()).add(mime_type(self.picture(split, id_)))
        return {ending: sorted(found[ending]) for ending in sorted(found)}

    def image(self, split: str, id_: str) -> np.ndarray:
        """One image as a network reads it, (H, W) uint8, white ink on black."""
        return self.prepared(split, id_).image

    def prepared(self, split: str, id_: str, max_area: int = AUTHORS_MAX_PIXELS) -> Prepared:
        """One image, and what was done to the file; those of CROHME and of the embedded set are read as they are.

        Raises UserError for a damaged one, and for one of one's own on which nothing can be an expression.
        """
        read, done = self._read(split, id_, max_area), self._done[split].get(id_)
        return replace(read, done=tuple(done.split("; "))) if done else read

    def _read(self, split: str, id_: str, max_area: int) -> Prepared:
        content, where = self.picture(split, id_), f"{self.path}: data/{self._images[split][id_][0]}"
        as_it_is = self._made_for_networks(split) or PREPARED_MARKER in self._store.sizes
        return Prepared(decoded(content, where)) if as_it_is else prepare(content, where, max_area)

    @cached_property
    def _done(self) -> dict[str, dict[str, str]]:
        """What `import-data` did to images, by split and id."""
        return {split: self._column(split, DONE) for split in self.splits}

    def _made_for_networks(self, split: str) -> bool:
        """Whether a split is embedded, or of a published set that is all here, as published, maybe beside others."""
        published = any(known.digests and split in splits for known, splits in self.editions.values())
        return published or bool(self.mark)

    def samples(self, split: str, max_area: int = AUTHORS_MAX_PIXELS, limit: int | None = None) -> list[Sample]:
        """All samples, or `limit` evenly spaced ones, in the order of caption.txt; images are decoded anew at every
        call (train: 0.32 GB).

        Images of one's own are made to have at most `max_area` pixels; those that cannot be prepared are left out, and
        named in one line of the terminal. Raises UserError if none is left, and for a damaged archive.
        """
        samples, faults = list[Sample](), list[str]()
        chosen = evenly([*self.captions(split).items()], limit)  # before any is left out: a score counts all of these
        for id_, tokens in chosen:
            try:
                samples.append(Sample(id_, tuple(tokens), self._read(split, id_, max_area).image))
            except UserError as error:
                faults.append(str(error).removeprefix(f"{self.path}: "))
        if not faults:
            return samples
        told = f"{self.path}: {len(faults)} of {len(chosen)} images of {split} cannot be read"
        if not samples or self._made_for_networks(split):
            raise UserError(f"{told}: {abridged(faults)}")
        if split not in self.unreadable:
            self.unreadable[split] = faults
            wrong = "" if split == TRAIN else " and count as wrong"
            err_console.print(f"{told}, are left out{wrong}: {abridged(faults)}", markup=False)
        return samples

    def writers(self, split: str) -> dict[str, str]:
        """Writers by id, as far as `import-data` found any."""
        return self._column(split, WRITERS)

    def _column(self, split: str, file: str) -> dict[str, str]:
        """What a file of `ID<TAB>words` lines says of a split's images; empty without."""
        if (name := f"{split}/{file}") not in self._store.sizes:
            return {}
        text = self._store.read(name, MAX_CAPTIONS).decode("utf-8", "replace")
        told = (line.split("\t", 1) for line in lines(text) if "\t" in line)
        return {composed(id_): words for id_, words in told}

    def _makes_ground_truth(self, split: str) -> bool:
        """Whether captions may be the ground truth: of a test set, unless it was published with symLG."""
        return split != TRAIN and not symlg_published(split, self.caption_md5(split))

    def has_ground_truth(self, split: str) -> bool:
        return self._store.has_symlg(split)

    def _graph_files(self, split: str) -> dict[str, str]:
        """The files of a split's symLG by id. Raises UserError for captions without."""
        folder = f"{split}/symLg/"
        found = {composed(name.removeprefix(folder)): name for name in self._store.sizes if name.startswith(folder)}
        files = {id_: found.get(f"{id_}.lg", "") for id_ in self.captions(split)}
        if missing := [id_ for id_, name in files.items() if not name]:
            where = self._store.where(f"{split}/symLg/ID.lg")
            raise UserError(f"{where}: no ground truth for {abridged(missing)}; add it, or drop the captions")
        return files

    def ground_truth(self, split: str) -> dict[str, str]:
        """symLG text by id: the reference for scoring, which differs from the caption for a few of CROHME's.

        Made from the captions where a test set has none, unless it is one of CROHME's. Raises InputError for a caption
        that does not convert.
        """
        if not self.has_ground_truth(split) and self._makes_ground_truth(split):
            return dict(from_captions(self.captions(split), self._store.where(f"{split}/caption.txt")))
        return {id_: self._store.text(name) for id_, name in self._graph_files(split).items()}

    def truth_of(self, split: str, ids: Iterable[str]) -> GroundTruth:
        """The ground truth of some expressions, to score what was read of them."""
        graphs, captions = self.ground_truth(split), self.captions(split)
        return GroundTruth({id_: graphs[id_] for id_ in ids}, {id_: captions[id_] for id_ in ids})

    @cached_property
    def digest(self) -> str:
        """SHA-256 over name, size and CRC-32 of captions, images and symLG: equal for zip and folder."""
        return self._digest()

    def _digest(self, folders: set[str] | None = None) -> str:
        names = sorted(filter(_CONTENT.fullmatch, self._store.sizes))
        return _digest(self._store, [name for name in names if not folders or name.split("/")[0] in folders])

    @cached_property
    def editions(self) -> dict[str, tuple[Dataset, list[str]]]:
        """The published sets that are here whole, with their splits, by the digest of these splits alone: what was
        trained on them can read this archive, whatever test sets are beside them."""
        found = {}
        for known in datasets().values():
            for digest, splits in known.editions.items():
                if not all(split in self.splits and known.has(split, self.caption_md5(split)) for split in splits):
                    continue  # before a digest, which reads a folder's every file
                here = self.digest if {*splits} == {*self.splits} else self._digest({*splits, PREPARED_MARKER})
                if digest in (here, ""):
                    found[here] = known, splits
        return found

    @property
    def like(self) -> Dataset | None:
        """The published set that has test sets of the same names."""
        return next((known for known in datasets().values() if {*known.tests} & {*self.splits}), None)

    def holds(self, digest: str) -> bool:
        """Whether data of this digest are here, alone or beside test sets that no published set has."""
        if digest in (self.digest, *self.editions):
            return True
        published = {PREPARED_MARKER, *chain.from_iterable(known.splits for known in datasets().values())}
        return not {*self.splits} <= published and digest == self._digest(published)

    @cached_property
    def mark(self) -> dict | None:
        """Contents of data/EMBEDDED.json; None for any archive but the embedded set."""
        if EMBEDDED_MARKER not in self._store.sizes:
            return None
        try:
            mark = parse_json(self._store.read(EMBEDDED_MARKER, MAX_BYTES))
            return {"generator": int(mark["generator"]), "seed": int(mark["seed"]), **mark}
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.path}: its {EMBEDDED_MARKER} is damaged; delete the archive to remake it") from None

    @cached_property
    def name(self) -> str:
        """That of a published set ("crohme": all content exactly as published), "embedded" or "foreign"."""
        whole = (known.name for known, splits in self.editions.values() if {*splits} == {*self.splits})
        return next(whole, "embedded" if self.mark else "foreign")

    @cached_property
    def edition(self) -> str:
        """One-line description: the known edition, or how the archive differs from a published set."""
        counts = "/".join(f"{len(self.captions(split)):,}" for split in self.splits)
        if known := datasets().get(self.name):
            return f"{known.title} ({counts})"
        if self.mark:
            return f"embedded synthetic set, generator {self.mark['generator']}, seed {self.mark['seed']} ({counts})"
        if (like := self.like) is None:
            return f"your own data ({', '.join(f'{split} {len(self._captions[split]):,}' for split in self.splits)})"
        differences = [f"{split} is missing" for split in like.splits if split not in self.splits]
        differences += [f"{split} is not in {like.title}" for split in self.splits if split not in like.splits]
        others = [split for split in self.splits if like.has(split, self.caption_md5(split)) is False]
        differences += [f"{split} has other captions" for split in others]
        differences = differences or ["captions as published, but other images or symLG"]
        return f"foreign archive ({counts}): {'; '.join(differences)}"

    @cached_property
    def inkml(self) -> ZipStore:
        """InkML files of the training set, .../ID.inkml: the file inkml/train.zip next to the archive."""
        path = inkml_beside(self.path)
        if not path.is_file():
            raise UserError(
                f"{path}: no such archive; put the InkML files of CROHME's training set there, "
                "or set data.sub_expressions, data.exchanged and data.substitution to 0 to train on the images alone"
            )
        return ZipStore(path, root="")

    @cached_property
    def inkml_digest(self) -> str:
        """Digest of the InkML files, computed as in `digest`. Raises UserError if there are none."""
        return _digest(self.inkml, sorted(name for name in self.inkml.sizes if name.endswith(".inkml")))


def inkml_beside(archive: Path) -> Path:
    return archive.parent / "inkml" / "train.zip"


def _digest(store: Store, names: Sequence[str]) -> str:
    lines = (f"{name} {store.sizes[name]} {store.crc(name):08x}\n" for name in names)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def open_archive(path: Path | str, trains: bool = True) -> Archive:
    """Open CoMER's data.zip, or the same layout unpacked (the folder that contains data/, or data/ itself). Unless it
    `trains`, it needs no training set.

    Captions are checked on opening (form, completeness), images and symLG when they are read.
    Raises UserError, one line naming archive, entry and fix.
    """
    path = Path(path)
    refuse_pipe(path)
    if not path.exists():
        raise UserError(f"{path}: no such archive; fetch it with `make crohme`, or omit it to use the embedded set")
    return Archive(FolderStore(path) if path.is_dir() else ZipStore(path), trains)


def unknown_words(captions: Iterable[Iterable[str]], known: Container[str] = Vocabulary().ids) -> dict[str, int]:
    """Words of captions that are not `known`, with the number of captions that have each, the most frequent first."""
    return dict(Counter(word for of in captions for word in dict.fromkeys(of) if word not in known).most_common())


def counted_words(words: Mapping[str, int]) -> str:
    shown = {word: word if word.isprintable() else ascii(word)[1:-1] for word in words}
    return abridged([f"{shown[word]} ({count})" for word, count in words.items()])


def abridged(items: Sequence[str]) -> str:
    """The first few of many items for a message, and how many others there are."""
    others = len(items) - MAX_NAMED
    return ", ".join(items[:MAX_NAMED]) + (f" and {counted(others, 'other')}" if others > 0 else "")
