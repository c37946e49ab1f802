"""The network against numbers from the authors' code: those of tests/fixtures/parity, or of a folder PARITY_DIR.

Variants, sizes and full-precision values are read from the JSON files beside the arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Trace, bidirectional_targets
from hmerbench.models.layers import WordPosition, image_position
from tests.helpers.comer import VARIANTS, arrays, authors_model, sidecar
from tests.helpers.parity import alone, deviation, under, without_dropout

# Largest allowed deviation. The authors' own float32 noise: logits 4e-6, R 5e-6, attention 1e-6.
ABSOLUTE = {"features": 1e-5, "attention": 5e-6, "refinement": 2e-5, "logits": 2e-5, "loss": 1e-6, "angle": 1e-6}
# For training in float64: relative to the largest reference value. Stored arrays are rounded to float32 (6e-8).
RELATIVE = {"logits": 1e-6, "gradient": 1e-6, "gradient norm": 1e-9, "statistics": 1e-6, "parameters": 1e-6}
LOSS64 = 1e-10  # absolute, for the losses of five SGD steps, which are stored in full precision


COVERED = [name for name in VARIANTS if "R_layer2" in sidecar(f"{name}_eval")["arrays"]]


@dataclass
class Inputs:
    images: Tensor
    mask: Tensor
    sizes: Tensor
    labels: list[list[int]]
    inputs: Tensor
    outputs: Tensor


@pytest.fixture(scope="module")
def batch() -> Inputs:
    a = arrays("inputs")
    labels = [row[:n].tolist() for row, n in zip(a["labels"], a["label_lens"], strict=True)]
    return Inputs(a["images"], a["mask"].bool(), a["sizes"], labels, a["bi_tgt"], a["bi_out"])


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


def loss_of(logits_BTV: Tensor, outputs_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), outputs_BT.flatten(), ignore_index=0)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return deviation(ours, theirs) / max(theirs.double().abs().max().item(), 1e-30)


@torch.no_grad()
def traced(model: CoMER, batch: Inputs) -> tuple[Tensor, Trace]:
    trace: Trace = []
    features, mask = model.encode(batch.images.to(model.decoder.proj.weight.dtype), batch.mask)
    return model.decoder(features, mask, batch.inputs, trace), trace


def test_bidirectional_targets(batch: Inputs) -> None:
    inputs, outputs = bidirectional_targets(batch.labels)
    assert torch.equal(inputs, batch.inputs) and torch.equal(outputs, batch.outputs)


def test_positions() -> None:
    reference = arrays("posenc")
    mask = reference["feature_mask"].bool()
    widths = [int(key.rsplit("d", 1)[1]) for key in reference if key.startswith("word")]
    assert widths
    for width in widths:
        theirs = reference[f"word_pos_enc_d{width}"]
        ours = WordPosition(width)(torch.zeros_like(theirs))
        assert deviation(ours, theirs) <= ABSOLUTE["angle"]
        theirs = reference[f"img_pos_enc_d{width}"]
        assert deviation(image_position(mask, width), theirs) <= ABSOLUTE["angle"]


def test_evaluation(variant: str, batch: Inputs) -> None:
    model, reference = authors_model(variant), arrays(f"{variant}_eval")
    with torch.no_grad():
        features, mask = model.encode(batch.images, batch.mask)
    assert deviation(features, reference["encoder_features"]) <= ABSOLUTE["features"]
    assert torch.equal(mask, reference["encoder_mask"].bool())
    logits, trace = traced(model, batch)
    assert deviation(logits, reference["logits"]) <= ABSOLUTE["logits"]
    assert deviation(loss_of(logits, batch.outputs), reference["loss"]) <= ABSOLUTE["loss"]
    for number, layer in enumerate(trace, start=1):
        assert deviation(layer.attention, reference[f"cross_attn_layer{number}"]) <= ABSOLUTE["attention"]
        assert (layer.refinement is not None) == (f"R_layer{number}" in reference)
        if layer.refinement is not None:
            assert deviation(layer.refinement, reference[f"R_layer{number}"]) <= ABSOLUTE["refinement"]


def test_evaluation_in_float64(variant: str, batch: Inputs) -> None:
    reference, facts = arrays(f"{variant}_eval"), sidecar(f"{variant}_eval")
    logits, _ = traced(authors_model(variant).double(), batch)
    assert relative(logits, reference["f64/logits"]) <= RELATIVE["logits"]
    assert loss_of(logits, batch.outputs).item() == pytest.approx(facts["loss_f64"], abs=LOSS64, rel=0)


@torch.no_grad()
def test_every_image_alone(variant: str, batch: Inputs) -> None:
    model, reference = authors_model(variant), arrays(f"{variant}_eval")
    for i, label in enumerate(batch.labels):
        inputs, outputs = bidirectional_targets([label])
        features, mask = model.encode(*alone(batch.images, batch.sizes, i))
        logits = model.decoder(features, mask, inputs)
        assert deviation(features, reference[f"alone{i}_encoder_features"]) <= ABSOLUTE["features"]
        assert deviation(logits, reference[f"alone{i}_logits"]) <= ABSOLUTE["logits"]
        assert deviation(loss_of(logits, outputs), reference[f"alone{i}_loss"]) <= ABSOLUTE["loss"]


def test_training(variant: str, batch: Inputs) -> None:
    """Losses of five steps, gradients and batch-norm statistics of the first; float64, without dropout."""
    model, reference, facts = authors_model(variant), arrays(f"{variant}_train"), sidecar(f"{variant}_train")
    without_dropout(model)
    images = batch.images.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
    losses: list[float] = []
    for step in range(5):
        optimizer.zero_grad()
        logits = model.decoder(*model.encode(images, batch.mask), batch.inputs)
        loss = loss_of(logits, batch.outputs)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            assert relative(logits, reference["f64/logits"]) <= RELATIVE["logits"]
            check_first_step(model, reference, facts["gradnorm_f64"])
        optimizer.step()
    assert losses == pytest.approx(facts["losses_f64"], abs=LOSS64, rel=0)
    for name, parameter in model.named_parameters():
        norm = parameter.detach().norm()
        assert relative(norm, reference[f"f64/paramnorm_after5/{name}"]) <= RELATIVE["parameters"], name
    logits, _ = traced(model.eval(), batch)
    assert deviation(loss_of(logits, batch.outputs), reference["f64/eval_loss_after5"]) <= ABSOLUTE["loss"]


def check_first_step(model: CoMER, reference: dict[str, Tensor], gradient_norms: dict[str, float]) -> None:
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    assert parameters.keys() == gradient_norms.keys()
    gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    for name, norm in gradient_norms.items():
        # the absolute part is for the ARM's last bias, whose true gradient is 0 (softmax ignores a constant)
        expected = pytest.approx(norm, rel=RELATIVE["gradient norm"], abs=1e-12)
        assert gradients[name].norm().item() == expected, name
    full, statistics = under("f64/grad/", reference), under("f64/bn_after1/", reference)
    assert full and statistics.keys() == {name for name in buffers if "running" in name or "tracked" in name}
    for name, gradient in full.items():
        assert relative(gradients[name], gradient) <= RELATIVE["gradient"], name
    for name, statistic in statistics.items():
        assert relative(buffers[name], statistic) <= RELATIVE["statistics"], name


# The comparisons above must notice mistakes that are easy to make.


def without_refinement(arm: AttentionRefinement, seen_BCTL: Tensor, _: Tensor) -> Tensor:
    return seen_BCTL.new_zeros(len(seen_BCTL), arm.proj.out_channels, *seen_BCTL.shape[2:])


MISTAKES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "no refinement": ("coverage.AttentionRefinement.forward", without_refinement),
    "inclusive coverage": ("decoder.exclusive_coverage", lambda x_BCTL: x_BCTL.cumsum(-2)),
    "late coverage": ("decoder.exclusive_coverage", lambda x_BCTL: F.pad(x_BCTL, (0, 0, 2, 0))[:, :, :-2].cumsum(-2)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("variant", COVERED, indirect=True)
def test_comparison_notices(variant: str, batch: Inputs, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = authors_model(variant), arrays(f"{variant}_eval")
    name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(f"hmerbench.models.{name}", wrong)
    logits, trace = traced(model, batch)
    assert trace[1].refinement is not None
    assert deviation(trace[1].refinement, reference["R_layer2"]) > 100 * ABSOLUTE["refinement"]
    assert deviation(logits, reference["logits"]) > 100 * ABSOLUTE["logits"]
