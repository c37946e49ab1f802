"""A language model's run folder: language.yaml, environment.json, history.jsonl, checkpoint, weights, scores.json."""

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import content_of, folders_with, write_atomically
from hmerbench.benchmarks.language_models.settings import FILE, LanguageSettings, load
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.runs.schemas import Environment, Open
from hmerbench.benchmarks.strict_files import read_plain
from hmerbench.models.errors import one_line


class Epoch(Open):
    """A line of history.jsonl."""

    epoch: int
    seconds: float
    valid_seconds: float


class Scores(Open):
    """scores.json."""

    test_perplexity: float
    test_words: int
    valid_perplexity: float


TYPES: dict[str, TypeAdapter[Any]] = {
    "history.jsonl": TypeAdapter(list[Epoch]),
    "environment.json": TypeAdapter(Environment),
    "scores.json": TypeAdapter(Scores),
}


class LanguageRun:
    """A recipe on a corpus at a seed, in a folder of its own; what a later stage writes is empty before."""

    def __init__(self, path: Path, settings: LanguageSettings | None = None):
        """`settings` default to those in the folder; a run that has not begun needs them."""
        self.path = path
        if settings is not None:
            self.settings = settings

    @classmethod
    def under(cls, *roots: Path) -> list["LanguageRun"]:
        """The run folders at or below `roots`, sorted within each, seed 10 after seed 9."""
        return [cls(folder) for folder in folders_with(FILE, *roots)]

    @cached_property
    def settings(self) -> LanguageSettings:
        """The settings, validated."""
        return load(self.path / FILE)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One entry per epoch."""
        return self._read("history.jsonl") or []

    @property
    def seconds(self) -> list[float]:
        """Training time up to the end of each epoch, validation included."""
        return list(accumulate(entry["seconds"] + entry["valid_seconds"] for entry in self.history))

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, versions and git revision of the training."""
        return self._read("environment.json") or {}

    @property
    def hardware(self) -> str:
        """The devices that trained the run, in order, CPUs with their threads."""
        return ", then ".join(dict.fromkeys(map(_device, [self.environment, *self.environment.get("resumed", ())])))

    @property
    def scores(self) -> dict[str, Any]:
        """`test_perplexity` and what it was measured on."""
        return self._read("scores.json") or {}

    @property
    def finished(self) -> bool:
        """Whether training and test are over."""
        return bool(self.scores)

    @property
    def status(self) -> str:
        """How far the run is, in words."""
        if self.finished:
            return f"tested, perplexity {self.scores['test_perplexity']:.2f}"
        if not (done := len(self.history)):
            return "training" if self.environment else "untrained"
        return f"training, {done} of {self.settings.training.epochs} epochs"

    def write(self, name: str, content: Any) -> None:
        """Write a file atomically: plain data as .json or .jsonl, text and bytes as they are."""
        write_atomically(self.path / name, content_of(name, content))

    def _read(self, name: str) -> Any:
        path = self.path / name
        try:
            return TYPES[name].validate_python(read_plain(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(f"{path}: damaged ({one_line(error)}); restore it, or delete this run folder") from None


def _device(environment: Mapping[str, Any]) -> str:
    name, threads = environment.get("device", "unknown"), environment.get("threads", 1)
    return name if environment.get("gpu") else f"{name}, {counted(threads, 'thread')}"
