"""An expression with its image; evenly spaced subsets and held-out splits of a set of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from hmerbench.benchmarks.data.ink import MAX_INK_BYTES, Canvas, Ink, Stroke, symbols_of, traces
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import err_console, progress
from hmerbench.evaluation.scoring.inputs import composed
from hmerbench.evaluation.stores import ZipStore

HELD_OUT, HELD_OUT_SEED = 0.15, 7  # what trials hold out: share of the training set, and seed of the split
HELD_OUT_SET = "heldout"  # the set of these expressions, in the names of files
Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """An expression: id, tokens, image (H, W) uint8 with white ink on black, and its pen strokes if known.

    Of several that are generated from one expression, each epoch of a training takes one, in turn.
    """

    id: str
    tokens: tuple[str, ...]
    image: np.ndarray
    ink: Ink | None = None
    number: int = 0  # among those that take turns
    turns: int = 1  # how many take turns

    def takes_part(self, epoch: int) -> bool:
        return epoch % self.turns == self.number


def with_ink(samples: Sequence[Sample], store: ZipStore) -> list[Sample]:
    """The samples with their pen strokes, looked up by id among the InkML files of `store`.

    A sample without a usable file (`symbols_of`) is returned as it is, as is one too small for the margins of CROHME's
    images. Raises UserError if none has one, or if one has two.
    """
    names: dict[str, str] = {}
    for name in (name for name in store.sizes if name.endswith(".inkml")):
        if (other := names.setdefault(composed(PurePosixPath(name).stem), name)) != name:
            raise UserError(f"{store.path}: {other} and {name} are of one expression; take one out")
    result = list(samples)
    for number, sample in enumerate(progress(samples, "reading pen strokes")):
        text = store.read(names[sample.id], MAX_INK_BYTES) if sample.id in names else b""
        if symbols := symbols_of(text, sample.tokens):
            canvas = Canvas.under(symbols.values(), *sample.image.shape)
            result[number] = replace(sample, ink=Ink(symbols, canvas) if canvas.scale > 0 else None)
    usable = sum(sample.ink is not None for sample in result)
    if not usable:
        raise UserError(
            f"{store.path}: holds no segmented pen strokes (ID.inkml) of these training expressions; "
            "put theirs there, or choose a preset without (small)"
        )
    if usable < len(result):
        rest = "of the others there are none, or none that fit the caption: they are trained on as they are"
        err_console.print(f"{store.path}: pen strokes of {usable:,} of {len(result):,} expressions; {rest}")
    return result


def strokes_of(path: Path, ids: Iterable[str]) -> dict[str, list[Stroke]]:
    """The pen strokes of expressions in a zip of InkML files, by id; those without a file are left out."""
    store = ZipStore(path, root="")
    names = {composed(PurePosixPath(name).stem): name for name in store.sizes if name.endswith(".inkml")}
    return {id_: traces(store.read(names[id_], MAX_INK_BYTES)) for id_ in ids if id_ in names}


def evenly(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` items, evenly spaced: captions are sorted by length, so the first n would be the easiest."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def at_random(ids: Iterable[str], count: int, seed: int) -> list[str]:
    """A sample of at most `count`, fixed by the seed; sorted."""
    every = sorted(ids)
    return [every[i] for i in sorted(np.random.default_rng(seed).permutation(len(every))[:count].tolist())]


def sheet(id_: str) -> str:
    """The writer's sheet that an expression of CROHME is from: its id without the last number."""
    return re.sub(r"[-_]?(equation|em_|sub_)?\d+$", "", id_)


def hold_out(samples: list[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split into (training, held out) by groups of ids that differ only in their last number: one writer's sheet.

    Random groups are held out until they make up `share` of the set; groups larger than that are kept in training, and
    where fewer than ten are left, samples are held out one by one. Formulas that also occur in training are dropped
    from the held-out part, unless all do: CROHME's writers copied the same formulas, so a network knows 4 in 10 of them
    by heart, but only 2 in 100 of a test set's.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sheet(sample.id), []).append(sample)
    wanted = share * len(samples)
    sheets = [groups[name] for name in sorted(groups) if len(groups[name]) <= max(1, wanted)]
    if len(sheets) < 10:  # the ids do not tell writers apart, or there are few writers
        sheets = [[sample] for sample in samples]
    held_ids: set[str] = set()
    for index in np.random.default_rng((seed, len(samples))).permutation(len(sheets)):
        if len(held_ids) >= wanted:
            break
        held_ids |= {sample.id for sample in sheets[index]}
    training = [sample for sample in samples if sample.id not in held_ids]
    held, formulas = [sample for sample in samples if sample.id in held_ids], {sample.tokens for sample in training}
    return training, [sample for sample in held if sample.tokens not in formulas] or held
