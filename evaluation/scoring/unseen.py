"""What a system reads of formulas that it was not trained on: a test set without those whose captions were in training.

Writers copy the same formulas, so that some of a test set's captions occur in training, written by another hand.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hmerbench.evaluation.scoring.inputs import parse_captions, read_captions
from hmerbench.evaluation.scoring.score import Evaluation, Score, score_of
from hmerbench.evaluation.scoring.signature import fields_of

Caption = tuple[str, ...]


class Training(NamedTuple):
    """Captions that were trained on, and their name in a signature."""

    captions: Collection[Caption]
    name: str


def read_training(spec: str) -> Training:
    """The captions of `ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT` or a caption.txt. Raises InputError."""
    text, where = read_captions(spec)
    captions = {tuple(tokens) for tokens in parse_captions(text, where).values()}
    return Training(captions, name_of(text.encode()))


def name_of(caption_file: bytes) -> str:
    """The beginning of the MD5 of a caption.txt: scores agree in what is left out if it is the same."""
    return hashlib.md5(caption_file, usedforsecurity=False).hexdigest()[:8]


def unseen(result: Evaluation, captions: Mapping[str, Sequence[str]], training: Training) -> tuple[Score | None, int]:
    """The score of the expressions whose captions are not in `training`, which its signature says (`unseen`); None if
    there are none. And how many are left out."""
    rows = [row for row in result.expressions if tuple(captions[row.id]) not in training.captions]
    left_out = len(result.expressions) - len(rows)
    if not rows:
        return None, left_out
    fields = fields_of(result.score.signature) | {"n": str(len(rows))}
    fields = {key: text for key, text in fields.items() if key != "v"} | {"unseen": training.name, "v": fields["v"]}
    return score_of(rows, "|".join(["ExpRate", *(f"{key}:{text}" for key, text in fields.items())])), left_out


def told(score: Score | None, left_out: int) -> str:
    """The second line of a score."""
    if score is None:
        return f"all {left_out} captions were trained on: no unseen expression is left"
    return f"{score}, without {left_out} whose captions were trained on"
