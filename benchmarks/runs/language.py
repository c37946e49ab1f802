"""A language model's run folder: language.yaml, environment.json, history.jsonl, checkpoint, weights, scores.json."""

from collections.abc import Mapping
from typing import Any

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_settings import LanguageSettings
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.runs.run import Open, Run, store_key
from hmerbench.benchmarks.strict_files import read_yaml
from hmerbench.benchmarks.validation import validate


class Epoch(Open):
    """A line of history.jsonl; seconds of training and of validation."""

    epoch: int
    seconds: float
    valid_seconds: float


class Scores(Open):
    """scores.json: perplexities per word of the last epoch's weights, on so many words of the test set."""

    test_perplexity: float
    test_words: int
    valid_perplexity: float


class LanguageRun(Run[LanguageSettings]):
    """A recipe on a corpus at a seed."""

    FILE, EPOCH, LOSS = "language.yaml", Epoch, "train_perplexity"
    LOAD = staticmethod(lambda path: validate(LanguageSettings, read_yaml(path), str(path)))
    PARTS = (FILE, "environment.json", "history.jsonl", "scores.json")
    PROGRESS = ("scores.json", "checkpoint.safetensors")
    preset = ""  # language models have none

    @staticmethod
    def device(place: Mapping[str, Any]) -> str:
        """CPUs with their threads, as other work shared them."""
        name, threads = place.get("device", "unknown"), place.get("threads", 1)
        return name if place.get("gpu") else f"{name}, {counted(threads, 'thread')}"

    @staticmethod
    def epoch_text(epoch: Mapping[str, Any]) -> str:
        found = f"perplexity {epoch['train_perplexity']:.2f}, validation {epoch['valid_perplexity']:.2f}"
        return f"{found}, {epoch['words_per_s']:.0f} words/s"

    def refuse_other(self) -> None:
        """Raise UserError if the folder holds a run of other settings."""
        if (self.path / self.FILE).exists() and (there := self.LOAD(self.path / self.FILE)) != self.settings:
            fix = f"it holds a run of other settings ({there.run_name}); choose another folder"
            raise UserError(f"{self.path}: {fix}")

    @property
    def scores(self) -> dict[str, Any]:
        """`Scores`; empty before the test."""
        return self._read("scores.json", Scores) if (self.path / "scores.json").exists() else {}

    @property
    def finished(self) -> bool:
        return bool(self.scores)

    @property
    def trained(self) -> bool:
        return self.finished and (self.path / "weights.safetensors").exists()

    def scored(self, split: str) -> bool:
        """Whether it is tested, which ends its training."""
        return self.trained

    @property
    def status(self) -> tuple[str, str]:
        if self.finished:
            return "tested", f"perplexity {self.scores['test_perplexity']:.2f}"
        if not (done := len(self.history)):
            return "training" if self.environment else "untrained", ""
        return "training", f"{done} of {self.settings.training.epochs} epochs"

    @property
    def unfit(self) -> str:
        """Why it cannot be packed: it is on another text than the papers', or not finished."""
        if self.data != "ptb":
            return f"it was trained on {self.data}; only runs on the Penn Treebank can be packed"
        return "" if self.finished else "it is not trained and tested yet; `hmerbench reproduce-lm` continues it"

    @property
    def command(self) -> str:
        return f"hmerbench reproduce-lm --recipes {self.recipe} --seeds {self.seed}"

    @property
    def data(self) -> str:
        """Name of the corpus: ptb or captions."""
        return self.settings.text.name

    @property
    def digest(self) -> str:
        """Digest of the settings, which is part of the folder's name."""
        return self.settings.digest

    @property
    def run_key(self) -> str:
        """RECIPE/CORPUS-seedN-DIGEST, apart from recognizers."""
        return store_key(f"language/{self.settings.run_name}")
