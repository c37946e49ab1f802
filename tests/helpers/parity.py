"""Numbers from the authors' programs: the files of PARITY (CoMER) and PARITY_OTHERS, and their comparison.

Sizes, settings and names are read from the JSON beside each file; a file may hold a part of the arrays only.
"""

import io
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hmerbench.models.layers import Dropout
from tests.helpers.paths import PARITY_OTHERS


def sidecar(name: str, folder: Path = PARITY_OTHERS) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def arrays(name: str, folder: Path = PARITY_OTHERS) -> dict[str, Tensor]:
    path = folder / f"{name}.npz"
    content = path.read_bytes() if path.exists() else lzma.decompress(Path(f"{path}.xz").read_bytes())
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def sets(network: str, kind: str = "weights") -> list[str]:
    """The prefixes of a network's files."""
    names = sorted(path.name.removesuffix(f"_{kind}.json") for path in PARITY_OTHERS.glob(f"*_{kind}.json"))
    return [name for name in names if sidecar(f"{name}_{kind}")["network"].split()[0] == network]


def under(prefix: str, reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in reference.items() if key.startswith(prefix)}


def deviation(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return (ours.double() - theirs.double()).abs().max().item()


def under_authors_names(tensors: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """Tensors of our layers, or parts of them, under the authors' names: `names` has one or more for each layer."""
    renamed = {}
    for name, tensor in tensors.items():
        prefix = next(ours for ours in names if name.startswith(f"{ours}."))
        parts = tensor.chunk(len(names[prefix])) if tensor.ndim else (tensor,)
        renamed |= {theirs + name.removeprefix(prefix): x for theirs, x in zip(names[prefix], parts, strict=True)}
    return renamed


def close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], limit: float) -> None:
    """Compare what they have, relative to its largest value; of some tensors they have the first rows: `name[:64]`."""
    assert theirs
    for key, expected in theirs.items():
        name, _, rows = key.partition("[:")
        tensor = ours[name][: int(rows[:-1])] if rows else ours[name]
        largest = max(1.0, expected.double().abs().max().item())
        assert deviation(tensor.view(expected.shape), expected) <= limit * largest, key


def without_dropout(model: nn.Module) -> None:
    """Training as the authors' numbers have it: in float64, nothing dropped."""
    model.double().train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
