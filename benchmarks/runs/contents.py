"""What the files of a run hold, as types: a file that holds something else is damaged.

A score is evaluation.scoring.score.Score. Every type but that may hold more than it names.
"""

from typing import (
    Any,
    NotRequired,  # before Python 3.12, pydantic takes no other
)

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

MORE = with_config(ConfigDict(extra="allow"))


@MORE
class Data(TypedDict, total=False):
    """The section `data` of config.yaml."""

    name: str
    digest: str
    sub_expressions: int
    substitution: float


@MORE
class Training(TypedDict, total=False):
    """The section `training` of config.yaml."""

    epochs: int


@MORE
class Search(TypedDict, total=False):
    """The section `search` of config.yaml."""

    limit: int | None


@MORE
class Settings(TypedDict):
    """config.yaml, as far as it is read without being validated: it may be of another version of the suite."""

    recipe: str
    preset: str
    seed: int
    data: Data
    select: NotRequired[str]
    model: NotRequired[dict[str, Any]]
    training: NotRequired[Training]
    search: NotRequired[Search]


@MORE
class Epoch(TypedDict):
    """A line of history.jsonl. `loss`: mean over the micro-batches; `val_token_exprate`: token match in percent, where
    the epoch was validated."""

    epoch: int
    loss: float
    step: int
    lr: float
    seconds: float
    images_per_s: float
    val_token_exprate: NotRequired[float]
    val_seconds: NotRequired[float]


@MORE
class Environment(TypedDict):
    """environment.json: where and when the training began. `trained_in`: the folder whose training was taken over."""

    started: str
    device: str
    threads: int
    versions: dict[str, str]
    revision: str | None
    trained_in: NotRequired[str]


@MORE
class State(TypedDict):
    """checkpoint.json: how far the training is."""

    epoch: int
    step: NotRequired[int]
    best_epoch: NotRequired[int]
    finished: bool


@MORE
class Confusion(TypedDict):
    """A label read as another: how often, how often at its own place, in how many expressions."""

    truth: str
    prediction: str
    count: int
    aligned: int
    expressions: int


@MORE
class Group(TypedDict):
    """Expressions of a length or structure, and how many of them are right."""

    bucket: NotRequired[str]
    structure: NotRequired[str]
    n: int
    exact: int


@MORE
class Errors(TypedDict):
    """errors/<set>.json: what is confused how often."""

    n: int
    symbols: list[Confusion]
    relations: list[Confusion]
    structure: list[Group]
    length: list[Group]
