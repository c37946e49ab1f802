"""Search spaces: which settings of a recipe tuning may change, their ranges, and the budget of a trial.

Tuning never changes what defines the row (the keys its recipe sets), and evaluates trials only on held-out training
data: test sets are refused. Choices and both ends of ranges are checked against the schema before the first trial runs.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import optuna
from pydantic import Field, model_validator

from hmerbench.benchmarks.config import FILLED_IN, SEED_LIMIT, Config, Strict
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.resolve import SHIPPED, names, read_named, refuse_filled_in, resolve, settable
from hmerbench.benchmarks.strict_files import flat, merge, nested, read_yaml, to_yaml, validate
from hmerbench.models.files import parse_json

# equal in all trials, which are judged by the same expressions
NOT_TUNABLE = FILLED_IN | {"heldout", "data.limit"}
DIGITS = 4  # significant digits of sampled numbers, to keep recipes readable


class Parameter(Strict):
    """A setting's range (`low`, `high`; `log`, `step`) or its `choices`: any YAML values, even whole sections."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = Field(default=None, gt=0)
    choices: list[Any] | None = Field(default=None, min_length=2)

    @model_validator(mode="after")
    def _range_or_choices(self) -> "Parameter":
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step:
                raise ValueError("give either choices or a range, not both")
            return self
        if self.low is None or self.high is None or self.low >= self.high:
            raise ValueError("give low and high, low below high, or choices")
        if self.log and (self.low <= 0 or self.step):
            raise ValueError("with log, low must be above 0 and there can be no step")
        if self.step and self.step > (self.high - self.low) * (1 + 1e-9):  # 0.3 - 0.1 is less than 0.2
            raise ValueError("a step leads beyond high, so that every trial would take low; lower step")
        return self

    def suggest(self, trial: optuna.Trial, name: str, integer: bool) -> Any:
        """Sample the setting's value for a trial, as accepted by `Config.changed`."""
        if self.choices is not None:
            return parse_json(trial.suggest_categorical(name, [_text(choice) for choice in self.choices]))
        assert self.low is not None and self.high is not None
        if integer:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return self.plain(trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log))

    def plain(self, value: Any) -> Any:
        """Decode a stored value for a recipe: choices are stored as JSON, numbers with all digits."""
        if self.choices is not None:
            return parse_json(value)
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    def stored(self, value: Any) -> Any:
        """Encode a setting's value as the study stores it: a choice as it is written in the space, where 1 is 1.0."""
        choices = self.choices
        return value if choices is None else _text(next((choice for choice in choices if choice == value), value))

    def extremes(self) -> list[Any]:
        """All choices, or both ends of the range."""
        return self.choices if self.choices is not None else [self.low, self.high]

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the choices or within the range."""
        if self.choices is not None:
            return value in self.choices
        low, high = self.extremes()
        return isinstance(value, int | float) and low <= value <= high


class Pruning(Strict):
    """The median rule: stop a trial that is worse than the median of the others at the same epoch."""

    trials: int = Field(default=4, ge=1)
    """that must be finished before any is stopped"""
    epochs: int = Field(default=1, ge=0)
    """before a trial may be stopped"""


class Space(Strict):
    """The content of a file in benchmarks/spaces/, or of a custom one."""

    budget: dict[str, Any] = Field(default={})
    """settings that override the preset in trials only"""
    pruning: Pruning = Pruning()
    startup: int = Field(default=6, ge=1)
    """random trials before the sampler uses the results"""
    parameters: dict[str, Parameter] = Field(min_length=1)


@dataclass(frozen=True)
class Problem:
    """A tuning problem: a recipe at a preset and seed, on an archive, within a space."""

    recipe: str  # a shipped name or a file, as for the preset
    preset: str
    space: Space
    base: Config  # of a trial with the default settings
    parameters: Mapping[str, Parameter]  # by the full name of the setting
    defaults: Mapping[str, Any]  # values of these settings in `base`
    left_out: tuple[str, ...]  # settings of the space that the recipe itself sets, or that its network lacks

    @property
    def name(self) -> str:
        """The study's name, with a digest of everything that affects its trials."""
        text = self.space.model_dump_json() + self.base.digest + _text(list(self.parameters))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.base.recipe}-{self.base.preset}-seed{self.base.seed}-{digest}"

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        return {
            name: parameter.suggest(trial, name, type(self.defaults[name]) is int)
            for name, parameter in self.parameters.items()
        }

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.parameters[name].plain(value) for name, value in params.items() if name in self.parameters}

    def to_recipe(self, values: Mapping[str, Any]) -> str:
        """The content of a recipe file: the recipe's own keys and these values, without the trials' budget."""
        return to_yaml(merge(read_named("recipes", self.recipe)[1], nested(values)))


def read_space(preset: str, space_file: str = "") -> tuple[str, Space]:
    """The space in a file, or else the one shipped for the preset, after its source. Raises UserError if there is none,
    or for one that breaks the schema."""
    if not space_file and preset not in names("spaces"):
        raise UserError(f"no space is shipped for the preset '{preset}': give one with --space FILE")
    source = space_file or f"spaces/{preset}.yaml"
    return source, validate(Space, read_yaml(Path(space_file or SHIPPED / source)), source)


def pose(recipe: str, preset: str, seed: int, archive: Archive, space_file: str = "") -> Problem:
    """Set up the tuning of a recipe in the space of a file, or otherwise in the one shipped for the preset.

    Raises UserError for any setting that would fail in a trial.
    """
    if seed + 1 >= SEED_LIMIT:
        raise UserError(f"--seed {seed}: the result is checked at the next seed, which is too large; lower it")
    source, space = read_space(preset, space_file)
    final = resolve(recipe, preset, seed, archive)
    refuse_filled_in(space.budget, f"{source}: budget")
    budget = flat(space.budget)
    select = [budget.get("select"), *(space.parameters["select"].extremes() if "select" in space.parameters else ())]
    if refused := [value for value in select if value not in (None, "heldout")]:
        raise UserError(f"{source}: select: {refused[0]}: tuning looks at held-out training data only; leave it out")
    for name in space.parameters:
        if name in NOT_TUNABLE:
            raise UserError(f"{source}: parameters.{name}: trials are compared by it, so it cannot be tuned")
    base = final.changed(budget | {"select": "heldout"}, f"{source}: budget")
    fixed = flat(read_named("recipes", recipe)[1])
    of_networks = [key["name"] for key in settable() if key["name"].startswith("model.")]
    own = base.model_dump(mode="json")["model"]
    lacking = {name for name in of_networks if name.split(".")[1] not in own}  # that this recipe's does not have
    left_out = tuple(name for name in space.parameters if name in lacking or any(_overlap(name, key) for key in fixed))
    parameters = {name: parameter for name, parameter in space.parameters.items() if name not in left_out}
    if not parameters:
        raise UserError(f"{source}: the recipe '{recipe}' sets or lacks all of these, so nothing is left to tune")
    found = {name: _at(base, name, source) for name in parameters}
    defaults = {name: own.plain(own.stored(found[name])) for name, own in parameters.items()}
    for name, parameter in parameters.items():
        if type(defaults[name]) is int and parameter.step and not parameter.step.is_integer():
            raise UserError(f"{source}: parameters.{name}: it is a whole number, so its step must be one, too")
        if not parameter.holds(found[name]):
            raise UserError(f"{source}: parameters.{name}: the default, {found[name]}, lies outside; include it")
        for value in parameter.extremes():
            if type(defaults[name]) is int and isinstance(value, float) and value.is_integer():
                value = int(value)
            for config in (base, final):  # a trial, and the resulting recipe
                config.changed({name: value}, f"{source}: parameters.{name}")
    return Problem(recipe, preset, space, base, parameters, defaults, left_out)


def _at(config: Config, name: str, source: str) -> Any:
    """The value of a setting or section. Raises UserError if there is none of that name."""
    try:
        return reduce(lambda section, key: section[key], name.split("."), config.model_dump(mode="json"))
    except (KeyError, TypeError) as error:
        defaults = {key["name"]: parse_json(key["default"]) for key in settable()}
        if name in defaults and isinstance(error, TypeError):
            raise UserError(f"{source}: parameters.{name}: its section is null here; leave it out") from None
        if name in defaults and not name.startswith("model."):  # a dump leaves out some that have their default
            return defaults[name]
        raise UserError(f"{source}: parameters.{name}: there is no such setting; `ls --keys` lists all") from None


def _overlap(a: str, b: str) -> bool:
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
