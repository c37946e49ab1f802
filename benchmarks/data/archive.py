"""A data set: published (evaluation/datasets.py), embedded (synthetic.py) or one's own, read by the same code.

Images of one's own may be pictures of any kind: normalize_image.py prepares them.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS
from hmerbench.benchmarks.data.layout import ID, Layout, abridged
from hmerbench.benchmarks.data.normalize_image import Prepared, decoded, prepare
from hmerbench.benchmarks.data.samples import Sample, evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe
from hmerbench.benchmarks.printing import err_console
from hmerbench.evaluation.datasets import Dataset, datasets
from hmerbench.evaluation.stores import ENDINGS, MAX_BYTES, FolderStore, Store, ZipStore
from hmerbench.models.files import parse_json

EMBEDDED_MARKER = "EMBEDDED.json"  # in data/: this archive was made by synthetic.py
DONE = "prepared.txt"  # of a split that was imported: ids, and what was done to their images
PREPARED_MARKER = "PREPARED.json"  # in data/: these images are read as they are

_IMAGE = "|".join(ending[1:] for ending in ENDINGS)
_CONTENT = re.compile(rf"({ID.pattern})/(caption\.txt|img/[^/]+\.(?i:{_IMAGE})|symLg/[^/]+\.lg)|PREPARED\.json")


class Archive(Layout):
    """A data set at hand: what lies in it, its samples, and which set it is, by name and by digest.

    Raises UserError, on opening or on reading, for anything that violates the layout.
    """

    @cached_property
    def unreadable(self) -> dict[str, list[str]]:
        """Of splits that were read: which of their images cannot be, and why."""
        return {}

    def image(self, split: str, id_: str) -> np.ndarray:
        """One image as a network reads it, (H, W) uint8, white ink on black."""
        return self.prepared(split, id_).image

    def prepared(self, split: str, id_: str, max_area: int = AUTHORS_MAX_PIXELS) -> Prepared:
        """One image, and what was done to the file; those of CROHME and of the embedded set are read as they are.

        Raises UserError for a damaged one, and for one of one's own on which nothing can be an expression.
        """
        read = self._prepared(split, id_, self.picture(split, id_), max_area)
        return replace(read, done=tuple(done.split("; "))) if (done := self._done[split].get(id_)) else read

    def _prepared(self, split: str, id_: str, content: bytes, max_area: int) -> Prepared:
        where = f"{self.path}: data/{self._images[split][id_][0]}"
        if self._made_for_networks(split) or PREPARED_MARKER in self._store.sizes:
            return Prepared(decoded(content, where))
        return prepare(content, where, max_area)

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
            content = self.picture(split, id_)
            try:
                samples.append(Sample(id_, tuple(tokens), self._prepared(split, id_, content, max_area).image))
            except UserError as error:
                faults.append(str(error).removeprefix(f"{self.path}: "))
        if not faults:
            return samples
        told = f"{self.path}: {len(faults)} of {len(chosen)} images of {split} cannot be read"
        if not samples or self._made_for_networks(split):
            raise UserError(f"{told}: {abridged(faults)}")
        if split not in self.unreadable:
            self.unreadable[split] = faults
            err_console.print(f"{told}, and are left out: {abridged(faults)}", markup=False)
        return samples

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
