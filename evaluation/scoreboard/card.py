"""A card says what a system is, where its predictions are and what its authors report."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, AnyHttpUrl, Field, StringConstraints, model_validator

from hmerbench.evaluation import InputError, readable
from hmerbench.evaluation.datasets import SHA256, Line, Strict, crohme, validated
from hmerbench.evaluation.stores import read_text
from hmerbench.evaluation.strict import yaml_of

CARDS = Path(__file__).resolve().parent  # behind the link in hmerbench/
ROOT = CARDS.parents[1]  # of the repository: predictions of our own runs are committed there
YEARS = crohme().tests

Year = Annotated[str, StringConstraints(pattern=rf"^({'|'.join(map(re.escape, YEARS))})$")]
SYSTEM = re.compile(r"[a-z0-9][a-z0-9.-]*")
SYSTEM_RULE = "it may have only lower-case letters, digits, dots and hyphens, and must begin with a letter or digit"


def _within(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\\" in path:
        raise ValueError("leads out of the folder of systems")
    return path


class PredictionFile(Strict):
    """One test set's predictions: a path under the folder of all systems, or under the repository."""

    path: Annotated[Line, AfterValidator(_within)]
    sha256: SHA256


class Reported(Strict):
    """A rate in percent for each test set, as somebody reports it, by which metric and where."""

    metric: Line
    source: Line
    rates: dict[Year, Annotated[float, Field(ge=0, le=100)]]


class Card(Strict):
    """What is known of a system."""

    name: Line
    paper: Line
    year: Annotated[int, Field(ge=1990, le=2100)]
    url: AnyHttpUrl | None = None  # of the predictions; ours are committed here
    commit: Line = "no repository"  # of the repository there, or why there is none
    license: Line  # of the predictions, or "none stated"
    training: Literal["crohme", "more", "test labels"]  # systems are ranked among those of the same kind
    trained_on: Line
    parameters: Line
    status: Literal["recounted", "trained here", "external", "reported"] = "recounted"  # where its numbers come from
    selection: Line = "not stated"  # how the epoch was selected
    convention: Line = "not stated"  # whether it writes \\limits
    tokenize: bool = False  # the predictions are raw LaTeX
    wrapped: bool = False  # of some, more is removed around the formula than the official scorer removes
    files: dict[Year, PredictionFile] = Field(default={})
    reported: list[Reported] = Field(default=[])
    note: str = ""

    @model_validator(mode="after")
    def _has_numbers(self) -> "Card":
        if not (self.reported if self.status == "reported" else self.files):
            raise ValueError(
                "files: Dictionary should have at least 1 item; without, it needs status: reported and numbers"
            )
        return self


class System(NamedTuple):
    """A card with its key, the name of its file."""

    key: str
    card: Card

    def found(self, systems: Path | None) -> dict[str, Path]:
        """The predictions that are at hand, by year, not verified."""
        folders = [folder for folder in (ROOT, systems) if folder]  # the latter wins
        places = ((year, folder / file.path) for year, file in self.card.files.items() for folder in folders)
        return {year: path for year, path in places if path.is_file()}

    def files(self, systems: Path | None) -> Iterator[tuple[str, Path]]:
        """The predictions of each year, their checksums verified. Raises InputError for a missing or another file."""
        found = self.found(systems)
        for year, file in sorted(self.card.files.items()):
            if (path := found.get(year)) is None:
                source = f"{self.card.url} ({self.card.commit})" if self.card.url else "a checkout of this suite"
                fix = f"fetch it from {source} into the folder of systems"
                raise InputError(f"{self.key}: {file.path} is not here; {fix}")
            with readable(path):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != file.sha256:
                given = f"{digest[:12]}…, not the card's {file.sha256[:12]}…"
                raise InputError(f"{path}: its checksum is {given}; fetch the file that the card names")
            yield year, path

    def complete(self, systems: Path | None) -> bool:
        return self.found(systems).keys() == self.card.files.keys()


def read_card(path: Path) -> System:
    """The system of a card. Raises InputError with the first thing that is wrong in it."""
    if not SYSTEM.fullmatch(path.stem):
        raise InputError(f"{path}: give it another name; {SYSTEM_RULE}")
    return System(path.stem, validated(Card, yaml_of(read_text(path), path), path))


def read_cards(folder: Path = CARDS) -> list[System]:
    """All systems, by key. Raises InputError, also for a folder without any."""
    if not (paths := sorted(folder.glob("*.yaml"))):
        raise InputError(f"{folder}: the folder holds no cards (ID.yaml)")
    return [read_card(path) for path in paths]
