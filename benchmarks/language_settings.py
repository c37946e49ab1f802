"""The settings of a language model's run: a recipe and a seed fix them all. The defaults are the authors' training."""

from typing import Literal

from pydantic import Field

from hmerbench.benchmarks.config import FILLED_IN, SEED_LIMIT, RunSettings, Strict
from hmerbench.benchmarks.resolve import key_rows, read_named
from hmerbench.benchmarks.strict_files import schema, validate
from hmerbench.models.settings import LanguageConfig

SCHEMA = 1  # version of the settings below: raise it when one is added or removed or changes its meaning
RECIPES = "language_models/recipes"  # below benchmarks/


class Text(Strict):
    """The corpus. `name` and `digest` are filled in from its files."""

    name: str = ""
    digest: str = ""
    line_ends: bool = True
    """the end of a line is a word"""


class Training(Strict):
    """Truncated backpropagation through time with plain stochastic gradient descent."""

    epochs: int = Field(default=25, gt=0)
    """passes over the corpus"""
    batch_size: int = Field(default=20, gt=0)
    """pieces of the corpus that are read side by side"""
    steps: int = Field(default=35, gt=0)
    """words through which the gradient goes back"""
    loss: Literal["sum", "mean"] = "sum"
    """over the steps, of the mean over the batch"""
    rate: float = Field(default=1.0, gt=0)
    """of learning, at first"""
    clip: float = Field(default=5.0, gt=0)
    """largest norm of the gradient"""
    decay: float = Field(default=0.5, gt=0, le=1)
    """factor of the rate after an epoch that improved too little"""
    improvement: float = 1.0
    """least gain in validation perplexity, from the third epoch on, that keeps the rate"""
    initial: float | None = Field(default=0.05, gt=0)
    """parameters start uniform in ± this; null: torch's own ranges"""
    carry_state: bool = True
    """over batches and epochs"""
    bf16: bool = True
    """convolution, highway and softmax multiply bfloat16 factors, on a device with a unit for it"""
    threads: int | None = Field(default=None, gt=0)
    """of a CPU; null: as many as torch takes"""


class LanguageSettings(RunSettings):
    """All settings of a language model's run, which language.yaml holds."""

    schema_version: int = Field(default=SCHEMA, ge=1, le=SCHEMA)
    recipe: str
    seed: int = Field(default=7, ge=0, lt=SEED_LIMIT)
    text: Text = Text()
    model: LanguageConfig = LanguageConfig()
    training: Training = Training()

    @property
    def run_name(self) -> str:
        """RECIPE/CORPUS-seedN-DIGEST: the run's folder below runs/."""
        return f"{self.recipe}/{self.text.name}-seed{self.seed}-{self.digest}"


def resolve(recipe: str, seed: int) -> LanguageSettings:
    """Merge defaults <- recipe, a shipped name or a YAML file. The corpus is tied to them by `tied`."""
    name, keys, source = read_named(RECIPES, recipe)
    return validate(LanguageSettings, keys | {"recipe": name, "seed": seed}, source)


def settable() -> list[dict[str, str]]:
    """All keys that a recipe of a language model may set, as `resolve.settable` gives those of a recognizer."""
    fields = schema(LanguageSettings)
    sections = {name.rpartition(".")[0] for name in fields}
    return key_rows({name: fields[name] for name in fields if name not in FILLED_IN | sections}, "language model: ")


def tied(settings: LanguageSettings, name: str, digest: str) -> LanguageSettings:
    """The settings with the corpus's name and digest filled in."""
    return settings.changed({"text": {"name": name, "digest": digest}}, settings.recipe)
