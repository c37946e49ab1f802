"""Corpora: three files of lines of words, as Mikolov's Penn Treebank has them, or the captions of an archive."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import HELD_OUT, HELD_OUT_SEED, Sample, hold_out
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.language import LINE_END, Lexicon
from hmerbench.models.vocab import SPECIAL

SPLITS = ("train", "valid", "test")
LONGEST = 63  # characters of a word: 65 with its ends, the authors' limit
NO_IMAGE = np.empty((0, 0), np.uint8)
PENN_TREEBANK = "f26c4b92c5fdc7b3f8c7cdcb991d8420"  # MD5 of its train.txt


@dataclass(frozen=True)
class Corpus:
    """Numbered words of each split [N], and the lexicon that numbers them."""

    name: str
    digest: str
    lexicon: Lexicon
    splits: Mapping[str, Tensor]


def read_corpus(folder: Path, line_ends: bool = True) -> Corpus:
    """Read a corpus; with `line_ends`, the end of every line is a word.

    Raises UserError for a missing, empty or undecodable file, for one of a single line, and for too long a word.
    """
    contents = {split: _read(folder / f"{split}.txt") for split in SPLITS}
    penn = hashlib.md5(contents["train"], usedforsecurity=False).hexdigest() == PENN_TREEBANK
    words = {split: list(_words(folder / f"{split}.txt", contents[split], line_ends)) for split in SPLITS}
    digest = hashlib.sha256(b"".join(hashlib.sha256(contents[split]).digest() for split in SPLITS)).hexdigest()[:16]
    return _numbered("ptb" if penn else "text", digest, words, Lexicon.of(words["train"]))


def caption_corpus(archive: Archive) -> Corpus:
    """The LaTeX of an archive's training captions, each a line and every token a word spelled as it is written.

    The test set is what a trial of a recognizer holds out (`hmerbench trial`), so that both can be judged together by
    formulas that neither has seen. Of the others every tenth formula is for validation: by formula, as the same ones
    occur many times. The lines are shuffled, as captions may be sorted by length. All symbols of a recognizer of this
    archive are words, even those that do not occur.
    """
    samples = [Sample(id_, tuple(tokens), NO_IMAGE) for id_, tokens in archive.captions("train").items()]
    kept, held = hold_out(samples, HELD_OUT, HELD_OUT_SEED)
    splits = {
        "train": [sample for sample in kept if not _validates(sample.tokens)],
        "valid": [sample for sample in kept if _validates(sample.tokens)],
        "test": held,
    }
    words = {name: list(_lines(part)) for name, part in splits.items()}
    digest = hashlib.sha256("\t".join(" ".join(words[split]) for split in SPLITS).encode()).hexdigest()[:16]
    lexicon = Lexicon.of([LINE_END, *(word for word in archive.vocabulary.words if word not in SPECIAL)])
    return _numbered("captions", digest, words, lexicon)


def _validates(formula: Sequence[str]) -> bool:
    """Whether a formula, given as tokens, is for validation, wherever it occurs."""
    return hashlib.sha256(" ".join(formula).encode()).digest()[0] % 10 == 0


def _lines(samples: Sequence[Sample]) -> Iterator[str]:
    for sample in sorted(samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest()):
        yield from (*sample.tokens, LINE_END)


def _numbered(name: str, digest: str, words: Mapping[str, Sequence[str]], lexicon: Lexicon) -> Corpus:
    return Corpus(name, digest, lexicon, {split: lexicon.encode(words[split]) for split in SPLITS})


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; PTB= must name a folder of train.txt, valid.txt and test.txt")
    return path.read_bytes()


def _words(path: Path, content: bytes, line_ends: bool) -> Iterator[str]:
    try:
        text = content.decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8; convert the file") from None
    lines = text.split("\n")  # as the authors' program: Unicode's other separators end no line
    if not text.split():
        raise UserError(f"{path}: holds no words; give lines of words separated by spaces")
    if line_ends and len(lines) < 2:
        raise UserError(f"{path}: it has a single line, but the ends of lines are words; give one sentence per line")
    for number, line in enumerate(lines, start=1):
        for word in line.split():
            if len(word) > LONGEST:
                raise UserError(
                    f"{path}, line {number}: a word has {len(word)} characters; divide it (at most {LONGEST} fit)"
                )
            yield word
        if line_ends:
            yield LINE_END


def columns(words_N: Tensor, batch: int, steps: int = 1) -> tuple[Tensor, Tensor]:
    """`batch` pieces of a text side by side, and the words that follow theirs; both [rows, batch].

    The rows are a multiple of `steps`, the rest of the text is left out; the last word is followed by the first, as in
    the authors' program. There are no rows if the text is shorter than batch x steps words.
    """
    rows = len(words_N) // (batch * steps) * steps
    words_N = words_N[: batch * rows]
    return words_N.view(batch, rows).T.contiguous(), torch.roll(words_N, -1).view(batch, rows).T.contiguous()
