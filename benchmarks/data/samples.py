"""An expression with its image; how a few of many are chosen, and some are held out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """One expression: its id, its tokens, its image (H, W) uint8, white ink on black."""

    id: str
    tokens: tuple[str, ...]
    image: np.ndarray


def evenly(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` of the items, evenly spaced: captions are sorted by length, the first n would be the easiest."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def split_heldout(samples: list[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """(training, held out): whole groups of expressions whose ids differ only in their last number - one writer's
    sheet, where ids tell - are set aside until `share` of the set is reached."""
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
    return [s for s in samples if s.id not in out], [s for s in samples if s.id in out]
