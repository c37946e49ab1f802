"""What lies in an archive, in the layout published with CoMER (evaluation/stores.py): captions that can be trained on,
with their images and ground truth.

A test set of one's own needs no symLg: the ground truth is then made from its captions.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import PurePosixPath

from hmerbench.benchmarks.data.normalize_image import mime_type
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.evaluation import lines
from hmerbench.evaluation.datasets import TRAIN, symlg_published
from hmerbench.evaluation.scoring.inputs import MAX_FILES, GroundTruth, from_captions, parse_captions
from hmerbench.evaluation.stores import ENDINGS, MAX_CAPTIONS, Store, no_split
from hmerbench.models.vocab import SPECIAL, Vocabulary

MAX_IMAGE_BYTES = 64 << 20
WRITERS = "writers.txt"  # of a split that was imported: ids, and who wrote them
MAX_NAMED = 10  # unknown symbols or images, in an error

ID = re.compile(r"\w[\w.+-]*")  # ids and splits become file names


class Layout:
    """The splits of an archive, with their captions, the files of their images, and their ground truth. Captions are
    kept in memory, the rest is read on demand.

    Raises UserError or InputError, on opening or on reading, for anything that violates the layout.
    """

    def __init__(self, store: Store, trains: bool = True):
        self.path = store.path
        self._store = store
        splits = {name for name in store.splits if not name.startswith(".")}
        if odd := sorted(name for name in splits if not ID.fullmatch(name)):
            fault = "cannot be the name of a set: take letters, digits and _ . + -; rename it"
            raise UserError(f"{store.where(odd[0])}: {fault}")
        if trains and TRAIN not in splits:
            raise UserError(
                f"{self.path}: no data/train/caption.txt in it, so not an archive in CoMER's layout; "
                "fetch CROHME with `make crohme`, or leave the archive out to use the embedded set"
            )
        if not splits:
            raise UserError(f"{self.path}: no data/NAME/caption.txt in it; put the captions of a test set there")
        self.test_splits: tuple[str, ...] = tuple(sorted(splits - {TRAIN}))
        self.splits: tuple[str, ...] = (*sorted(splits & {TRAIN}), *self.test_splits)
        self._texts = {split: store.captions(split) for split in self.splits}
        self._captions = {split: self._parse_captions(split) for split in self.splits}
        for split in self.splits:
            self._check_complete(split)

    def _parse_captions(self, split: str) -> dict[str, list[str]]:
        where, text = self._store.where(f"{split}/caption.txt"), self._texts[split]
        captions = parse_captions(text, where)
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
        return self._store.has_symlg(split)

    def _graph_files(self, split: str) -> dict[str, str]:
        """The files of a split's symLG by id. Raises UserError for captions without."""
        files = {id_: f"{split}/symLg/{id_}.lg" for id_ in self.captions(split)}
        if missing := [id_ for id_, name in files.items() if name not in self._store.sizes]:
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


def unknown_words(captions: Iterable[Iterable[str]], known: Container[str] = Vocabulary().ids) -> dict[str, int]:
    """Words of captions that are not `known`, with the number of captions that have each, the most frequent first."""
    return dict(Counter(word for of in captions for word in dict.fromkeys(of) if word not in known).most_common())


def counted_words(words: Mapping[str, int]) -> str:
    return abridged([f"{word} ({count})" for word, count in words.items()])


def abridged(items: Sequence[str]) -> str:
    """The first few of many items for a message, and how many others there are."""
    others = len(items) - MAX_NAMED
    return ", ".join(items[:MAX_NAMED]) + (f" and {counted(others, 'other')}" if others > 0 else "")
