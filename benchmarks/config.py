"""The settings of a run: a recipe (a row of the paper's tables), a preset (how much to spend) and a seed fix them all.

The defaults *are* the authors' training (CoMER's released program). A preset changes how much is spent, a recipe
selects the row of the table; `resolve` merges defaults <- preset <- recipe and refuses unknown keys.

What stands below a setting is its meaning, which `ls --keys` lists with its type and range, and the source of its
default: "4.1" is a section of the paper (CoMER, ECCV 2022), "program" the authors' released program, where the paper is
silent or differs, "ours" a setting of this suite, whose default keeps the authors' behaviour.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.yaml_files import flat, merge, nested, read_yaml, to_yaml
from hmerbench.evaluation.datasets import crohme, datasets
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.settings import (
    MAX_STEPS,
    NETWORKS,
    UNNAMED,
    AnySettings,
    of_its_network,
    settings_class,
    without_former,
)
from hmerbench.models.vocab import Vocabulary

SCHEMA = 8  # version of the settings below: raise it when one is removed, changes its meaning or is added (unless it is
# left out where it is absent, so that runs keep their digests)
SEED_LIMIT = 2**64  # torch takes smaller seeds
FILLED_IN = {  # by the run
    *("schema_version", "recipe", "preset", "seed", "data.name", "data.digest", "data.ink"),
    *("search.language.digest", "search.together.digests", "start.weights", "start.digest"),
    *("text.name", "text.digest"),  # of a language model
}
# Limits of the authors' loader, which skips larger images and longer labels in training and in prediction.
AUTHORS_MAX_PIXELS = 320_000
AUTHORS_MAX_TOKENS = 200
NEED_INK = ("sub_expressions", "exchanged", "substitution")  # the keys of `data` for which pen strokes are needed
ABOUT = ("description", "runs_on")  # of a file: what for, and a preset's hardware; no settings
SECTIONS = {"data", "model", "augmentation", "training", "search"}
SHIPPED = Path(__file__).parent  # contains recipes/, presets/ and spaces/
# keys of `training` up to version 7: how a run was computed, which environment.json records
FORMER_TRAINING = {"threads", "workers", "resident", "graphs"}
PRESETS = ("smoke", "small", "medium", "large", "paper", "gpu")  # the ladder: from minutes to the authors' network
Settings = TypeVar("Settings", bound=BaseModel)
Name = Annotated[str, Field(pattern=r"^([\w+][\w+., =-]*)?$")]  # becomes part of file names, tables and figures
Factor = Annotated[float, Field(gt=0, le=4)]  # of an image's width and height


class Strict(BaseModel):
    """Immutable settings: no unknown keys, no silent coercion, no infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Data(Strict):
    """The training data. `name`, `digest` and `ink` are filled in from the archive, so that a run is tied to it."""

    name: str = ""
    digest: str = ""
    scale: float = Field(default=1.0, gt=0, le=1)
    """factor applied once to image width and height, on loading (ours)"""
    max_area: int = Field(default=AUTHORS_MAX_PIXELS, ge=1024)
    """pixels; larger images are neither trained on nor recognized, and count as wrong (program)"""
    max_tokens: int = Field(default=AUTHORS_MAX_TOKENS, gt=0, lt=MAX_STEPS)
    """longer labels are not trained on (program)"""
    limit: int | None = Field(default=None, gt=0)
    """number of evenly spaced training expressions; null: all (ours)"""
    sub_expressions: int = Field(default=0, ge=0)
    """cut from each expression's pen strokes; each epoch takes one of them, in turn (ours)"""
    exchanged: int = Field(default=0, ge=0)
    """made of each, a part replaced by another's in the same role; each epoch takes one, in turn (ours)"""
    substitution: float = Field(default=0.0, ge=0, le=1)
    """share of symbols replaced at each visit by similar ones from other writers (ours)"""
    ink: str = ""

    @property
    def needs_ink(self) -> bool:
        """Whether training uses the pen strokes of the training set."""
        return any(getattr(self, key) for key in NEED_INK)


class Augmentation(Strict):
    """Random distortions of a training image: `scale` is a range, the other values are half-widths of uniform draws."""

    scale: tuple[Factor, Factor] | None = (0.7, 1.4)
    """range of the factor, the same for width and height; null: no scaling (4.1)"""
    stretch: float = Field(default=0.0, ge=0, lt=1)
    """0.15: width times, and height divided by, at most 1.15, or the reverse (ours)"""
    rotation: float = Field(default=0.0, ge=0, le=45)
    """maximum, degrees to either side (ours)"""
    shear: float = Field(default=0.0, ge=0, le=1)
    """maximum horizontal shift per unit of height, to either side (ours)"""
    elastic: float = Field(default=0.0, ge=0)
    """smooth displacement, pixels of the loaded image (ours)"""
    thickness: float = Field(default=0.0, ge=0, le=1)
    """probability of thinner or thicker strokes (ours)"""

    @model_validator(mode="after")
    def _scale_is_a_range(self) -> "Augmentation":
        if self.scale and self.scale[0] > self.scale[1]:
            raise ValueError(f"scale is a range, the smaller factor first, not {list(self.scale)}")
        return self

    @property
    def only_scale(self) -> bool:
        """Whether this is the authors' augmentation, which uses their exact resize."""
        return not (self.stretch or self.rotation or self.shear or self.elastic or self.thickness)


class Batching(Strict):
    """How images are batched: order `area` is the authors' (fixed, sorted by area), `shape` pads to a few shapes."""

    order: Literal["area", "shape"] = "area"
    """area: by area, shuffled | shape: padded to few shapes (program)"""
    coarse: bool = False
    """for order `shape`: fewer, coarser shapes, as kernels are built for every new one (ours)"""
    size: int = Field(default=8, gt=0)
    """maximum images per micro-batch, as on each of the authors' GPUs (program)"""
    pixels: int = Field(default=AUTHORS_MAX_PIXELS, gt=0)
    """maximum padded pixels per micro-batch: area of its largest image times its images (program)"""
    micro_batches: int = Field(default=4, gt=0)
    """micro-batches per step, whose gradients are averaged: the authors' four GPUs (program)"""
    curriculum: int = Field(default=0, ge=0)
    """n: epoch e < n trains on the shortest (e + 1) / (n + 1) of the labels only (ours)"""


class Optimizer(Strict):
    """The optimizer and its settings; `clip` limits the gradient norm, None: no limit."""

    name: Literal["sgd", "adadelta", "adamw", "muon"] = "sgd"
    """sgd, without Nesterov momentum | adadelta, of BTTR's authors | adamw | muon (4.1)"""
    lr: float = Field(default=0.08, gt=0, le=1000)
    """initial learning rate, for one step of all micro-batches (4.1)"""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """for adadelta: rho, for adamw and muon: beta1, whose beta2 is 0.99 (4.1)"""
    weight_decay: float = Field(default=1e-4, ge=0)
    """of all parameters, including biases and normalization (4.1)"""
    clip: float | None = Field(default=None, gt=0)
    """maximum gradient norm; null: no clipping (program)"""


class Schedule(Strict):
    """`plateau` multiplies the learning rate by `factor` after `patience` validations without gain; `cosine` decays it
    to 0."""

    name: Literal["plateau", "cosine"] = "plateau"
    """plateau: times `factor` when validation stops improving | cosine: decays to 0 (program)"""
    factor: float = Field(default=0.25, gt=0, lt=1)
    """for plateau: factor of the learning rate (program)"""
    patience: int = Field(default=10, ge=0)
    """for plateau: validations without improvement before the factor is applied (program)"""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """share of the steps in which the learning rate rises to its peak (program)"""


class Training(Strict):
    """How a run is trained."""

    epochs: int = Field(default=300, gt=0, le=1_000_000)
    """maximum; the released checkpoint is from epoch 151 (program)"""
    batching: Batching = Batching()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    validate_every: int = Field(default=2, gt=0)
    """epochs between validations (program)"""
    early_stop: int | None = Field(default=None, gt=0)
    """stop after this many validations without improvement; null: after the last epoch (program)"""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """probability mass spread over all classes (program)"""
    bf16: bool = False
    """mixed precision where the device has a unit for it; softmax, statistics and loss stay float32 (program)"""
    average: float = Field(default=0.0, ge=0, lt=1)
    """decay of an exponential moving average of the weights, which replaces them; 0: none (ours)"""
    recalibrate: int = Field(default=0, ge=0)
    """batches on which batch-norm statistics are measured, for reading or before they are fixed (ours)"""
    # left out where it is 0, so that runs from before this setting keep their digest
    fixed_statistics: float = Field(default=0.0, ge=0, lt=1, exclude_if=lambda share: not share)
    """share of the epochs, the last ones, with constant batch-norm statistics, as in reading (ours)"""

    @property
    def first_fixed(self) -> int:
        """The epoch, from 0, that begins with batch-norm statistics being measured and fixed; `epochs` if none does.

        The first epoch never has fixed statistics; of two or more, the last one always has where there is a share.
        """
        fixed = max(1, round(self.epochs * self.fixed_statistics)) if self.fixed_statistics else 0
        return max(1, self.epochs - fixed)

    @model_validator(mode="after")
    def _fixed_statistics_are_measured(self) -> "Training":
        if self.fixed_statistics and not self.recalibrate:
            raise ValueError("fixed_statistics are measured on `recalibrate` batches: set it, to 300 for example")
        return self


class Language(Strict):
    """A language model that takes part in ranking what a search found. `digest` is filled in from its file."""

    weights: str = ""
    """its weights file, from `reproduce-lm --recipes captions`; '': none (ours)"""
    digest: str = ""
    weight: float = Field(default=0.0, ge=0)
    """of its log-probability, relative to that of one direction of the search (ours)"""
    length: float = 0.0
    """added to the score for each token (ours)"""


class Start(Strict):
    """The weights that a training starts from, none by default: whose they are, and the digest of their file."""

    weights: str = ""
    digest: str = ""


class Together(Strict):
    """Other networks that read together with a run's own: the folders of their runs. `digests` of their weights are
    filled in."""

    runs: tuple[str, ...] = ()
    """folders of their runs (ours)"""
    digests: tuple[str, ...] = ()

    @property
    def weights(self) -> list[Path]:
        """The weights files."""
        return [Path(run) / "best.safetensors" for run in self.runs]


class Search(Strict):
    """Approximate joint search (paper sec. 4.1, BTTR sec. 4.3) and how images are grouped for it."""

    beam_size: int = Field(default=10, gt=0)
    """hypotheses per direction (program)"""
    max_len: int = Field(default=200, gt=1, le=MAX_STEPS)
    """maximum tokens of a hypothesis, including the start token (program)"""
    alpha: float = Field(default=1.0, ge=0)
    """score of a hypothesis: log-probability / length ^ alpha (program)"""
    direction: Literal["both", "l2r", "r2l"] = "both"
    """both: approximate joint search | l2r or r2l: beam search in one direction (4.1)"""
    batch_size: int = Field(default=4, gt=0)
    """images searched at once; affects results, as the network sees padding (program)"""
    bf16: bool = False
    """mixed precision where the device has a unit for it (program)"""
    scales: tuple[Factor, ...] = Field(default=(1.0,), min_length=1, max_length=8)
    """sizes at which an image is read jointly, relative to training (ours)"""
    convertible: bool = False
    """true: predict the best hypothesis that converts to symLG (ours)"""
    limit: int | None = Field(default=None, gt=0)
    """number of evenly spaced expressions to recognize per set; null: all (ours)"""
    # left out where they name nothing, so that runs from before these settings keep their digest
    language: Language = Field(default=Language(), exclude_if=lambda language: not language.weights)
    """a language model that takes part in ranking hypotheses; recognition/rescoring.py says how"""
    together: Together = Field(default=Together(), exclude_if=lambda together: not together.runs)
    """other networks that read together with the run's own; recognition/together.py says how"""

    @property
    def options(self) -> SearchOptions:
        """The options of the search itself."""
        return SearchOptions(self.beam_size, self.max_len, self.alpha, direction=self.direction)

    @property
    def name(self) -> str:
        """The search as a signature names it: joint10, l2r10, joint10+sizes1,1.2+alpha0.25+convertible …"""
        name = ("joint" if self.direction == "both" else self.direction) + str(self.beam_size)
        sizes = "" if self.scales == (1.0,) else "+sizes" + ",".join(f"{scale:g}" for scale in self.scales)
        alpha = "" if self.alpha == 1 else f"+alpha{self.alpha:g}"
        language = f"+language{self.language.weight:g},{self.language.length:g}" if self.language.weights else ""
        networks = f"+networks{1 + len(self.together.runs)}" if self.together.runs else ""
        return name + sizes + alpha + networks + language + "+convertible" * self.convertible


class RunSettings(Strict):
    """All settings of a run, a recognizer's or a language model's."""

    def changed(self, values: Mapping[str, Any], source: str = "changed settings") -> Self:
        """A copy with other values, by full names such as training.optimizer.lr; sections are merged key by key.

        Raises UserError, beginning with `source`, for values that violate the schema.
        """
        return validate(type(self), merge(self.model_dump(mode="json"), nested(values)), source)

    @property
    def digest(self) -> str:
        """Eight hex digits over the canonical JSON of all settings, defaults included: another default, another run."""
        return digest_of_keys(self.model_dump(mode="json"))

    def to_yaml(self) -> str:
        """Contents of the file in the run folder."""
        return to_yaml(self.model_dump(mode="json"))


class Config(RunSettings):
    """All settings of a recognizer's run."""

    schema_version: int = Field(default=SCHEMA, ge=1, le=SCHEMA)
    recipe: Name
    preset: Name
    seed: int = Field(default=7, ge=0, lt=SEED_LIMIT)
    data: Data = Data()
    model: AnySettings = of_its_network({})
    """the keys of each network, with their meaning, are in models/settings.py"""
    start: Start = Field(default=Start(), exclude_if=lambda start: not start.digest)  # as in Search
    augmentation: Augmentation | None = Augmentation()
    """drawn anew for each training image; `augmentation: null` disables it"""
    training: Training = Training()
    search: Search = Search()
    select: str = Field(default=crohme().primary, pattern=r"^\w[\w.+-]*$")
    """test set whose token-match ExpRate selects the epoch | heldout: part of train | last: none (4.2)"""
    heldout: float = Field(default=0.05, gt=0, lt=0.5)
    """share of train held out by `select: heldout` (ours)"""

    @model_validator(mode="after")
    def _schedule_can_see(self) -> "Config":
        if self.select == "last" and (self.training.schedule.name == "plateau" or self.training.early_stop):
            raise ValueError("select: last never validates, so plateau and early_stop cannot work; use cosine")
        return self

    @model_validator(mode="after")
    def _beams_fit_the_vocabulary(self) -> "Config":
        if 2 * self.search.beam_size > (classes := len(Vocabulary())):
            raise ValueError(f"search.beam_size must be at most {classes // 2}, half of the classes")
        return self

    @model_validator(mode="after")
    def _direction_is_learned(self) -> "Config":
        if self.search.direction not in (directions := self.model.directions):
            raise ValueError(f"search.direction must be {' or '.join(directions)}; the network learns no other")
        return self

    @model_validator(mode="after")
    def _reads_together(self) -> "Config":
        if self.search.together.runs and not self.model.together:
            raise ValueError(f"search.together: {self.model.network} reads alone; leave it out")
        return self

    @property
    def run_name(self) -> str:
        """RECIPE/PRESET-seedN-DIGEST: the run's folder below runs/."""
        return f"{self.recipe}/{self.preset}-seed{self.seed}-{self.digest}"


def digest_of_keys(keys: Mapping[str, Any]) -> str:
    """Eight hex digits over the canonical JSON of settings."""
    text = json.dumps(keys, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def names(kind: str) -> list[str]:
    """Names of the shipped recipes, presets or tuning spaces."""
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.yaml"))


def resolve(recipe: str, preset: str, seed: int, archive: Any = None) -> Config:
    """Merge defaults <- preset <- recipe, tied to the archive's name and digest.

    `recipe` and `preset` are shipped names or paths of YAML files. A `model.size` stands for the keys that it means to
    the network; other keys of the model override them. `select` becomes `heldout` if it names a test split
    that the archive lacks; on the embedded set, which has no pen strokes, the settings that need them become 0.
    """
    recipe_name, recipe_keys, recipe_source = read_named("recipes", recipe)
    preset_name, preset_keys, preset_source = read_named("presets", preset)
    for keys, source in ((preset_keys, preset_source), (recipe_keys, recipe_source)):
        refuse_filled_in(keys, source)
    source = f"{recipe_source} with {preset_source}"
    merged = merge(preset_keys, recipe_keys) | {"recipe": recipe_name, "preset": preset_name, "seed": seed}
    merged["model"] = sized(merged.get("model", {}), source)
    merged["select"] = select = str(merged.get("select", Config.model_fields["select"].default))  # a year is a number
    there = archive.test_splits if archive else ()
    known = *there, *(split for each in datasets().values() for split in each.tests)
    if select not in ("heldout", "last", *known):
        raise UserError(f"{source}: select: must be heldout, last or a test set, not {select[:40]!r}")
    if archive is not None:
        merged["data"] = merged.get("data", {}) | {"name": archive.name, "digest": archive.digest}
        if archive.name == "embedded":
            merged["data"] |= dict.fromkeys(NEED_INK, 0)
        if any(merged["data"].get(key) for key in NEED_INK):
            merged["data"]["ink"] = archive.ink_digest
        if select not in ("heldout", "last", *there):
            merged["select"] = "heldout"
            if archive.name != "embedded":
                _tell_heldout(archive.path, select)
    config = validate(Config, merged, source)
    if weights := config.search.language.weights:
        if not Path(weights).is_file():
            raise UserError(f"{source}: search.language.weights: there is no {weights}; `reproduce-lm` makes one")
        config = config.changed({"search.language.digest": digest_of(Path(weights))})
    for path in config.search.together.weights:
        if not path.is_file():
            raise UserError(f"{source}: search.together.runs: there is no {path}; train that run, or leave it out")
    if weights := config.search.together.weights:
        config = config.changed({"search.together.digests": [digest_of(path) for path in weights]})
    return config


@cache
def _tell_heldout(archive: Path, select: str) -> None:
    """Once for all runs on an archive."""
    err_console.print(f"{archive}: no test set {select} in it, so a held-out part of train selects the weights")


def sized(model: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Keys of a model with those that its `size` stands for. Raises UserError for a size that its network lacks."""
    keys, name = dict(model), network_of(model)
    size, sizes = keys.pop("size", "published"), NETWORKS[name].sizes
    if size not in list(sizes):
        raise UserError(f"{source}: model.size: {name} has no size {size!r}; choose one of {', '.join(sizes)}")
    return merge(sizes[size], keys)


def network_of(model: object) -> str:
    """The network that keys of a model name; UNNAMED if they name none, or an unusable one, to be refused later."""
    with suppress(ValueError):
        if isinstance(model, Mapping) and (settings := settings_class(model.get("network"))):
            return settings.network
    return UNNAMED


def load(path: Path) -> Config:
    """Read the `config.yaml` of a run folder. An older one keeps its schema version, so it is not trained further."""
    if not path.exists():
        raise UserError(f"{path.parent}: this is not a run folder (no config.yaml is in it); `hmerbench ls` lists runs")
    keys = _stored(path)
    version = keys["schema_version"]
    older = "" if version == SCHEMA else f" (version {version} of the settings, not {SCHEMA})"
    return validate(Config, keys, f"{path}{older}")


def _stored(path: Path) -> dict[str, Any]:
    """The keys of a config.yaml."""
    keys = {"schema_version": 1} | read_yaml(path)
    if isinstance(model := keys.get("model"), dict):
        keys["model"] = without_former(model)
    if keys["schema_version"] <= 7 and isinstance(training := keys.get("training"), dict):
        keys["training"] = {key: value for key, value in training.items() if key not in FORMER_TRAINING}
    return keys


def check_folder(config: Config, folder: Path) -> None:
    """Raise UserError if `folder` contains a run of other settings; the message names every key that differs."""
    path = folder / "config.yaml"
    if not path.exists():
        return
    # keys added since the folder was made count as defaults there; the schema version still tells the two apart
    keys = _stored(path)
    model = of_its_network({"network": network_of(keys.get("model", {}))})
    search = Search.model_validate({"direction": model.directions[0]})
    defaults = Config(recipe="", preset="", model=model, search=search)
    there = merge(defaults.model_dump(mode="json"), keys)
    old, new = flat(there), flat(config.model_dump(mode="json"))
    if different := [name for name in new | old if old.get(name, "absent") != new.get(name, "absent")]:
        changes = (f"{name} {old.get(name, 'absent')} instead of {new.get(name, 'absent')}" for name in different)
        raise UserError(
            f"{path}: the folder holds a run of other settings ({', '.join(changes)}); choose another, or delete it"
        )


def read_named(kind: str, name: str, *above: str) -> tuple[str, dict[str, Any], str]:
    """Name, keys and source of a shipped recipe or preset, or of a YAML file.

    A file with a key `base` overrides keys of the file that it names (one next to it, or a shipped one). `above` are
    the files based on this one, to detect cycles.
    """
    if name in above:
        raise UserError(f"{kind}: {' is based on '.join((*above, name))}; remove one `base`")
    if name.endswith((".yaml", ".yml")):
        stem, keys, source = Path(name).stem, read_yaml(Path(name)), name
    elif name in names(kind):
        stem, keys, source = name, read_yaml(SHIPPED / kind / f"{name}.yaml"), f"{kind}/{name}.yaml"
    else:
        what, known = Path(kind).name[:-1], ", ".join(names(kind))
        of = f"{above[-1]}: base: " if above else ""
        raise UserError(f"{of}no {what} called '{name}': choose one of {known}, or give a YAML file")
    for section in sorted(SECTIONS & keys.keys()):
        if not isinstance(keys[section], dict) and (section, keys[section]) != ("augmentation", None):
            raise UserError(f"{source}: {section}: must hold keys; remove it if it has none")
    for key in ABOUT:
        keys.pop(key, None)
    if (base := keys.pop("base", None)) is not None:
        if not isinstance(base, str):
            raise UserError(
                f"{source}: base: must be the name of one of the {Path(kind).name}, or a YAML file, not {base!r}"
            )
        if base.endswith((".yaml", ".yml")):
            base = str((Path(name).parent / base).resolve())  # `..` and links must not hide a cycle
        keys = merge(read_named(kind, base, *above, name)[1], keys)
    return stem, keys, source


def refuse_filled_in(keys: Mapping[str, Any], source: str) -> None:
    """Raise UserError if a file sets a key that the run itself fills in."""
    for name in sorted(FILLED_IN & flat(keys).keys()):
        fix = "and give --seed (SEEDS=)" if name == "seed" else "as the run fills it in"
        raise UserError(f"{source}: {name}: this is not a setting of a recipe or preset; remove it, {fix}")


def validate(model: type[Settings], keys: Mapping[str, Any], source: str) -> Settings:
    """Validate `keys` as a `model`, such as Config.

    Raises UserError, beginning with `source`, for the first fault; for an unknown key, it suggests the closest one.
    """
    try:  # through JSON: strict types, but YAML's lists are accepted as tuples
        return model.model_validate_json(json.dumps(keys, default=str))
    except ValidationError as error:
        first, count, fault = error.errors()[0], error.error_count(), first_fault(error)
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            where = ".".join(map(str, first["loc"]))
            nearest = _nearest(where, list(schema(model, network_of(keys.get("model", {})))))
            hint = f"; did you mean {nearest}?" if nearest else ""
            if nearest == where:  # written with dots, as on the command line
                hint = f"; write `{where.replace('.', ': {')}: …{'}' * where.count('.')}`"
            fault = f"{where}: no such key{hint}"
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise UserError(f"{source}: {fault}{more}") from None


def first_fault(error: ValidationError, start: int = 0) -> str:
    """The first fault, after its location: keys, and list indices, which count from `start`."""
    first = error.errors()[0]
    where = ".".join(str(part + start) if isinstance(part, int) else part for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


def schema(model: type[BaseModel] = Config, network: str = UNNAMED) -> dict[str, dict[str, Any]]:
    """JSON schema of every key and section, by full name (training.optimizer.lr); the model has those of `network`."""
    whole, settings = model.model_json_schema(), TypeAdapter(NETWORKS[network]).json_schema()
    for kind in NETWORKS[network].__mro__:  # pydantic leaves out the docstrings of inherited settings
        for name, field in getattr(kind, "__pydantic_fields__", {}).items():
            if field.description:
                settings["properties"][name]["description"] = field.description

    def fields(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in section["properties"].items():
            yield prefix + name, field
            if (model, prefix, name) == (Config, "", "model"):
                yield from fields(settings, "model.")
            for part in (field, *field.get("anyOf", ())):
                if "$ref" in part:
                    yield from fields(whole["$defs"][part["$ref"].rpartition("/")[2]], f"{prefix}{name}.")

    return dict(fields(whole, ""))


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The most similar key, among siblings first, then anywhere; those of a network resemble no others."""
    section, _, key = name.rpartition(".")
    siblings = {full.rpartition(".")[2]: full for full in names if full.rpartition(".")[0] == section}
    anywhere = {full.rpartition(".")[2]: full for full in reversed(names)}
    for known in (siblings,) if section == "model" else (siblings, anywhere):
        if close := difflib.get_close_matches(key, known, 1):
            return known[close[0]]
    return None
