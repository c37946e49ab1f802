"""The settings of a run: a recipe (a row of the paper's tables), a preset (how much to spend) and a seed fix them all.

The defaults *are* the authors' training (CoMER's released program). A preset changes how much is spent, a recipe
selects the row of the table; resolve.py makes settings of these files.

What stands below a setting is its meaning, which `ls --keys` lists with its type and range, and the source of its
default: "4.1" is a section of the paper (CoMER, ECCV 2022), "program" the authors' released program, where the paper is
silent or differs, "ours" a setting of this suite, whose default keeps the authors' behaviour.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hmerbench.benchmarks.paths import here_or_in_checkout
from hmerbench.benchmarks.strict_files import merge, nested, to_yaml, validate
from hmerbench.evaluation.datasets import crohme, sizes_of
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.settings import MAX_STEPS, AnySettings, of_its_network
from hmerbench.models.vocab import Vocabulary

SCHEMA = 8  # version of the settings below: raise it when one is removed, changes its meaning or is added, but for one
# with `exclude_if`, which leaves the digests of earlier runs as they are
SEED_LIMIT = 2**64  # torch takes smaller seeds
FILLED_IN = {  # by the run
    *("schema_version", "recipe", "preset", "seed", "data.name", "data.digest", "data.ink"),
    "augmentation.scale_of_others",
    *("search.language.digest", "search.together.digests", "start.weights", "start.digest"),
    *("text.name", "text.digest"),  # of a language model
}
AUTHORS_MAX_PIXELS, AUTHORS_MAX_TOKENS = sizes_of().max_area, sizes_of().max_tokens
SCALE = (0.7, 1.4)  # the authors' range of scale augmentation
NEED_INK = ("sub_expressions", "exchanged", "substitution")  # the keys of `data` for which pen strokes are needed
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
    """longer captions are not trained on (program)"""
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
        return any(getattr(self, key) for key in NEED_INK)


class Augmentation(Strict):
    """Random distortions of a training image: `scale` is a range, `thickness` a probability, the others half-widths of
    uniform draws."""

    scale: tuple[Factor, Factor] | None = SCALE
    """range of the factor, the same for width and height; null: no scaling (4.1)"""
    # of a recipe without scaling, its preset's, so that it takes as many steps as the others; left out as in Training
    scale_of_others: tuple[Factor, Factor] = Field(default=SCALE, exclude_if=lambda scale: scale == SCALE)
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
        for scale in (self.scale, self.scale_of_others):
            if scale and scale[0] > scale[1]:
                raise ValueError(f"scale is a range, the smaller factor first, not {list(scale)}")
        return self

    @property
    def only_scale(self) -> bool:
        """Whether this is the authors' augmentation, which uses their exact resize."""
        return not (self.stretch or self.rotation or self.shear or self.elastic or self.thickness)


class Batching(Strict):
    """How images are batched: order `area` is the authors' (batches of like area, fixed, in an order that is shuffled),
    `shape` pads to a few shapes."""

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
    """n: epoch e < n trains on the shortest (e + 1) / (n + 1) of captions only (ours)"""


class Optimizer(Strict):
    """The optimizer and its settings."""

    name: Literal["sgd", "adadelta", "adamw", "muon"] = "sgd"
    """sgd, without Nesterov momentum | adadelta, of BTTR's authors | adamw | muon (4.1)"""
    lr: float = Field(default=0.08, gt=0, le=1000)
    """initial learning rate, or its peak after a warmup, for one step of all micro-batches (4.1)"""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """for adadelta: rho; for adamw and muon: beta1 (beta2 is 0.99) (4.1)"""
    weight_decay: float = Field(default=1e-4, ge=0)
    """of all parameters; for adamw and muon not of biases and normalization (4.1)"""
    clip: float | None = Field(default=None, gt=0)
    """maximum gradient norm; null: no clipping (program)"""


class Schedule(Strict):
    """How the learning rate changes in a training."""

    name: Literal["plateau", "cosine"] = "plateau"
    """plateau: times `factor` when validation stops improving | cosine: decays to 0 (program)"""
    factor: float = Field(default=0.25, gt=0, lt=1)
    """for plateau: factor of the learning rate (program)"""
    patience: int = Field(default=10, ge=0)
    """for plateau: validations without improvement before the factor is applied (program)"""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """share of the steps in which the learning rate rises to its peak (program)"""


class Training(Strict):
    """Length, batches, optimizer and precision of a training, when it is validated and when it ends."""

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
    """A language model that rescores what a search found. `digest` is filled in from its file."""

    weights: str = ""
    """its weights file, from `reproduce-lm --recipes captions`; '': none (ours)"""
    digest: str = ""
    weight: float = Field(default=0.0, ge=0)
    """of its log-probability, relative to that of one direction of the search (ours)"""
    length: float = 0.0
    """added to the score for each token (ours)"""

    @model_validator(mode="after")
    def _has_weights(self) -> "Language":
        if (self.weight or self.length) and not self.weights:
            raise ValueError("weight and length are of a language model: name its `weights`")
        return self

    @property
    def path(self) -> Path:
        """Where its weights are: in the current folder, or in the checkout."""
        return here_or_in_checkout(self.weights)


class Start(Strict):
    """The weights that a training starts from, none by default: whose they are, and the digest of their file."""

    weights: str = ""
    digest: str = ""

    @property
    def clause(self) -> str:
        """For people: ", starting from …"; nothing for a training from scratch."""
        return f", starting from the weights of {self.weights} (SHA-256 {self.digest[:16]}…)" * bool(self.digest)


class Together(Strict):
    """Other networks that read together with a run's own: the folders of their runs. `digests` of their weights are
    filled in."""

    runs: tuple[str, ...] = ()
    """folders of their runs (ours)"""
    digests: tuple[str, ...] = ()

    @property
    def folders(self) -> list[Path]:
        """Where these are: in the current folder, or in the checkout."""
        return [here_or_in_checkout(run) for run in self.runs]

    @property
    def weights(self) -> list[Path]:
        """Their selected epochs' weights."""
        return [folder / "best.safetensors" for folder in self.folders]


class Search(Strict):
    """Approximate joint search (paper sec. 4.1, BTTR sec. 4.3) and how images are grouped for it."""

    beam_size: int = Field(default=10, gt=0)
    """hypotheses per direction (program)"""
    max_len: int = Field(default=200, gt=1, le=MAX_STEPS)
    """maximum tokens of a hypothesis, including the start token; DenseWAP-TD: its symbols (program)"""
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
    """a language model that takes part in ranking hypotheses; recognition/predict.py says how"""
    together: Together = Field(default=Together(), exclude_if=lambda together: not together.runs)
    """other networks that read together with the run's own; recognition/predict.py says how"""

    @property
    def options(self) -> SearchOptions:
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

    if TYPE_CHECKING:  # in the place of each kind's own
        schema_version: int
        recipe: str
        seed: int

        @property
        def run_name(self) -> str:
            """The run's folder below runs/."""
            ...

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
    def _sections_fit_together(self) -> "Config":
        if self.select == "last" and (self.training.schedule.name == "plateau" or self.training.early_stop):
            raise ValueError("select: last never validates, so plateau and early_stop cannot work; use cosine")
        if 2 * self.search.beam_size > (classes := len(Vocabulary())):
            raise ValueError(f"search.beam_size must be at most {classes // 2}, half of the classes")
        if self.search.direction not in (directions := self.model.directions):
            raise ValueError(f"search.direction must be {' or '.join(directions)}; the network learns no other")
        if self.search.together.runs and not self.model.together:
            raise ValueError(f"search.together: {self.model.network} reads alone; leave it out")
        return self

    @property
    def name(self) -> str:
        """RECIPE/PRESET-seedN."""
        return f"{self.recipe}/{self.preset}-seed{self.seed}"

    @property
    def run_name(self) -> str:
        """RECIPE/PRESET-seedN-DIGEST: the run's folder below runs/."""
        return f"{self.name}-{self.digest}"


def digest_of_keys(keys: Mapping[str, Any]) -> str:
    """Eight hex digits over the canonical JSON of settings."""
    text = json.dumps(keys, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
