"""Who wrote which image, as far as the ids tell.

CROHME's images come in sheets: some 5 to 30 expressions in one hand. What is right on one of them says something of the
others, so that 3,332 images bear less than 3,332 independent ones. In 2016 and 2019 an id is its writer's name and a
number (`UN_101_em_7`), and so it is for most of 2014. The ids of one source there, `RIT_2014_7`, are numbered through;
its writers filled five expressions each, mostly in a row, so every five numbers stand for a sheet.
`tests/evaluation/scoring/test_writers.py` compares this with the writers named in CROHME's InkML files.
"""

import re
from collections.abc import Sequence

LEAST = 10  # fewer groups say nothing of how writers differ; the ids may not name any
NUMBER = re.compile(r"(?:_em)?[_-]?(\d+)[a-z]?$")
NUMBERED_THROUGH, SHEET = "RIT_2014_", 5


def writer(id_: str) -> str:
    """The writer, or the sheet, of an image: its id without the number at the end; of ids without one, the whole."""
    if id_.startswith(NUMBERED_THROUGH) and id_[len(NUMBERED_THROUGH) :].isdecimal():
        return f"{NUMBERED_THROUGH}{(int(id_[len(NUMBERED_THROUGH) :]) - 1) // SHEET}"
    return NUMBER.sub("", id_) or id_


def writers(ids: Sequence[str]) -> tuple[list[str], str]:
    """The group of every image, and what the groups are: "writers", or "images", each its own group, where the ids tell
    fewer than LEAST writers apart."""
    named = [writer(id_) for id_ in ids]
    if LEAST <= len({*named}) < len(named):
        return named, "writers"
    return list(ids), "images"
