"""A recognizer's run folder: its contents, the progress of the run, and the keys by which the tracking store knows it.

Keys depend on the folder's contents, not on its path, so that a copy of the folder is the same run.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, NotRequired

from pydantic import conlist

from hmerbench.benchmarks.config import SCHEMA, Config, digest_of_keys
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked, sha256
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.resolve import PRESETS, load, names
from hmerbench.benchmarks.runs.run import Open, Run, state_of, store_key
from hmerbench.benchmarks.strict_files import read_plain, validate
from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.score import VERSION, Score, fields_of
from hmerbench.models.files import one_line


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


class State(Open):
    """checkpoint.json: the progress of training."""

    epoch: int
    step: NotRequired[int]
    best_epoch: NotRequired[int]
    finished: bool


class Outcome(Open):
    """trial.json: what became of a trial, the `ended`-th of its study to end, and the `best` value of those so far."""

    name: str
    number: int
    state: str
    value: float
    ended: int
    best: float


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


class RunFolder(Run[Config]):
    """A recognizer's run: a recipe at a preset and seed."""

    FILE, EPOCH, LOSS, LOAD = "config.yaml", Epoch, "loss", staticmethod(load)
    SCHEMA = SCHEMA
    PARTS = (FILE, "environment.json", "history.jsonl", "scores", "predictions")
    PROGRESS = ("checkpoint.json", "checkpoint.safetensors")

    # ----------------------------------------------------------------------------------------------------- contents

    def sets(self, pattern: str) -> list[str]:
        """The test sets with a file that matches `pattern`, such as scores/*.json; no scores of an earlier training,
        which the folder keeps until the new one ends."""
        with suppress(UserError):  # whoever asks for the progress is told that it is damaged
            if not pattern.startswith("predictions/") and not self.finished:
                return []
        return sorted(path.stem for path in self.path.glob(pattern))

    def expressions(self, split: str) -> dict[str, Expression]:
        """The rows of scores/<split>.csv by id. Raises UserError for a file without any."""
        return {row.id: row for row in self._read(f"scores/{split}.csv", conlist(Expression, min_length=1))}

    def error_counts(self, split: str) -> Mapping[str, int]:
        """Errors (D_B) by id in scores/<split>.csv; of a thousand runs, validated `expressions` take minutes."""
        path = self.path / f"scores/{split}.csv"
        try:
            return _error_counts(path, state_of(path))
        except FileNotFoundError:
            raise UserError(f"{path}: missing; score this run again") from None
        except (KeyError, TypeError, ValueError) as error:
            fault = f"no column {error}" if isinstance(error, KeyError) else one_line(error)
            raise UserError(f"{path}: damaged ({fault}); score this run again") from None

    @property
    def state(self) -> State | None:
        """State of the current checkpoint; a committed run has none."""
        return self._read("checkpoint.json", State) if (self.path / "checkpoint.json").exists() else None

    @property
    def trial(self) -> Outcome | None:
        """What became of a trial, once its study knows."""
        return self._read("trial.json", Outcome) if (self.path / "trial.json").exists() else None

    @property
    def scores(self) -> dict[str, Score]:
        """scores/<set>.json by test set."""
        return {split: self._read(f"scores/{split}.json", Score) for split in self.sets("scores/*.json")}

    @property
    def errors(self) -> dict[str, Errors]:
        """errors/<set>.json by test set."""
        return {split: self._read(f"errors/{split}.json", Errors) for split in self.sets("errors/*.json")}

    @staticmethod
    def epoch_text(epoch: Mapping[str, Any]) -> str:
        """What is printed of an epoch that is done."""
        return f"loss {epoch['loss']:.4f}, {epoch['images_per_s']:.0f} images/s"

    @property
    def exprate(self) -> float:
        """ExpRate in percent over all its test sets together; 0 if there are none."""
        scores = self.scores.values()
        return 100 * sum(score.exact for score in scores) / max(1, sum(score.n for score in scores))

    @property
    def weights_file(self) -> Path:
        """Path of the selected epoch's weights: float32, in a packed run float16."""
        return self.path / "best.safetensors"

    # ----------------------------------------------------------------------------------------------------- progress

    @property
    def has_weights(self) -> bool:
        """Whether it can recognize: of packed runs, those of a row's first seed."""
        return self.weights_file.exists()

    @property
    def finished(self) -> bool:
        """Whether no training is under way; none is in a folder without a checkpoint, as a committed run's, unless its
        history was emptied for one."""
        if state := self.state:
            return state["finished"]
        return not (history := self.path / "history.jsonl").exists() or history.stat().st_size > 0

    @property
    def trained_here(self) -> bool:
        """Whether training was finished in this folder; False for a committed run, which has no checkpoint."""
        with suppress(UserError):
            return (state := self.state) is not None and state["finished"] and self.has_weights
        return False

    def recognized(self, split: str) -> bool:
        """Whether a test set was recognized with the current weights."""
        return self.trained_here and self._fresh(f"predictions/{split}.tsv", "best.safetensors")

    def packed_with(self, split: str) -> bool:
        """Whether this is a packed run, whose weights are rounded, with predictions of a test set from before that."""
        name = f"predictions/{split}.tsv"
        return self.state is None and bool(self.history) and name not in self.sources and (self.path / name).exists()

    def scored(self, split: str) -> bool:
        """Whether the current predictions of a test set are scored, by the present version of the scorer."""
        with suppress(UserError, InputError):  # what is damaged is made again
            if self.recognized(split) and self._fresh(name := f"scores/{split}.json", f"predictions/{split}.tsv"):
                return fields_of(self._read(name, Score).signature)["v"] == VERSION
        return False

    def _fresh(self, name: str, source: str) -> bool:
        """Whether a file was made from the present contents of `source`; without a record, as committed, it was."""
        return (self.path / name).exists() and self.sources.get(name) in (None, self.file_digest(source))

    @property
    def status(self) -> tuple[str, str]:
        """How far it is, and details. As in `reproduce`, files made from other contents of their sources do not
        count."""
        state, epochs = self.state, self.settings.training.epochs
        if state is None:  # not begun, or committed, without a checkpoint
            return ("scored", self._rates(list(self.scores))) if self.scores else ("untrained", "")
        if not self.trained_here:
            return "training", f"{state['epoch']} of {counted(epochs, 'epoch')}"
        recognized = [split for split in self.sets("predictions/*.tsv") if self.recognized(split)]
        scored = [split for split in recognized if self.scored(split)]
        if scored:
            rest = [split for split in recognized if split not in scored]
            return "scored", self._rates(scored) + (f"; {', '.join(rest)} not scored" if rest else "")
        return ("recognized", ", ".join(recognized)) if recognized else ("trained", counted(epochs, "epoch"))

    def _rates(self, splits: Sequence[str]) -> str:
        return ", ".join(f"{split} {self.scores[split].exprate:.2f}" for split in splits)

    @property
    def unfit(self) -> str:
        """Why it cannot be packed: it is not on CROHME, packed, not finished and scored, or read a part of its sets."""
        if self.data != "crohme":
            return f"it was trained on {self.data} data; only runs on CROHME can be packed"
        if self.state is None and self.history:
            return "it is packed already: it has no checkpoint"
        if limit := self.settings.search.limit:
            return (
                f"it read only {limit} images of a set (search.limit), which no table should compare; "
                "pack a run of a preset without that limit"
            )
        splits = self.sets("predictions/*.tsv")
        if not (unscored := [split for split in splits if not self.scored(split)]) and splits:
            return ""
        return (
            f"it is not trained, recognized and scored yet ({', '.join(unscored) or 'no predictions'}); "
            "`hmerbench reproduce` does what is missing"
        )

    @property
    def sources(self) -> dict[str, str]:
        """Digest of the contents from which a file was made, by the file's name."""
        return self._read("sources.json", dict[str, str]) if (self.path / "sources.json").exists() else {}

    def file_digest(self, name: str) -> str:
        return _file_digest(self.path / name, state_of(self.path / name))

    def record_source(self, name: str, digest: str) -> None:
        """Record in sources.json from which contents a file was made; it is made again when they have changed."""
        with locked(self.path, ".sources", seconds=60):  # another test set may be done at the same time
            self.write("sources.json", self.sources | {name: digest})

    def drop_results(self) -> None:
        """Delete what was recognized with other weights than the current ones, and its scores."""
        for name in ("scores", "errors", "symlg", "predictions"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------- names and keys

    @property
    def preset(self) -> str:
        """Name of what was spent: a rung of the ladder, or the stem of a YAML file."""
        return self.settings.preset

    @property
    def command(self) -> str:
        """The command that trains it; where its settings come from elsewhere, the one that trains this folder."""
        if self.preset in PRESETS and self.recipe in names("recipes"):
            return f"hmerbench train --recipe {self.recipe} --preset {self.preset} --seed {self.seed}"
        return f"hmerbench train {quote(str(self.path))}"

    @property
    def data(self) -> str:
        """Name of the training archive: crohme, embedded or foreign."""
        return self.settings.data.name or "unknown"

    @property
    def read_data(self) -> str:
        """Name of the data that it reads: where `evaluate` puts what weights read of other data, that."""
        local, space = ("", "", *self.path.absolute().parts)[-5:-3]
        if self.evaluated and "local" in (local, space):
            return "crohme" if space == "local" else space.partition("-")[0]
        return self.data

    @property
    def evaluated(self) -> bool:
        """Whether it is what `evaluate` made with weights, not a training."""
        return self.path.absolute().parts[-3:-2] == ("evaluated",)

    @cached_property
    def digest(self) -> str:
        """Digest of the configuration, which is part of the folder's name."""
        return config_digest(self.stored)

    @cached_property
    def recipe_hash(self) -> str:
        """Digest of the configuration without its seed: the same for all seeds of a row."""
        return config_digest(self.stored | {"seed": 0})

    @property
    def table_key(self) -> str:
        """Key of the table that the run belongs to: data and preset."""
        return store_key(f"table/{self.data}-{self.settings.data.digest[:8]}/{self.preset}")

    @property
    def row_key(self) -> str:
        """Key of the table's row: the recipe with all its settings."""
        return store_key(f"{self.table_key}/{self.recipe}-{self.recipe_hash}")

    @property
    def run_key(self) -> str:
        return f"{self.row_key}/seed{self.seed}-{self.digest}"

    # ------------------------------------------------------------------------------------------------------------ time

    @property
    def external(self) -> bool:
        """Whether a program outside the suite trained it, in whole or in part, or a network that it reads with: the
        suite alone records its own version. A network that is not here, beside this run or elsewhere, may be such."""
        own = any("versions" in place and "hmerbench" not in place["versions"] for place in self.environments)
        root, others = self.path.absolute().parents[1], self.settings.search.together.folders
        beside = {path: root.joinpath(*path.parts[-2:]) for path in others}
        found = [near if near.exists() else path for path, near in beside.items()]
        return own or any(not path.exists() or RunFolder(path).external for path in found)

    @property
    def core_minutes(self) -> float:
        """Minutes of training times CPU threads; 0 if part of it was on a GPU or with other threads than the rest, and
        for a run that reads together with networks of others, whose training counts, too."""
        threads = {place.get("threads", 1) for place in self.environments}
        on_gpu, together = any(place.get("gpu") for place in self.environments), self.settings.search.together.runs
        if not self.history or len(threads) > 1 or on_gpu or together:
            return 0.0
        return self.seconds[-1] / 60 * threads.pop()


def config_digest(config: Mapping[str, Any]) -> str:
    """Digest of the settings in a config.yaml, over all that were settings when it was written."""
    keys = {"schema_version": 1} | dict(config)
    with suppress(UserError):
        if keys["schema_version"] == SCHEMA:
            return validate(Config, keys, "config.yaml").digest
    return digest_of_keys(keys)


@lru_cache(maxsize=256)  # pages ask for the committed runs again and again; of a thousand runs, no more are kept
def _error_counts(path: Path, _: object) -> Mapping[str, int]:
    counts = {sys.intern(row["id"]): int(row["errors"]) for row in read_plain(path)}  # most runs have the same ids
    if not counts or min(counts.values()) < 0:
        raise ValueError("no counts of errors")
    return counts


@cache
def _file_digest(path: Path, _: object) -> str:
    return sha256(path)
