"""A run folder as plain data, and the names by which a store finds its run again: of what the folder says, not of where
it lies, so that a copy of the folder is the same run. Needs no MLflow."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.errors import UserError
from benchmarks.files import only_one

if TYPE_CHECKING:
    from benchmarks.config import Config


@dataclass(frozen=True)
class RunFolder:
    """A run folder as plain data; what a later stage has yet to write is left out."""

    path: Path
    config: dict[str, Any]
    history: list[dict[str, Any]]
    environment: dict[str, Any]
    state: dict[str, Any] | None  # of the checkpoint; a committed run has none and is finished
    scores: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "RunFolder":
        """Raises UserError for what is not a run folder or is damaged."""
        try:
            config = yaml.safe_load((folder / "config.yaml").read_text())
            _ = [config[key] for key in ("recipe", "preset", "seed")], config["data"]["name"], config["data"]["digest"]
        except (OSError, UnicodeDecodeError, TypeError, KeyError, yaml.YAMLError):
            raise UserError(f"{folder}: not a run folder (no readable config.yaml in it)") from None
        path = folder
        try:
            path = folder / "history.jsonl"
            history = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            path = folder / "environment.json"
            environment = json.loads(path.read_text()) if path.exists() else {}
            path = folder / "checkpoint.json"
            state = json.loads(path.read_text()) if path.exists() else None
            scores = {}
            for path in sorted(folder.glob("scores/*.json")):
                scores[path.stem] = json.loads(path.read_text())
        except ValueError as error:
            raise UserError(f"{path}: damaged ({error}); delete it and run that stage again") from None
        return cls(folder, config, history, environment, state, scores)

    @property
    def finished(self) -> bool:
        return self.state is None or bool(self.state.get("finished"))

    @property
    def data(self) -> str:
        return self.config["data"]["name"] or "unknown"

    @cached_property
    def digest(self) -> str:
        """The configuration's, by which the folder is called."""
        return self._digest(self.config)

    @cached_property
    def recipe_hash(self) -> str:
        """The same for all seeds of a row."""
        return self._digest(self.config | {"seed": 0})

    def _digest(self, config: Mapping[str, Any]) -> str:
        from benchmarks.config import Config  # needs torch

        text = json.dumps({"schema_version": 1} | dict(config), sort_keys=True, separators=(",", ":"), default=str)
        try:
            return Config.model_validate_json(text).digest
        except ValueError:  # of another version of the suite
            return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def table_key(self) -> str:
        return store_key(f"table/{self.data}-{self.config['data']['digest'][:8]}/{self.config['preset']}")

    @property
    def row_key(self) -> str:
        return store_key(f"{self.table_key}/{self.config['recipe']}-{self.recipe_hash}")

    @property
    def run_key(self) -> str:
        return f"{self.row_key}/seed{self.config['seed']}-{self.digest}"

    @property
    def started(self) -> int:
        """Milliseconds since 1970, as MLflow counts."""
        with suppress(KeyError, TypeError, ValueError):
            return int(datetime.fromisoformat(self.environment["started"]).timestamp() * 1000)
        return int((self.path / "config.yaml").stat().st_mtime * 1000)

    @property
    def epoch_times(self) -> list[int]:
        """When each epoch of the history ended: the same whenever and wherever the folder is mirrored."""
        took = (entry.get("seconds", 0) + entry.get("val_seconds", 0) for entry in self.history)
        return [self.started + int(1000 * seconds) for seconds in accumulate(took)]


def store_key(text: str) -> str:
    """Fit to stand in a search filter."""
    return re.sub(r"[^\w./ -]", "_", text)


@dataclass(frozen=True)
class Run:
    """A row of the table at one seed: configuration and folder; what is done is read off the folder."""

    config: "Config"
    folder: Path

    @property
    def trained(self) -> bool:
        try:
            state = json.loads((self.folder / "checkpoint.json").read_text())
        except (OSError, ValueError):
            return False
        return bool(state.get("finished")) and (self.folder / "best.safetensors").exists()

    def recognized(self, split: str) -> bool:
        return self.trained and _fresh(self.folder / f"predictions/{split}.zip", self.folder / "best.safetensors")

    def scored(self, split: str) -> bool:
        predictions = self.folder / f"predictions/{split}.zip"
        return self.recognized(split) and _fresh(self.folder / f"scores/{split}.json", predictions)

    def forget_training(self) -> None:
        """The next training starts afresh; weights, predictions, scores stay until newer ones replace them."""
        with only_one(self.folder):
            for name in ("checkpoint.safetensors", "checkpoint.json"):
                (self.folder / name).unlink(missing_ok=True)


def _fresh(path: Path, source: Path) -> bool:
    """Whether `path` was made after `source`."""
    return path.exists() and path.stat().st_mtime_ns >= source.stat().st_mtime_ns
