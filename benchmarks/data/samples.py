"""An expression with its image, and how a few of many are chosen."""

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
