"""Import of the authors' Lightning checkpoints, without executing any code in them.

Such a file is one of torch.save. Its pickle may refer to any class or function: all are replaced by inert ones, but for
those that torch rebuilds tensors with; these give views of the file's numbers, which torch checks.
"""

import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import fields
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


class Stored(Inert):
    """A tensor in the file, or all numbers of one of its records."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class _Tensor(StandIn):
    def __new__(cls, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Any:
        if not (isinstance(storage, Stored) and isinstance(shape, tuple) and isinstance(strides, tuple)):
            return StandIn()
        if prod(shape) > storage.tensor.numel():  # torch lets a stride of 0 repeat a number
            raise ValueError("a tensor that extends beyond its numbers")
        return Stored(torch.as_strided(storage.tensor, shape, strides, offset))


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

    def __init__(self, content: bytes, archive: zipfile.ZipFile, records: Mapping[str, zipfile.ZipInfo]):
        super().__init__(io.BytesIO(content))
        self.archive, self.records = archive, records
        self.found: dict[str, type[StandIn]] = {}
        self.numbers: dict[str, bytearray] = {}  # by record, read once

    def find_class(self, module: str, name: str) -> Any:
        place = f"{module}.{name}"
        if place not in self.found:
            self.found[place] = type("StandIn", (_TENSORS.get(place, StandIn),), {"place": place})
        return self.found[place]

    def persistent_load(self, pid: Any) -> Any:
        """Pickle's hook: numbers, given as ("storage", the class of their storage, their record, device, size)."""
        if not (isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[2], str) and isinstance(pid[1], type)):
            raise ValueError("a reference to something else than numbers")
        module, _, kind = getattr(pid[1], "place", "").rpartition(".")
        record = self.records.get(f"data/{pid[2]}")
        if record is None:
            raise ValueError(f"the numbers {pid[2][:40]!r} are missing")
        if module != "torch" or kind not in DTYPES:
            return StandIn()
        if pid[2] not in self.numbers:
            self.numbers[pid[2]] = bytearray(self.archive.read(record))
        content, dtype = self.numbers[pid[2]], DTYPES[kind]
        return Stored(torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype))


def unpickled(path: Path) -> Any:
    """What a file of torch.save holds. Raises ValueError and whatever else broken content makes pickle, zipfile and
    torch raise."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        size, unpacked = path.stat().st_size, sum(record.file_size for record in records.values())
        if unpacked > MAX_GROWTH * size:
            raise ValueError(f"{size:,} bytes that unpack to {unpacked:,}")
        if (pickled := records.get("data.pkl")) is None:
            raise ValueError("it holds no data.pkl")
        if pickled.file_size > MAX_PICKLE:
            raise ValueError(f"its data.pkl has {pickled.file_size:,} bytes, far more than names and shapes need")
        content = archive.read(pickled)
        refuse_far_places(content)
        return _Unpickler(content, archive, records).load()


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
        return _network(ckpt, unpickled(ckpt))
    except CheckpointError:
        raise
    except Exception as error:  # a broken or hostile pickle can raise anything
        raise CheckpointError(f"{ckpt}: unreadable checkpoint ({one_line(error)}); download it again") from None


def _network(ckpt: Path, content: Any) -> CoMER:
    def mapping(key: str) -> Mapping[Any, Any]:
        value = content.get(key) if isinstance(content, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    state = {
        name.removeprefix(PREFIX): tensor.tensor
        for name, tensor in mapping("state_dict").items()
        if isinstance(name, str) and name.startswith(PREFIX) and isinstance(tensor, Stored)
    }
    if not state:
        raise CheckpointError(f"{ckpt}: no tensors named {PREFIX}*; give a checkpoint of the authors' CoMER")
    try:
        settings = _infer_settings(state, mapping("hyper_parameters"))
        classes = state["decoder.proj.weight"].shape[0]
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"{ckpt}: not a CoMER network, as no sizes can be inferred ({one_line(error)})") from None
    if classes != len(Vocabulary()):
        raise CheckpointError(f"{ckpt}: has {classes} classes, not the {len(Vocabulary())} of models/dictionary.txt")
    storages = {(held := tensor.untyped_storage()).data_ptr(): held.nbytes() for tensor in state.values()}
    if sum(tensor.nbytes for tensor in state.values()) > sum(storages.values()):
        raise ValueError("its tensors share their numbers")
    return with_weights(ckpt, lambda: CoMER(settings), state)


def _infer_settings(state: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> CoMERSettings:
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
