"""Types of the files in a run folder: a file that does not match is damaged.

The types of scores/ are Score and Expression in hmerbench.evaluation.scoring.
"""

from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic takes no other


@with_config(ConfigDict(extra="allow"))
class Open(TypedDict):
    """A TypedDict that keeps unknown keys."""


class Epoch(Open):
    """A line of history.jsonl. `loss`: mean over the micro-batches; `val_token_exprate`: token match in percent, if the
    epoch was validated."""

    epoch: int
    loss: float
    step: int
    lr: float
    seconds: float
    images_per_s: float
    val_token_exprate: NotRequired[float]
    val_seconds: NotRequired[float]


class Environment(Open, total=False):
    """environment.json: where and when training began, and other environments in which it was `resumed`. `trained_in`:
    the folder from which weights were reused; `start`: the weights that training began with, if from others."""

    started: str
    device: str
    threads: int
    bf16_unit: str | None
    versions: dict[str, str]
    revision: str | None
    trained_in: str
    start: dict[str, str]
    resumed: list[dict[str, Any]]


class State(Open):
    """checkpoint.json: the progress of training."""

    epoch: int
    step: NotRequired[int]
    best_epoch: NotRequired[int]
    finished: bool


class Confusion(Open):
    """A label read as another: how often, how often at the same position, and in how many expressions."""

    truth: str
    prediction: str
    count: int
    aligned: int
    expressions: int


class Structure(Open):
    """The n expressions that contain a structure, and how many of them are correct."""

    structure: str
    n: int
    exact: int


class Length(Open):
    """The n expressions in a bucket of lengths, and how many of them are correct."""

    bucket: str
    n: int
    exact: int


class Errors(Open):
    """errors/<set>.json: confusions and their counts."""

    n: int
    symbols: list[Confusion]
    relations: list[Confusion]
    structure: list[Structure]
    length: list[Length]
