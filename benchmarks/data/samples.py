"""An expression with its image; how a few of many are chosen, and some are held out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

import numpy as np
from rich.progress import track

from benchmarks.data.ink import MAX_INK_BYTES, Canvas, Ink, symbols_of
from benchmarks.data.store import ZipStore
from benchmarks.errors import UserError
from benchmarks.printing import aside

Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """One expression: its id, its tokens, its image (H, W) uint8, white ink on black, its pen strokes where known."""

    id: str
    tokens: tuple[str, ...]
    image: np.ndarray
    ink: Ink | None = None


def with_ink(samples: Sequence[Sample], store: ZipStore) -> list[Sample]:
    """The samples with their pen strokes, which are sought by id among the InkML files of `store`.

    Some stay without: see `symbols_of`. Raises UserError where all do.
    """
    names = {PurePosixPath(name).stem: name for name in store.sizes if name.endswith(".inkml")}
    found = list(samples)
    for number, sample in enumerate(track(samples, "  reading pen strokes", console=aside, transient=True)):
        text = store.read(names[sample.id], MAX_INK_BYTES) if sample.id in names else b""
        if symbols := symbols_of(text, sample.tokens):
            ink = Ink(symbols, Canvas.under(symbols.values(), *sample.image.shape))
            found[number] = replace(sample, ink=ink)
    if not any(sample.ink for sample in found):
        raise UserError(f"{store.path}: holds no segmented pen strokes (ID.inkml) of these training expressions")
    return found


def evenly(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` of the items, evenly spaced: captions are sorted by length, the first n would be the easiest."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def split_heldout(samples: list[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(training, held out): whole groups of expressions whose ids differ only in their last number - one writer's
    sheet, where ids tell - are set aside until `share` of the set is reached. Of these, formulas that are trained on,
    too, are left out, unless all are: CROHME's writers wrote the same ones, and a network knows 4 in 10 of them by
    heart, of a test set's 2 in 100."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(re.sub(r"[-_]?(equation|em_|sub_)?\d+$", "", sample.id), []).append(sample)
    wanted = share * len(samples)
    sheets = [groups[name] for name in sorted(groups) if len(groups[name]) <= max(1, wanted)]
    if len(sheets) < 10:  # ids that tell nothing
        sheets = [[sample] for sample in samples]
    out: set[str] = set()
    for index in np.random.default_rng((seed, len(samples))).permutation(len(sheets)):
        if len(out) >= wanted:
            break
        out |= {sample.id for sample in sheets[index]}
    training = [sample for sample in samples if sample.id not in out]
    held, formulas = [sample for sample in samples if sample.id in out], {sample.tokens for sample in training}
    return training, [sample for sample in held if sample.tokens not in formulas] or held
