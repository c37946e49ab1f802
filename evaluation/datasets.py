"""What is known of published data sets: a YAML file each in benchmarks/datasets/.

The names of test sets, their sizes and their digests are written there alone, so that a test set more is a few lines of
its set's file. An archive that is none of these sets is somebody's own.
"""

from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from hmerbench.evaluation import InputError
from hmerbench.evaluation.strict import yaml_of

FOLDER = Path(__file__).parent.parent / "benchmarks" / "datasets"
TRAIN = "train"

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", strip_whitespace=True)]
MD5 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
SHA256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Described = TypeVar("Described", bound=BaseModel)


class Strict(BaseModel):
    """What a YAML file describes, or a part of that."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Split(Strict):
    """The training set, or a test set."""

    n: int = Field(gt=0)  # expressions
    captions: MD5  # of caption.txt
    writers: int | None = None  # None where not all are known
    limits: Literal["as the captions", "Sub and Sup", "Below and Above"] = "as the captions"
    note: str = ""


class Sizes(Strict):
    """The largest image, in pixels, and the longest caption that a set's authors train on and read."""

    max_area: int = Field(gt=0)
    max_tokens: int = Field(gt=0)


class Dataset(Strict):
    """A published set."""

    name: str  # that of its file
    title: Line
    description: Line
    creators: list[Line]
    published: date
    url: AnyHttpUrl
    license: Line
    cite: Line
    splits: dict[str, Split]
    vocabulary: int = Field(gt=0)  # symbols, special ones aside
    sizes: Sizes | None = None  # None where its authors tell none: CROHME's are taken
    symlg: bool = False  # whether the ground truth comes with it
    git_blob: str = ""  # of the file at `url`
    strokes: AnyHttpUrl | None = None
    license_url: AnyHttpUrl | None = None
    primary: str = ""  # the test set that its tables show first
    digests: dict[SHA256, list[str]] = {}  # of an archive with these splits; without any, captions alone tell the set
    sheets: dict[str, int] = {}  # beginning of ids that are numbered through -> how many of them are one writer's

    @model_validator(mode="after")
    def _names_its_splits(self) -> "Dataset":
        named = {split for splits in self.digests.values() for split in splits} | {*filter(None, [self.primary])}
        if unknown := sorted(named - self.splits.keys()):
            raise ValueError(f"splits: lacks {', '.join(unknown)}, which digests or primary name")
        return self

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(split for split in self.splits if split != TRAIN)

    def has(self, split: str, captions_md5: str) -> bool | None:
        """Whether these are the captions of a split of this set; None if it has no such split."""
        return self.splits[split].captions == captions_md5 if split in self.splits else None

    def n(self, *splits: str) -> int:
        return sum(self.splits[split].n for split in splits)

    def whose_limits(self, are: str) -> str:
        """The test sets whose ground truth has limits so, in words."""
        *others, last = [split for split in self.tests if self.splits[split].limits == are] or [""]
        return f"{', '.join(others)} and {last}" if others else last

    @property
    def editions(self) -> dict[str, list[str]]:
        """The splits of archives that are this set, by digest; "" where captions alone tell it."""
        return self.digests or {"": list(self.splits)}


@cache
def datasets() -> dict[str, Dataset]:
    """All published sets, by name. Raises InputError for a file that does not describe one."""
    read = {path: yaml_of(path.read_text(encoding="utf-8"), path) for path in sorted(FOLDER.glob("*.yaml"))}
    return {path.stem: validated(Dataset, keys | {"name": path.stem}, path) for path, keys in read.items()}


def validated(kind: type[Described], keys: object, path: Path) -> Described:
    """What the keys of a file, or of one to be written, describe. Raises InputError with the first that is wrong."""
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or f"the {kind.__name__.lower()}"
        raise InputError(f"{path}: {where}: {first['msg']}") from None


def crohme() -> Dataset:
    """CROHME, of which the tables under results/ are."""
    return datasets()["crohme"]


def sizes_of(known: Dataset | None = None) -> Sizes:
    """The sizes of a set, or CROHME's. Raises InputError if its file has none, either."""
    if (sizes := (known and known.sizes) or crohme().sizes) is None:
        raise InputError(f"{FOLDER / 'crohme.yaml'}: sizes: lacks max_area and max_tokens, which settings begin with")
    return sizes


def symlg_published(split: str, captions_md5: str) -> bool:
    """Whether these captions are a published set's that has symLG, which differs from the captions' for a few."""
    return any(known.symlg and known.has(split, captions_md5) for known in datasets().values())
