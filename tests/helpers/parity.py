"""Numbers from the authors' programs: the files of PARITY (CoMER) and PARITY_OTHERS, and their comparison.

Sizes, settings and names are read from the JSON beside each file; a file may hold a part of the arrays only.
"""

import io
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hmerbench.models.layers import Dropout
from tests.helpers.paths import PARITY_OTHERS

AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)


def sidecar(name: str, folder: Path = PARITY_OTHERS) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


@cache
def arrays(name: str, folder: Path = PARITY_OTHERS) -> dict[str, Tensor]:
    """Of a file, which is read once: nobody writes into them."""
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


def alone(images: Tensor, sizes: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Image i of a batch without padding, and its mask."""
    height, width = sizes[i].tolist()
    return images[i : i + 1, :, :height, :width], torch.zeros(1, height, width, dtype=torch.bool)


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


# ------------------------------------------------------------------------------------ DenseWAP and DenseWAP-TD, alike


GRADIENT = 1e-8  # relative
CLIP, LOUD = 100.0, 10_000  # largest gradient norm; the loss is multiplied so that it is exceeded
Names = Mapping[str, Sequence[str]]
Losses = Callable[[Any], Tensor]  # of a network, that it learns from first


def with_authors_weights(model: AnyNetwork, name: str, names: Names) -> AnyNetwork:
    """The network with the authors' weights, in evaluation mode."""
    weights, ours = arrays(f"{name}_weights"), under_authors_names(model.state_dict(), names)  # views
    assert ours.keys() == weights.keys()
    for key, tensor in ours.items():
        tensor.copy_(weights[key].view(tensor.shape))
    assert sum(p.numel() for p in model.parameters()) == sidecar(f"{name}_weights")["n_parameters"]
    return model.eval()


def recurrent_settings(c: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings of what the authors' two programs have in common."""
    shared = {"growth_rate": c["growthRate"], "num_layers": c["layers_per_block"], "hidden": c["n"]}
    coverage = {key: c[key] for key in ("coverage_channels", "coverage_kernel")}
    return {**shared, **coverage, "attention": c["dim_attention"]}


def adadelta(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.9, eps=1e-6, weight_decay=1e-4)


def parameters(model: nn.Module, names: Names) -> dict[str, Tensor]:
    return under_authors_names({key: p.detach() for key, p in model.named_parameters()}, names)


def gradients(model: nn.Module, names: Names) -> dict[str, Tensor]:
    return under_authors_names({key: p.grad for key, p in model.named_parameters() if p.grad is not None}, names)


def check_training(
    model: nn.Module,
    names: Names,
    losses: Losses,
    expected: Tensor,
    reference: Mapping[str, Tensor],
    facts: dict[str, Any],
) -> None:
    """Losses of all steps; gradients and batch-norm statistics of the first; float64, without dropout."""
    without_dropout(model)
    optimizer, total_norms = adadelta(model), list[float]()
    for number, theirs in enumerate(expected, start=1):
        optimizer.zero_grad()
        found = losses(model)
        found[0].backward()
        torch.testing.assert_close(found.detach(), theirs, rtol=0, atol=GRADIENT)
        total_norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        if number == 1:
            first, buffers = gradients(model, names), under_authors_names(dict(model.named_buffers()), names)
            assert first.keys() == {*facts["parameter_names"], *facts.get("left_out", ())}
            # absolute: a bias of all energies has no gradient but rounding
            same_norms(first, facts["parameter_names"], reference["f64/gradnorms"], 1e-12)
            close(first, under("f64/grad/", reference), GRADIENT)
            close(buffers, under("f64/bn/", reference), GRADIENT)
            for kind in ("mean", "var"):
                layers = [f"{key}.running_{kind}" for key in facts["bn_names"]]
                same_norms(buffers, layers, reference[f"f64/bn_{kind}_norms"], 0)
        optimizer.step()
        if after := under(f"f64/after{number}/", reference):
            close(parameters(model, names), after, GRADIENT)
    if "f64/total_gradnorm" in reference:
        assert total_norms == pytest.approx(reference["f64/total_gradnorm"].tolist(), rel=GRADIENT)
    if (after := reference.get(f"f64/paramnorms_after{len(total_norms)}")) is not None:
        same_norms(parameters(model, names), facts["parameter_names"], after, 1e-10)


def same_norms(tensors: Mapping[str, Tensor], names: Sequence[str], theirs: Tensor, absolute: float) -> None:
    ours = torch.stack([tensors[key].norm() for key in names])
    torch.testing.assert_close(ours, theirs, rtol=GRADIENT, atol=absolute)


def check_clipped_step(model: nn.Module, names: Names, losses: Losses, reference: Mapping[str, Tensor]) -> None:
    """A step whose gradient is too long."""
    without_dropout(model)
    (losses(model)[0] * LOUD).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
    assert norm > CLIP and norm == pytest.approx(reference["f64/clip/total_gradnorm"].item(), rel=GRADIENT)
    close(gradients(model, names), under("f64/clip/grad/", reference), GRADIENT)
    adadelta(model).step()
    close(parameters(model, names), under("f64/clip/after1/", reference), GRADIENT)


def check_published(model: nn.Module, names: Names, facts: dict[str, Any]) -> None:
    """Number, shapes, constants, spread and bounds of the parameters after initialisation."""
    assert sum(p.numel() for p in model.parameters()) == facts["n_parameters"]
    ours = parameters(model, names)
    assert ours.keys() == facts["parameters"].keys()
    for key, theirs in facts["parameters"].items():
        tensor = ours[key].view(theirs["shape"])
        if theirs["std"] == 0:
            assert (tensor == theirs["mean"]).all(), key
            continue
        spread = min(0.1, max(0.02, 2 / tensor.numel() ** 0.5))
        assert tensor.std().item() == pytest.approx(theirs["std"], rel=spread), key
        if not key.startswith("emb"):  # whose values are normal, and have no bound
            assert tensor.abs().max().item() == pytest.approx(theirs["max_abs"], rel=max(0.01, 12 / tensor.numel()))
