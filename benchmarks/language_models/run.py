"""A language model's run folder: language.yaml, environment.json, history.jsonl, checkpoint, weights, scores.json."""

from collections.abc import Mapping
from typing import Any

from hmerbench.benchmarks.language_models.settings import FILE, LanguageSettings, load
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.runs.folder import Run
from hmerbench.benchmarks.runs.schemas import Open


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


class LanguageRun(Run[LanguageSettings]):
    """A recipe on a corpus at a seed."""

    FILE, EPOCH, LOAD = FILE, Epoch, staticmethod(load)

    @staticmethod
    def device(place: Mapping[str, Any]) -> str:
        """CPUs with their threads, as other work shared them."""
        name, threads = place.get("device", "unknown"), place.get("threads", 1)
        return name if place.get("gpu") else f"{name}, {counted(threads, 'thread')}"

    @property
    def scores(self) -> dict[str, Any]:
        """`test_perplexity` and what it was measured on."""
        return self._read("scores.json", Scores) if (self.path / "scores.json").exists() else {}

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
