"""A run folder: what it holds, how far the run is, and the names by which a store finds it again.

The names are made of what the folder says, not of where it lies, so that a copy of the folder is the same run.
"""

import csv
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError, conlist

from benchmarks.config import Config, first_fault, load
from benchmarks.errors import UserError
from benchmarks.files import only_one, write_atomically
from benchmarks.runs.contents import Environment, Epoch, Errors, Settings, State
from evaluation.scoring.score import Expression, Score

PARSERS = {
    ".yaml": yaml.safe_load,
    ".json": json.loads,
    ".jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    ".csv": lambda text: [{k: v or None for k, v in row.items()} for row in csv.DictReader(text.splitlines())],
}


class RunFolder:
    """A recipe at a preset and seed, in a folder of its own.

    What it holds is read once, when first asked for, and is empty where a later stage has yet to write it; how far the
    run is, is looked up each time. Reading raises UserError for what is damaged.
    """

    def __init__(self, path: Path, settings: Config | None = None):
        """`settings` are those of a run that may not have begun; else the folder's own."""
        self.path = path
        self._held: dict[str, Any] = {}  # what was read, by the name of the file
        if settings is not None:
            self.settings = settings

    @classmethod
    def under(cls, *roots: Path) -> list["RunFolder"]:
        """The run folders at or below `roots`, sorted within each, seed 10 after seed 9."""

        def natural(path: Path) -> list[str | int]:
            parts = re.split(r"([0-9]+)", path.as_posix())  # every second is a number
            return [int(part) if number % 2 else part for number, part in enumerate(parts)]

        return [cls(path.parent) for root in roots for path in sorted(root.rglob("config.yaml"), key=natural)]

    # ------------------------------------------------------------------------------------------------ what it holds

    def _read(self, name: str, held: Any) -> Any:
        """A file that holds a value of type `held`, a list for .jsonl and .csv.

        Raises UserError, which names the file and what is wrong in it, where it is missing or damaged.
        """
        path = self.path / name
        fix = "score this run again" if name.startswith("scores") else "restore it, or delete this run folder"
        try:
            if name not in self._held:
                plain = PARSERS[path.suffix](path.read_text(encoding="utf-8"))
                text = json.dumps(plain, default=str)  # by way of JSON: strict types, yet YAML's dates are text
                self._held[name] = _adapter(held).validate_json(text, strict=path.suffix != ".csv")
            return self._held[name]
        except FileNotFoundError:
            raise UserError(f"{path}: missing; {fix}") from None
        except ValidationError as error:
            words = first_fault(error, start=int(path.suffix in (".jsonl", ".csv")))  # lines count from 1
            raise UserError(f"{path}: damaged ({words}); {fix}") from None
        except (ValueError, TypeError, yaml.YAMLError, csv.Error):
            raise UserError(f"{path}: damaged or incomplete; {fix}") from None

    def write(self, name: str, content: Any) -> None:
        """A file that is there whole or not at all: plain data as .json or .jsonl, else text or bytes as they are."""
        if name.endswith(".json") and not isinstance(content, str):
            content = json.dumps(content, indent=1) + "\n"
        elif name.endswith(".jsonl"):
            content = "".join(json.dumps(entry) + "\n" for entry in content)
        write_atomically(self.path / name, content)
        self._held.pop(name, None)

    def sets(self, pattern: str) -> list[str]:
        """The test sets that there is a file of, such as scores/*.json."""
        return sorted(path.stem for path in self.path.glob(pattern))

    def expressions(self, split: str) -> dict[str, Expression]:
        """scores/<split>.csv by id."""
        return {row.id: row for row in self._read(f"scores/{split}.csv", conlist(Expression, min_length=1))}

    @property
    def config(self) -> Settings:
        """config.yaml as it stands there."""
        if not (self.path / "config.yaml").exists():
            raise UserError(f"{self.path}: not a run folder (no config.yaml in it)")
        return self._read("config.yaml", Settings)

    @cached_property
    def settings(self) -> Config:
        """The configuration, validated."""
        return load(self.path / "config.yaml")

    @property
    def history(self) -> list[Epoch]:
        """One entry per epoch."""
        return self._read("history.jsonl", list[Epoch]) if (self.path / "history.jsonl").exists() else []

    @property
    def environment(self) -> Environment:
        """Hardware, versions, revision."""
        return self._read("environment.json", Environment) if (self.path / "environment.json").exists() else {}

    @property
    def state(self) -> State | None:
        """The checkpoint's plain state, as it is now; a committed run has none."""
        self._held.pop("checkpoint.json", None)
        return self._read("checkpoint.json", State) if (self.path / "checkpoint.json").exists() else None

    @property
    def scores(self) -> dict[str, Score]:
        """scores/<set>.json by test set."""
        return {split: self._read(f"scores/{split}.json", Score) for split in self.sets("scores/*.json")}

    @property
    def errors(self) -> dict[str, Errors]:
        """errors/<set>.json by test set: what is confused how often."""
        return {split: self._read(f"errors/{split}.json", Errors) for split in self.sets("errors/*.json")}

    @property
    def exprate(self) -> float:
        """In percent, over all its test sets together; 0 where it has none."""
        scores = self.scores.values()
        return 100 * sum(score.exact for score in scores) / max(1, sum(score.n for score in scores))

    @property
    def weights(self) -> Path:
        """The file of the weights to recognize with."""
        return self.path / "best.safetensors"

    # ------------------------------------------------------------------------------------------------- how far it is

    @property
    def has_weights(self) -> bool:
        """Whether it can recognize."""
        return self.weights.exists()

    @property
    def finished(self) -> bool:
        """Whether its training is over; a committed run's is."""
        return (state := self.state) is None or state["finished"]

    @property
    def trained(self) -> bool:
        """Whether there is nothing left to train, here."""
        with suppress(UserError):
            return (state := self.state) is not None and state["finished"] and self.has_weights
        return False

    def recognized(self, split: str) -> bool:
        """Whether a test set was recognized with the present weights."""
        return self.trained and self._fresh(f"predictions/{split}.zip", "best.safetensors")

    def scored(self, split: str) -> bool:
        """Whether the present predictions of a test set are scored."""
        return self.recognized(split) and self._fresh(f"scores/{split}.json", f"predictions/{split}.zip")

    def _fresh(self, name: str, source: str) -> bool:
        path, source_path = self.path / name, self.path / source
        return path.exists() and path.stat().st_mtime_ns >= source_path.stat().st_mtime_ns

    def forget_training(self) -> None:
        """The next training starts afresh; weights, predictions, scores stay until newer ones replace them."""
        with only_one(self.path):
            self.write("history.jsonl", [])  # a training has begun, so that no other run's weights are taken
            for name in ("checkpoint.safetensors", "checkpoint.json"):
                (self.path / name).unlink(missing_ok=True)

    # ----------------------------------------------------------------------------------------------- what it is called

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return self.config["recipe"]

    @property
    def preset(self) -> str:
        """The preset's name."""
        return self.config["preset"]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config["seed"]

    @property
    def data(self) -> str:
        """What it was trained on: crohme, embedded or foreign."""
        return self.config["data"].get("name") or "unknown"

    @cached_property
    def digest(self) -> str:
        """The configuration's, by which the folder is called."""
        return self._digest(self.config)

    @cached_property
    def recipe_hash(self) -> str:
        """The same for all seeds of a row."""
        return self._digest(self.config | {"seed": 0})

    def _digest(self, config: Mapping[str, Any]) -> str:
        text = json.dumps({"schema_version": 1} | dict(config), sort_keys=True, separators=(",", ":"), default=str)
        try:
            return Config.model_validate_json(text).digest
        except ValueError:  # of another version of the suite
            return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def table_key(self) -> str:
        """Of the table that it belongs to: data and preset."""
        return store_key(f"table/{self.data}-{self.config['data'].get('digest', '')[:8]}/{self.preset}")

    @property
    def row_key(self) -> str:
        """Of the table's row: the recipe with all its settings."""
        return store_key(f"{self.table_key}/{self.recipe}-{self.recipe_hash}")

    @property
    def run_key(self) -> str:
        """Of the run itself."""
        return f"{self.row_key}/seed{self.seed}-{self.digest}"

    # ------------------------------------------------------------------------------------------------------------ time

    @property
    def started(self) -> int:
        """Milliseconds since 1970, as MLflow counts."""
        with suppress(UserError, ValueError):
            return int(datetime.fromisoformat(self.environment.get("started", "")).timestamp() * 1000)
        return int((self.path / "config.yaml").stat().st_mtime * 1000)

    @property
    def seconds(self) -> list[float]:
        """How long the training had taken at the end of each epoch, validation included."""
        return list(accumulate(entry["seconds"] + entry.get("val_seconds", 0) for entry in self.history))

    @property
    def core_minutes(self) -> float:
        """Minutes of training times CPU threads."""
        return self.seconds[-1] / 60 * self.environment.get("threads", 1) if self.history else 0.0


@cache
def _adapter(held: Any) -> TypeAdapter[Any]:
    return TypeAdapter(held)


def store_key(text: str) -> str:
    """Fit to stand in a search filter."""
    return re.sub(r"[^\w./ -]", "_", text)
