"""A run folder of any kind: how its files are read and written, and what is known of the training in it; and a language
model's, with language.yaml, environment.json, history.jsonl, checkpoint, weights, scores.json.

A file that does not match the type given for it is damaged.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic takes no other

from hmerbench.benchmarks.config import RunSettings
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import folders_with, write_atomically
from hmerbench.benchmarks.language_settings import SCHEMA, LanguageSettings
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.strict_files import flat, read_plain, read_yaml, validate
from hmerbench.models.files import first_fault, one_line

Settings = TypeVar("Settings", bound=RunSettings)


@with_config(ConfigDict(extra="allow"))
class Open(TypedDict):
    """A TypedDict that keeps unknown keys."""


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


class Run(Generic[Settings]):
    """A recipe at a seed, in a folder of its own: a recognizer's (RunFolder) or a language model's (LanguageRun).

    Contents are read when they are asked for, again only if their file has changed, and are empty if a later stage has
    yet to write them. Reading raises UserError for a damaged file.
    """

    FILE: ClassVar[str]  # that of its settings
    PARTS: ClassVar[tuple[str, ...]]  # the files and folders that are packed
    PROGRESS: ClassVar[tuple[str, ...]]  # the files without which its training is not done
    EPOCH: ClassVar[Any]  # a line of history.jsonl
    LOSS: ClassVar[str]  # what in such a line tells one training from another of the same settings
    LOAD: ClassVar[Callable[[Path], Any]]  # reads the settings
    SCHEMA: ClassVar[int]  # the version of the settings with which it can be trained

    def __init__(self, path: Path, settings: Settings | None = None):
        """`settings` default to those in the folder; a run that has not begun needs them."""
        self.path = path
        self._read_before: dict[str, tuple[object, Any]] = {}  # by file name: its state then, and the contents
        if settings is not None:
            self.settings = settings

    @classmethod
    def under(cls, *roots: Path) -> list[Self]:
        """The run folders at or below `roots`, sorted within each, seed 10 after seed 9."""
        return [cls(folder) for folder in folders_with(cls.FILE, *roots)]

    def _read(self, name: str, type_: Any) -> Any:
        """Read a file as a value of `type_`, a list for .jsonl and .csv.

        Raises UserError if the file is missing or damaged; the message names the file and the fault.
        """
        path = self.path / name
        scored = name.startswith(("scores/", "errors/"))
        fix = "score this run again" if scored else "restore it, or delete this run folder"
        try:
            if self._read_before.get(name, (None,))[0] != (state := state_of(path)):
                content, adapter = read_plain(path), _adapter(type_)
                if path.suffix == ".csv":  # whose cells are text
                    found = adapter.validate_python(content, strict=False)
                else:  # through JSON: strict types
                    found = adapter.validate_json(json.dumps(content), strict=True)
                self._read_before[name] = state, found
            return self._read_before[name][1]
        except FileNotFoundError:
            raise UserError(f"{path}: missing; {fix}") from None
        except ValidationError as error:
            fault = first_fault(error, start=int(path.suffix in (".jsonl", ".csv")))  # lines count from 1
            raise UserError(f"{path}: damaged ({fault}); {fix}") from None
        except ValueError as error:
            raise UserError(f"{path}: damaged or incomplete ({one_line(error)}); {fix}") from None

    def write(self, name: str, content: Any) -> None:
        """Write a file atomically: plain data as .json or .jsonl, text and bytes as they are."""
        if name.endswith(".jsonl"):
            content = "".join(json.dumps(row) + "\n" for row in content)
        elif not isinstance(content, str | bytes):
            content = json.dumps(content, indent=1) + "\n"
        write_atomically(self.path / name, content)

    @cached_property
    def settings(self) -> Settings:
        """Those in `FILE`. Raises UserError if it is missing or breaks the schema."""
        return type(self).LOAD(self.path / self.FILE)

    @cached_property
    def stored(self) -> dict[str, Any]:
        """Its file as it is: an older one lacks newer settings; adding them would change its digest."""
        return read_yaml(self.path / self.FILE)

    def refuse_other(self) -> None:
        """Raise UserError if the folder holds a run of other settings; the message names every key that differs."""
        path = self.path / self.FILE
        if path.exists() and (there := type(self).LOAD(path)) != self.settings:
            old, new = (flat(settings.model_dump(mode="json")) for settings in (there, self.settings))
            values = {name: (old.get(name, "absent"), new.get(name, "absent")) for name in new | old}
            changes = ", ".join(f"{name} {a} instead of {b}" for name, (a, b) in values.items() if a != b)
            raise UserError(
                f"{path}: the folder holds a run of other settings ({changes}); choose another, or delete it"
            )

    def refuse_training(self) -> None:
        """Raise UserError if the folder holds a run of other settings, or of an older version of them."""
        if (version := self.settings.schema_version) != self.SCHEMA:
            raise UserError(
                f"{self.path}: the run has version {version} of the settings, and this suite has {self.SCHEMA}: its "
                "results stay readable, but it cannot be trained further; give its recipe to train it again"
            )
        self.refuse_other()

    @property
    def recipe(self) -> str:
        """Name of what is trained: a shipped recipe, or the stem of a YAML file."""
        return self.settings.recipe

    @property
    def seed(self) -> int:
        """From 0 to 2^64 - 1; all that is random is drawn from it."""
        return self.settings.seed

    @property
    def title(self) -> str:
        """RECIPE, seed N."""
        return f"{self.recipe}, seed {self.seed}"

    @property
    def history(self) -> list[Any]:
        """An `EPOCH` for each that is done."""
        return self._read("history.jsonl", list[self.EPOCH]) if (self.path / "history.jsonl").exists() else []

    @property
    def environment(self) -> Environment:
        """Hardware, versions and git revision of the training."""
        return self._read("environment.json", Environment) if (self.path / "environment.json").exists() else {}

    @property
    def started(self) -> int:
        """Start of the training in milliseconds since 1970, as in MLflow."""
        with suppress(UserError, ValueError):
            return int(datetime.fromisoformat(self.environment.get("started", "")).timestamp() * 1000)
        return int((self.path / self.FILE).stat().st_mtime * 1000)

    @property
    def seconds(self) -> list[float]:
        """Training time up to the end of each epoch, validation included."""
        validated = (entry.get("val_seconds", entry.get("valid_seconds", 0)) for entry in self.history)
        return list(accumulate(entry["seconds"] + more for entry, more in zip(self.history, validated, strict=True)))

    @staticmethod
    def device(place: Mapping[str, Any]) -> str:
        return place.get("device", "unknown")

    @property
    def hardware(self) -> str:
        return ", then ".join(dict.fromkeys(map(self.device, self.environments)))

    @property
    def environments(self) -> list[Mapping[str, Any]]:
        """Where training began, and wherever else it was resumed."""
        return [self.environment, *self.environment.get("resumed", [])]


_adapter = cache(TypeAdapter)


def state_of(path: Path) -> tuple[int, int, int]:
    """What changes with the contents of a file. Raises FileNotFoundError."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def store_key(text: str) -> str:
    """Replace the characters that may not occur in a search filter of MLflow, nor in the name of a metric or tag."""
    return re.sub(r"[^\w./ -]", "_", text)


# ------------------------------------------------------------------------------------------------- language models


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
    SCHEMA = SCHEMA
    LOAD = staticmethod(lambda path: validate(LanguageSettings, read_yaml(path), str(path)))
    PARTS = (FILE, "environment.json", "history.jsonl", "scores.json")
    PROGRESS = ("scores.json", "checkpoint.safetensors")
    preset, trial = "", None  # language models have neither

    @staticmethod
    def device(place: Mapping[str, Any]) -> str:
        """CPUs with their threads, as other work shared them."""
        name, threads = place.get("device", "unknown"), place.get("threads", 1)
        return name if place.get("gpu") else f"{name}, {counted(threads, 'thread')}"

    @staticmethod
    def epoch_text(epoch: Mapping[str, Any]) -> str:
        found = f"perplexity {epoch['train_perplexity']:.2f}, validation {epoch['valid_perplexity']:.2f}"
        return f"{found}, {epoch['words_per_s']:.0f} words/s"

    @property
    def scores(self) -> dict[str, Any]:
        """`Scores`; empty before the test."""
        return self._read("scores.json", Scores) if (self.path / "scores.json").exists() else {}

    @property
    def finished(self) -> bool:
        return bool(self.scores)

    @property
    def trained_here(self) -> bool:
        return self.finished and (self.path / "weights.safetensors").exists()

    def scored(self, split: str) -> bool:
        """Whether it is tested, which ends its training."""
        return self.trained_here

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
