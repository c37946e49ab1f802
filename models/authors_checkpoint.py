"""Import of the authors' Lightning checkpoints, without executing any code in them.

Such a file is one of torch.save. Its pickle may refer to any class or function: all are replaced by inert ones, but for
those that torch rebuilds tensors with; these give a `Stored`, whose place in the file was checked. No tensor is read
before it is asked for.
"""

import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmerbench.models.comer import CoMER
from hmerbench.models.files import CheckpointError, one_line, refuse_far_places
from hmerbench.models.settings import CoMERSettings
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import with_weights

MAX_PICKLE = 8 << 20  # bytes; the authors' have 0.3 MB
MAX_GROWTH = 10  # times the size of the file: torch.save does not compress
DTYPES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


class Inert:
    """What a pickle cannot change: not even the class, to which a pickle may give a state as well."""

    def __setstate__(*_: Any) -> None:
        pass


class StandIn(Inert, dict):
    """Replaces any class or function and what it makes: inert, but keeps the items of dict-like ones."""

    place = ""  # what it replaces, as module.name

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        """An empty one, whatever the arguments, but for a single dict."""
        made = dict.__new__(cls)
        made.update(*(given for given in arguments[:1] if isinstance(given, dict)))
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> "StandIn":
        """Another one: what it replaces may be called."""
        return StandIn()

    append = extend = add = Inert.__setstate__  # to list-like and set-like ones
    __hash__ = object.__hash__  # type: ignore[assignment]  # any object may be a key
    __eq__ = object.__eq__


@dataclass(frozen=True, eq=False)
class Storage(Inert):
    """A record of the file that holds numbers."""

    record: zipfile.ZipInfo
    dtype: torch.dtype

    def __len__(self) -> int:
        return self.record.file_size // self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Stored(Inert):
    """A tensor in the file: a view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if any(type(number) is not int or number < 0 for number in numbers) or len(self.shape) != len(self.strides):
            raise ValueError("a tensor of impossible shape")
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        if self.size and (last >= len(self.storage) or self.size > len(self.storage)):
            raise ValueError("a tensor that extends beyond its numbers")

    @property
    def size(self) -> int:
        return prod(self.shape)


class _Tensor(StandIn):
    def __new__(cls, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
        if not (isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
            return StandIn()
        return Stored(storage, offset, tuple(shape), tuple(strides))


class _First(StandIn):
    def __new__(cls, first: Any = None, *_: Any) -> Any:
        return first


class _Made(StandIn):
    def __new__(cls, make: Any, _type: Any, arguments: Any, *_: Any) -> Any:
        return make(*arguments) if isinstance(make, type) and issubclass(make, StandIn) else StandIn()


_TENSORS = {
    "torch._utils._rebuild_tensor": _Tensor,
    "torch._utils._rebuild_tensor_v2": _Tensor,
    "torch._utils._rebuild_parameter": _First,
    "torch._tensor._rebuild_from_type_v2": _Made,
}


class _Unpickler(pickle.Unpickler):
    """Python's, with nothing to call but inert classes made here, one for each name."""

    def __init__(self, content: bytes, records: Mapping[str, zipfile.ZipInfo]):
        super().__init__(io.BytesIO(content))
        self.records = records
        self.found: dict[str, type[StandIn]] = {}

    def find_class(self, module: str, name: str) -> Any:
        place = f"{module}.{name}"
        if place not in self.found:
            self.found[place] = type("StandIn", (_TENSORS.get(place, StandIn),), {"place": place})
        return self.found[place]

    def persistent_load(self, pid: Any) -> Any:
        """Pickle's hook: a storage, given as ("storage", its class, its record, device, size)."""
        if not (isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[2], str) and isinstance(pid[1], type)):
            raise ValueError("a reference to something else than numbers")
        module, _, name = getattr(pid[1], "place", "").rpartition(".")
        dtype, record = DTYPES.get(name if module == "torch" else ""), self.records.get(f"data/{pid[2]}")
        if record is None:
            raise ValueError(f"the numbers {pid[2][:40]!r} are missing")
        return StandIn() if dtype is None else Storage(record, dtype)


class StoredPickle:
    """A file of torch.save, open for reading. Raises ValueError and whatever else broken content makes pickle and
    zipfile raise."""

    def __init__(self, path: Path):
        self.archive = zipfile.ZipFile(path)
        self.size = path.stat().st_size
        self.records = {info.filename.partition("/")[2]: info for info in self.archive.infolist()}
        pickled = self.records.get("data.pkl")
        if pickled is None:
            raise ValueError("it holds no data.pkl")
        self._refuse_growth([pickled])
        if pickled.file_size > MAX_PICKLE:
            raise ValueError(f"its data.pkl has {pickled.file_size:,} bytes, far more than names and shapes need")
        content = self.archive.read(pickled)
        refuse_far_places(content)
        self.content: Any = _Unpickler(content, self.records).load()

    def __enter__(self) -> "StoredPickle":
        return self

    def __exit__(self, *_: object) -> None:
        self.archive.close()

    def tensors(self, stored: Mapping[str, Stored]) -> dict[str, Tensor]:
        """The tensors by name. ValueError if they would take much more memory than the file has bytes."""
        used = {tensor.storage.record.filename: tensor.storage for tensor in stored.values()}
        self._refuse_growth([storage.record for storage in used.values()])
        if sum(t.size * t.storage.dtype.itemsize for t in stored.values()) > sum(
            s.record.file_size for s in used.values()
        ):
            raise ValueError("its tensors share their numbers")
        numbers = {
            name: torch.frombuffer(bytearray(self.archive.read(storage.record)), dtype=storage.dtype)
            for name, storage in used.items()
            if len(storage)
        }
        return {
            name: torch.as_strided(numbers[t.storage.record.filename], t.shape, t.strides, t.offset)
            if t.size
            else torch.empty(t.shape, dtype=t.storage.dtype)
            for name, t in stored.items()
        }

    def _refuse_growth(self, records: list[zipfile.ZipInfo]) -> None:
        unpacked = sum(record.file_size for record in records)
        if unpacked > MAX_GROWTH * self.size:
            raise ValueError(f"{self.size:,} bytes that unpack to {unpacked:,}")


# ----------------------------------------------------------------------------------------------- the authors' networks


PREFIX = "comer_model."  # of the network's tensors; a checkpoint holds others, too


def import_lightning(ckpt: Path) -> CoMER:
    """The network in a Lightning checkpoint of the authors.

    Sizes are inferred from tensor shapes, and what these leave open (dropout, which of the two coverages, heads if
    there is no coverage) from the stored hyperparameters. Nothing in the file is executed. Raises CheckpointError for
    unreadable files and for missing, unexpected or mis-shaped tensors.
    """
    if not ckpt.is_file():
        raise CheckpointError(f"{ckpt}: there is no such file; give the path of a Lightning checkpoint (.ckpt)")
    if not zipfile.is_zipfile(ckpt):
        raise CheckpointError(f"{ckpt}: damaged, or not a checkpoint of torch 1.6 or later; download it again")
    try:
        with StoredPickle(ckpt) as file:
            return _network(ckpt, file)
    except CheckpointError:
        raise
    except Exception as error:  # a broken or hostile pickle can raise anything
        raise CheckpointError(f"{ckpt}: unreadable checkpoint ({one_line(error)}); download it again") from None


def _network(ckpt: Path, file: StoredPickle) -> CoMER:
    def mapping(key: str) -> Mapping[Any, Any]:
        value = file.content.get(key) if isinstance(file.content, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    stored = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in mapping("state_dict").items()
        if isinstance(name, str) and name.startswith(PREFIX) and isinstance(tensor, Stored)
    }
    if not stored:
        raise CheckpointError(f"{ckpt}: no tensors named {PREFIX}*; give a checkpoint of the authors' CoMER")
    try:
        settings = _infer_settings(stored, mapping("hyper_parameters"))
        classes = stored["decoder.proj.weight"].shape[0]
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{ckpt}: not a CoMER network, as no sizes can be inferred ({one_line(error)})") from None
    if classes != len(Vocabulary()):
        raise CheckpointError(f"{ckpt}: has {classes} classes, not the {len(Vocabulary())} of models/dictionary.txt")
    return with_weights(ckpt, lambda: CoMER(settings), file.tensors(stored))


def _infer_settings(state: Mapping[str, Stored], hyperparameters: Mapping[str, Any]) -> CoMERSettings:
    """The settings, from tensor shapes and the checkpoint's hyperparameters."""

    def count(pattern: str) -> int:
        return len({match[0] for name in state if (match := re.match(pattern, name))})

    layers = tuple(count(rf"encoder\.model\.dense{block}\.\d+\.") for block in (1, 2, 3))
    names = [field.name for field in fields(CoMERSettings)]
    known: dict[str, Any] = {
        name: hyperparameters[name] for name in names if isinstance(hyperparameters.get(name), int | float)
    }
    known |= {
        "d_model": state["encoder.feature_proj.weight"].shape[0],
        "growth_rate": state["encoder.model.dense1.0.conv2.weight"].shape[0],
        "num_layers": layers[0] if len(set(layers)) == 1 else layers,
        "num_decoder_layers": count(r"decoder\.model\.layers\.\d+\."),
        "dim_feedforward": state["decoder.model.layers.0.linear1.weight"].shape[0],
    }
    conv = state.get("decoder.model.arm.conv.weight")
    if conv is None:
        known["cross_coverage"] = known["self_coverage"] = False
        return CoMERSettings(**known)
    known["dc"], known["nhead"] = conv.shape[0], state["decoder.model.arm.proj.weight"].shape[0]
    if conv.shape[1] == 2 * known["nhead"]:
        known["cross_coverage"] = known["self_coverage"] = True
    elif known.get("cross_coverage") == known.get("self_coverage"):
        raise ValueError("one coverage, and no hyperparameter says which")
    return CoMERSettings(**known)
