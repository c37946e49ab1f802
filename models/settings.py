"""The settings of every network and of language models: sizes and switches, and where the code is. Loads no torch."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.dataclasses import dataclass

from hmerbench.models.vocab import CROHME

MAX_STEPS = 500  # rows of the word table, a buffer of the authors' checkpoints


def _one_or_three(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:  # which would list the faults of either form
        raise ValueError(f"must be one or three whole numbers above 0, not {value!r}") from None


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError(f"must be odd, not {value}: a map keeps its size only then")
    return value


Three = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]  # JSON and YAML have no tuples
Depths = Annotated[PositiveInt | Three, WrapValidator(_one_or_three)]
Share = Annotated[float, Field(ge=0, le=0.99)]
STRICT = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

NETWORKS: dict[str, type["NetworkSettings"]] = {}  # by name: those below, and what settings_class has found elsewhere
UNNAMED = "comer"  # the network of settings that name none: they are older than the others


@dataclass(frozen=True, config=STRICT)
class NetworkSettings:
    """What every network's settings have. The defaults of a class are the published network.

    A docstring follows each setting: `hmerbench ls --keys` prints it. In brackets stands the source of the
    default: a section of the network's paper, its authors' program, or this suite (ours).
    """

    code: ClassVar[str]  # module:class of the network
    searcher: ClassVar[str]  # module:class of what reads images with it
    stepwise: ClassVar[str | None] = None  # module:class of what is exported of it; None: it cannot be exported
    sizes: ClassVar[dict[str, dict[str, Any]]]  # what the sizes named in presets mean for this network
    together: ClassVar[bool] = False  # whether its search reads with several networks at once

    network: str

    def __init_subclass__(cls) -> None:
        if name := vars(cls).get("network"):
            if "code" not in vars(cls):  # inherited, it would be the code of another network
                raise TypeError(f"{cls.__name__} must say where its network is, as in code: ClassVar = 'module:Class'")
            if lacking := [key for key in ("searcher", "sizes") if not hasattr(cls, key)]:
                raise TypeError(
                    f"{cls.__name__} must have {' and '.join(lacking)}, as those of models/settings.py have"
                )
            NETWORKS[name] = cls

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions in which the network can search."""
        return "both", "l2r", "r2l"

    @property
    def dense_layers(self) -> int:
        """Bottlenecks of all dense blocks; 0 without any."""
        return 0


@dataclass(frozen=True, config=STRICT)
class DenseNetSettings(NetworkSettings):
    """Settings of the DenseNet that reads images for every network of this suite."""

    growth_rate: PositiveInt = 24
    """channels added by each layer of a dense block (4.1)"""
    num_layers: Depths = 16
    """bottleneck layers in each of the three dense blocks, or a list of three numbers (4.1)"""
    stride: Literal[16, 8] = 16
    """width and height of a feature cell in pixels: 16, or 8 without the second pooling (program)"""
    encoder_dropout: Share = 0.2
    """of single values in dense blocks and transitions (4.1)"""

    @property
    def depths(self) -> tuple[int, ...]:
        """Bottlenecks in each of the three dense blocks."""
        return self.num_layers if isinstance(self.num_layers, tuple) else (self.num_layers,) * 3

    @property
    def dense_layers(self) -> int:
        """Bottlenecks of all three dense blocks."""
        return sum(self.depths)


_DENSENETS: dict[str, dict[str, Any]] = {
    # the first two are for tests; the others are named by their dense layers
    "nano": {"growth_rate": 4, "num_layers": 1},
    "micro": {"growth_rate": 6, "num_layers": 2},
    "dense18": {"growth_rate": 12, "num_layers": 6, "dropout": 0.1, "encoder_dropout": 0.0},
    "dense24": {"growth_rate": 16, "num_layers": 8, "dropout": 0.2, "encoder_dropout": 0.0},
    # the next two are for smaller images: few layers where maps are large, and a symbol covers two cells
    "dense14": {"growth_rate": 24, "num_layers": [2, 4, 8], "dropout": 0.1, "encoder_dropout": 0.0, "stride": 8},
    "dense28": {"growth_rate": 24, "num_layers": [4, 8, 16], "dropout": 0.1, "encoder_dropout": 0.0, "stride": 8},
}


def densenet_sizes(**decoders: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Settings by size: a DenseNet's and `dropout`, and a decoder's, which are given in the order of _DENSENETS."""
    rows = [dict(zip(decoders, row, strict=True)) for row in zip(*decoders.values(), strict=True)]
    return {name: _DENSENETS[name] | row for name, row in zip(_DENSENETS, rows, strict=True)} | {"published": {}}


@dataclass(frozen=True, config=STRICT)
class TransformerSettings(DenseNetSettings):
    """Settings of the Transformer decoder that CoMER and BTTR have in common (sections of CoMER's paper)."""

    stepwise: ClassVar = "hmerbench.models.stepwise:StepwiseCoMER"
    together: ClassVar = True

    d_model: Annotated[int, Field(gt=0, multiple_of=4)] = 256
    """channels of features and token embeddings; a multiple of 4 and of nhead (4.1)"""
    nhead: PositiveInt = 8
    """attention heads (4.1)"""
    num_decoder_layers: PositiveInt = 3
    """layers of the decoder; CoMER refines attention in all but the first (4.1)"""
    dim_feedforward: PositiveInt = 1024
    """hidden channels of a decoder layer (4.1)"""
    dropout: Share = 0.3
    """in the decoder (4.1)"""

    def __post_init__(self) -> None:
        if self.d_model % self.nhead:
            raise ValueError(f"nhead must divide d_model = {self.d_model}; {self.nhead} does not")


@dataclass(frozen=True, config=STRICT)
class CoMERSettings(TransformerSettings):
    """CoMER with fusion coverage (sections of its paper), and without coverage its "BTTR (baseline)"."""

    code: ClassVar = "hmerbench.models.comer:CoMER"
    searcher: ClassVar = "hmerbench.models.inference.joint_search:JointSearch"
    sizes: ClassVar = densenet_sizes(
        d_model=(16, 32, 96, 128, 128, 256),
        nhead=(2, 4, 4, 4, 4, 8),
        dim_feedforward=(32, 48, 384, 512, 512, 1024),
        dc=(4, 6, 16, 16, 16, 32),
    )

    network: Literal["comer"] = "comer"
    dc: PositiveInt = 32
    """hidden channels of the refinement module, whose kernel is 5 x 5 (4.1)"""
    cross_coverage: bool = True
    """refine attention by the previous layer's past attention; set by recipes (3.5.2)"""
    self_coverage: bool = True
    """refine attention by the same layer's past attention; set by recipes (3.5.1)"""


@dataclass(frozen=True, config=STRICT)
class BTTRSettings(TransformerSettings):
    """BTTR as first published, and its uni-directional variant."""

    code: ClassVar = "hmerbench.models.comer:BTTR"
    searcher: ClassVar = "hmerbench.models.inference.joint_search:BTTRSearch"
    sizes: ClassVar = {name: {k: v for k, v in keys.items() if k != "dc"} for name, keys in CoMERSettings.sizes.items()}

    network: Literal["bttr-original"] = "bttr-original"
    bidirectional: bool = True
    """learn to read right to left, too; set by recipes (ours)"""

    @property
    def directions(self) -> tuple[str, ...]:
        """One, if the network learns no other."""
        return super().directions if self.bidirectional else ("l2r",)


@dataclass(frozen=True, config=STRICT)
class RecurrentSettings(DenseNetSettings):
    """Settings of the recurrent decoder that DenseWAP and DenseWAP-TD have in common (their authors' programs)."""

    hidden: PositiveInt = 256
    """size of the recurrent state (program)"""
    attention: PositiveInt = 512
    """channels in which attention compares state, features and coverage (program)"""
    coverage_channels: PositiveInt = 512
    """of the convolution over past attention (program)"""
    coverage_kernel: Annotated[PositiveInt, AfterValidator(_odd)] = 11
    """width and height of that convolution in feature cells; odd (program)"""
    dropout: Share = 0.2
    """before the classifier (program)"""

    @property
    def directions(self) -> tuple[str, ...]:
        """One: nothing is read from right to left."""
        return ("l2r",)


@dataclass(frozen=True, config=STRICT)
class WAPSettings(RecurrentSettings):
    """Settings that DenseWAP shares with the networks built on it (its authors' program)."""

    searcher: ClassVar = "hmerbench.models.inference.densewap_search:DenseWAPSearch"
    stepwise: ClassVar = "hmerbench.models.stepwise:StepwiseDenseWAP"
    sizes: ClassVar = densenet_sizes(
        hidden=(16, 32, 96, 128, 256, 256),
        embedding=(16, 32, 96, 128, 256, 256),
        attention=(16, 24, 96, 128, 128, 256),
    )

    embedding: Annotated[int, Field(gt=0, multiple_of=2)] = 256
    """channels of token embeddings, and before maxout halves them; even (program)"""


@dataclass(frozen=True, config=STRICT)
class DenseWAPSettings(WAPSettings):
    """DenseWAP (its authors' program)."""

    code: ClassVar = "hmerbench.models.densewap:DenseWAP"

    network: Literal["densewap"] = "densewap"


@dataclass(frozen=True, config=STRICT)
class DenseWAPTDSettings(RecurrentSettings):
    """DenseWAP-TD (its authors' program)."""

    code: ClassVar = "hmerbench.models.densewap_td:DenseWAPTD"
    searcher: ClassVar = "hmerbench.models.inference.densewap_search:TreeSearch"
    sizes: ClassVar = densenet_sizes(
        hidden=(16, 32, 96, 128, 256, 256),
        attention=(16, 24, 96, 128, 128, 256),
        relation_hidden=(16, 32, 96, 128, 256, 256),
    )

    network: Literal["densewap-td"] = "densewap-td"
    hidden: Annotated[int, Field(gt=0, multiple_of=2)] = 256
    """size of the recurrent state and of symbol embeddings; even, as maxout halves it (program)"""
    relation_hidden: PositiveInt = 256
    """channels before the classifier of relations (program)"""


def settings_class(network: object) -> type[NetworkSettings] | None:
    """The settings of a network, None if there is no such network. Those of `my-net` may stand in models/my_net.py.

    Raises ValueError if that file cannot be imported, or its settings lack their decorator.
    """
    name = str(network)  # whatever stands there in a file
    module = name.replace("-", "_")
    if name not in NETWORKS and module.isidentifier() and find_spec(f"hmerbench.models.{module}"):
        try:
            import_module(f"hmerbench.models.{module}")
        except Exception as error:  # whatever its author wrote
            raise ValueError(f"models/{module}.py cannot be imported ({type(error).__name__}: {error})") from error
    settings = NETWORKS.get(name)
    if settings and "__pydantic_fields__" not in vars(settings):
        raise ValueError(f"decorate {settings.__name__} with pydantic's @dataclass(frozen=True, config=STRICT)")
    return settings


def without_former(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as stored, without those that are gone and had the same value in every run."""
    former = {"vocab_size": len(CROHME), "mask_padding": False}
    return {key: value for key, value in keys.items() if key not in former or value != former[key]}


def of_its_network(keys: Any) -> NetworkSettings:
    """Settings of the network that `network` names, of UNNAMED if it names none.

    Raises ValueError for an unknown network, pydantic's ValidationError for a key or value that its class refuses.
    """
    if isinstance(keys, NetworkSettings):
        return keys
    if not isinstance(keys, dict):
        raise ValueError("must hold keys")
    if (settings := settings_class(name := keys.get("network", UNNAMED))) is None:
        raise ValueError(f"no network called {name!r}; choose one of {', '.join(NETWORKS)}")
    return settings(**keys)


AnySettings = Annotated[SerializeAsAny[NetworkSettings], PlainValidator(of_its_network)]


@dataclass(frozen=True, config=STRICT)
class LanguageConfig:
    """Sizes and switches of a language model; the defaults are LSTM-Char-Small (Kim et al., AAAI-16, table 2)."""

    words: Literal["spelled", "table"] = "spelled"
    """a word's vector: from its characters, or a row of a table"""
    word_size: PositiveInt = 200
    """columns of that table"""
    character_size: PositiveInt = 15
    """numbers that stand for a character (table 2)"""
    widths: Annotated[int, Field(gt=0, le=65)] = 6
    """filters are 1 to this many characters wide (table 2)"""
    filters: PositiveInt = 25
    """for each character of a filter's width (table 2)"""
    most_filters: PositiveInt = 1000
    """of one width"""
    highways: Annotated[int, Field(ge=0)] = 1
    """highway layers above the filters (table 2)"""
    hidden: PositiveInt = 300
    """units of each LSTM layer (table 2)"""
    layers: Annotated[int, Field(gt=0, le=100)] = 2
    """LSTM layers (table 2)"""
    dropout: Share = 0.5
    """between LSTM layers and before the softmax"""
    input_dropout: Share = 0.0
    """of what the first LSTM layer reads; the authors drop none of it"""

    @property
    def filters_by_width(self) -> dict[int, int]:
        """How many filters there are of each width in characters."""
        return {width: min(self.most_filters, self.filters * width) for width in range(1, self.widths + 1)}
