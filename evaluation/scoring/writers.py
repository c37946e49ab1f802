"""Who wrote which image, as far as the ids tell.

CROHME's images come in sheets: some 5 to 30 expressions in one hand. What is right on one of them says something of the
others, so that its images bear less than as many independent ones. An id is its writer's name and a number
(`UN_101_em_7`), but for sources that are numbered through, whose writers filled a few expressions each, mostly in a
row: every so many numbers stand for a sheet (`sheets` in benchmarks/datasets/).
`tests/evaluation/scoring/test_writers.py` compares this with the writers named in CROHME's InkML files.
"""

import re
from collections.abc import Sequence
from functools import cache

from hmerbench.evaluation.datasets import datasets

LEAST = 10  # fewer groups say nothing of how writers differ; the ids may not name any
NUMBER = re.compile(r"(?:_em)?[_-]?(\d+)[a-z]?$")


def writer(id_: str) -> str:
    """The writer, or the sheet, of an image: its id without the number at the end; of ids without one, the whole."""
    for beginning, sheet in _sheets().items():
        if id_.startswith(beginning) and (number := id_.removeprefix(beginning)).isdecimal():
            return f"{beginning}{(int(number) - 1) // sheet}"
    return NUMBER.sub("", id_) or id_


@cache
def _sheets() -> dict[str, int]:
    return {beginning: sheet for known in datasets().values() for beginning, sheet in known.sheets.items()}


def writers(ids: Sequence[str]) -> tuple[list[str], str]:
    """The group of every image, and what the groups are: "writers", or "images", each its own group, where the ids tell
    fewer than LEAST writers apart."""
    named = [writer(id_) for id_ in ids]
    if LEAST <= len({*named}) < len(named):
        return named, "writers"
    return list(ids), "images"
