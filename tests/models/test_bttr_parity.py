"""BTTR against numbers from the authors' program: those of tests/fixtures/parity_others, or of PARITY_OTHERS_DIR.

Sizes, settings and full-precision values are read from the JSON files beside the arrays. The committed files lack one
large array.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hmerbench.benchmarks.config import Optimizer
from hmerbench.benchmarks.training.optimizer import make_optimizer
from hmerbench.models.comer import BTTR
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.joint_search import BTTRSearch
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.layers import WordPosition, image_position, sinusoids
from hmerbench.models.settings import BTTRSettings
from hmerbench.models.vocab import Vocabulary
from tests.helpers import parity
from tests.helpers.parity import alone, deviation, under, without_dropout
from tests.helpers.paths import PARITY_OTHERS

# Largest allowed deviation from the authors' float32, whose own noise is: features 4e-6, logits 6e-6, sums 1e-5.
FLOAT32 = {"features": 1e-5, "logits": 2e-5, "loss": 1e-6, "position": 1e-6, "sum": 1e-4}
FLOAT64 = {"evaluation": 1e-10, "loss": 1e-8, "gradient norm": 1e-8, "parameters": 1e-6}  # the last two are relative


def sidecar(kind: str) -> dict[str, Any]:
    return parity.sidecar(f"bttr-original_{kind}")


def arrays(kind: str) -> dict[str, Tensor]:
    return parity.arrays(f"bttr-original_{kind}")


def own(name: str) -> str:
    """Our name of the authors' parameter."""
    return name.replace("encoder.feature_proj.0.", "encoder.feature_proj.")


def authors_model(**changes: Any) -> BTTR:
    """Our network with the authors' weights, in float32 and evaluation mode. The words have no meaning."""
    facts = sidecar("weights")
    words = Vocabulary([str(i) for i in range(facts["vocab_size"])])
    model = BTTR(BTTRSettings(**{**facts["config"], **changes}), words)
    model.load_state_dict({own(name): tensor for name, tensor in arrays("weights").items()})  # strict
    assert sum(p.numel() for p in model.parameters()) == facts["n_parameters"]
    return model.eval()


def captions(reference: dict[str, Tensor]) -> list[list[str]]:
    return [
        [str(i) for i in row[:n]] for row, n in zip(reference["labels"].tolist(), reference["label_len"], strict=True)
    ]


def test_positions() -> None:
    reference = arrays("posenc")
    width = sidecar("posenc")["config"]["d_model"]
    words = {key: theirs for key, theirs in reference.items() if key.startswith("word")}
    images = {key: theirs for key, theirs in reference.items() if key.startswith("full")}
    assert words and images
    for theirs in words.values():
        ours = WordPosition(theirs.shape[-1])(torch.zeros_like(theirs)[None])[0]
        assert deviation(ours, theirs) <= FLOAT32["position"]
    for theirs in images.values():
        mask = torch.zeros(1, *theirs.shape[:2], dtype=torch.bool)
        assert deviation(image_position(mask, theirs.shape[-1], paired=False)[0], theirs) <= FLOAT32["position"]
    ours = image_position(reference["padded_mask"].bool(), width, paired=False)
    assert deviation(ours, reference["padded"]) <= FLOAT32["position"]


@torch.no_grad()
def outputs(model: BTTR, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the network makes of the batch."""
    images, mask = reference["images"].to(model.decoder.proj.weight.dtype), reference["mask"].bool()
    targets = model.targets(captions(reference))
    features, cells = model.encode(images, mask)
    logits, _ = model.teacher_forced(images, mask, targets)
    return {"features": features, "mask": cells, "logits": logits, "loss": model(images, mask, targets)}


def test_evaluation() -> None:
    reference, model = arrays("eval"), authors_model()
    inputs, truth = model.targets(captions(reference))
    assert torch.equal(inputs, reference["bi_tgt"]) and torch.equal(truth, reference["bi_out"])
    ours = outputs(model, reference)
    assert torch.equal(ours["mask"], reference["encoder_mask"].bool())
    assert deviation(ours["features"], reference["encoder_features"]) <= FLOAT32["features"]
    assert deviation(ours["logits"], reference["logits"]) <= FLOAT32["logits"]
    assert deviation(ours["loss"], reference["loss"]) <= FLOAT32["loss"]


@pytest.mark.parametrize(("directions", "loss"), [(2, "loss_f64"), (1, "loss_l2r_f64")])
def test_evaluation_in_float64(directions: int, loss: str) -> None:
    """Uni-directional training has the loss of one direction."""
    reference = arrays("eval")
    ours = outputs(authors_model(bidirectional=directions == 2).double(), reference)
    theirs = reference["f64/logits"].chunk(2)[:directions]
    assert deviation(ours["logits"], torch.cat(theirs)) <= FLOAT64["evaluation"]
    if "f64/encoder_features" in reference:
        assert deviation(ours["features"], reference["f64/encoder_features"]) <= FLOAT64["evaluation"]
    assert ours["loss"].item() == pytest.approx(sidecar("eval")[loss], abs=FLOAT64["evaluation"], rel=0)


@torch.no_grad()
def test_every_image_alone() -> None:
    reference, facts, model = arrays("eval"), sidecar("eval"), authors_model()
    for i, caption in enumerate(captions(reference)):
        image, targets = alone(reference["images"], reference["sizes"], i), model.targets([caption])
        features, _ = model.encode(*image)
        logits, _ = model.teacher_forced(*image, targets)
        assert deviation(features, reference[f"alone{i}_encoder_features"]) <= FLOAT32["features"]
        assert deviation(logits, reference[f"alone{i}_logits"]) <= FLOAT32["logits"]
        assert model(*image, targets).item() == pytest.approx(facts["loss_alone_f64"][i], abs=FLOAT32["loss"])


def test_five_steps_of_adadelta() -> None:
    """Training in float64 without dropout; logits, gradients and statistics are those of the first step."""
    batch, reference, facts, model = arrays("eval"), arrays("train"), sidecar("train"), authors_model()
    without_dropout(model)
    names = [own(name) for name in facts["parameter_names"]]
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    assert sorted(names) == sorted(parameters)
    inputs = batch["images"].double(), batch["mask"].bool(), model.targets(captions(batch))
    optimizer = make_optimizer(model, Optimizer(name="adadelta", lr=1.0))
    losses: list[float] = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        losses.append(loss.item())
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        optimizer.step()
        if step == 0:
            norms = torch.stack([gradients[name].norm() for name in names])
            torch.testing.assert_close(norms, reference["f64/gradnorms"], rtol=FLOAT64["gradient norm"], atol=1e-12)
            check(gradients, under("f64/grad/", reference))
            check(buffers, under("f64/bn/", reference))
            check(parameters, under("f64/after1/", reference))
    assert losses == pytest.approx(facts["losses_f64"], abs=FLOAT64["loss"], rel=0)
    check(parameters, under("f64/after5/", reference))
    norms = torch.stack([parameters[name].detach().norm() for name in names])
    torch.testing.assert_close(norms, reference["f64/paramnorms_after5"], rtol=FLOAT64["parameters"], atol=0)


def check(ours: Mapping[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Tensors are equal, relative to the largest value of each."""
    assert theirs
    for name, expected in theirs.items():
        limit = FLOAT64["parameters"] * expected.abs().max().item()
        assert deviation(ours[own(name)], expected) <= limit, name


# --------------------------------------------------------------------------------------------- the search

SETTINGS = sidecar("beam")["searches"]


@cache
def reader(added: float) -> BTTRSearch:
    """With that much added to the output bias of ids 1 and 2."""
    model = authors_model()
    with torch.no_grad():
        model.decoder.proj.bias[[1, 2]] += added
    return BTTRSearch(model)


def searched(setting: str, image: int, **changes: Any) -> list[Hypothesis]:
    """Our hypotheses of one image alone."""
    facts = SETTINGS[setting]
    # our `max_len` counts the start token
    options = {"beam_size": facts["beam_size"], "max_len": facts["max_len"] + 1, "alpha": facts["alpha"], **changes}
    batch, read = arrays("eval"), reader(facts["added_to_output_bias_of_ids_1_and_2"])
    return read([alone(batch["images"], batch["sizes"], image)], SearchOptions(**options))[0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_hypothesis_and_its_scores(setting: str) -> None:
    alpha, reference = SETTINGS[setting]["alpha"], arrays("beam")
    for image, facts in SETTINGS[setting]["images"].items():
        theirs = under(f"{setting}/image{image}/", reference)
        ours = {(h.direction, h.ids): h for h in searched(setting, int(image))}
        assert len(ours) == len(theirs["lens"])
        columns = (theirs[name].tolist() for name in ("seqs", "lens", "forward_sum", "backward_sum", "final"))
        for n, (ids, length, forward, reverse, score) in enumerate(zip(*columns, strict=True)):
            hypothesis = ours["l2r" if n < theirs["n_l2r"] else "r2l", tuple(ids[:length])]
            sums = [max(length, 1) ** alpha * part for part in (hypothesis.forward, hypothesis.reverse)]
            assert sums == pytest.approx([forward, reverse], abs=FLOAT32["sum"], rel=0)
            assert hypothesis.score == pytest.approx(score, abs=FLOAT32["sum"], rel=0)
        best = next(iter(ours.values()))
        assert best.ids == tuple(facts["best_seq"]) and best.score == max(h.score for h in ours.values())


@pytest.mark.parametrize("direction", ["l2r", "r2l"])
def test_search_of_the_uni_directional_network(direction: str) -> None:
    """It returns what the search of one direction finds, without the other's opinion."""
    for setting, facts in SETTINGS.items():
        for image, expected in facts["images"].items():
            best, *_ = searched(setting, int(image), direction=direction)
            assert best.ids == tuple(expected[f"{direction}_only_best_seq"]) and best.reverse == 0


def test_choice_by_other_lengths() -> None:
    for image, facts in SETTINGS["main"]["images"].items():
        for alpha, expected in facts["best_seq_by_alpha"].items():
            assert searched("main", int(image), alpha=float(alpha))[0].ids == tuple(expected)


def test_search_refuses_what_it_cannot_do() -> None:
    model = authors_model()
    with pytest.raises(ValueError, match="beam_size must be at most"):
        searched("short", 0, beam_size=len(model.vocabulary))
    with pytest.raises(ValueError, match="training mode"):
        BTTRSearch(model.train())


# --------------------------------------------------------------------------------------- published size


def test_published_size_and_initialization() -> None:
    """Shapes, constants and spread of every parameter; the authors' are one draw."""
    facts = json.loads((PARITY_OTHERS / "published_init.json").read_text())["bttr"]
    torch.manual_seed(5)
    model = BTTR(BTTRSettings())
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    assert sum(p.numel() for p in parameters.values()) == facts["n_parameters"]
    assert parameters.keys() == {own(name) for name in facts["parameters"]}
    for name, theirs in facts["parameters"].items():
        ours = parameters[own(name)]
        assert list(ours.shape) == theirs["shape"], name
        if theirs["std"] == 0:
            assert torch.equal(ours, torch.full_like(ours, theirs["mean"])), name
            continue
        noise = theirs["std"] / ours.numel() ** 0.5  # of the mean; that of a deviation is smaller
        assert ours.mean().item() == pytest.approx(theirs["mean"], abs=8 * noise), name
        assert ours.std().item() == pytest.approx(theirs["std"], abs=6 * noise), name
        assert ours.abs().max().item() == pytest.approx(theirs["max_abs"], rel=0.3 if "embed" in name else 0.05), name
    layers = [list(layer.parameters()) for layer in model.decoder.model.layers]
    assert all(torch.equal(first, other) for layer in layers for first, other in zip(layers[0], layer, strict=True))


# ------------------------------------------------- the comparisons must notice mistakes that are easy to make


def cosine_first(position: Tensor, width: int, paired: bool = True) -> Tensor:
    return sinusoids(position, width, paired).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def height_first(mask: Tensor, width: int, paired: bool) -> Tensor:
    return image_position(mask, width, paired).roll(width // 2, -1)


MISTAKES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "CoMER's wavelengths": ("comer.image_position", lambda mask, width, paired: image_position(mask, width)),
    "height first": ("comer.image_position", height_first),
    "cosine first": ("layers.sinusoids", cosine_first),
    "no ReLU": ("comer.F.relu", lambda x: x),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_comparison_notices(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = authors_model(), arrays("eval")
    name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(f"hmerbench.models.{name}", wrong)
    assert deviation(outputs(model, reference)["features"], reference["encoder_features"]) > 100 * FLOAT32["features"]


@pytest.mark.parametrize("norm", ["encoder.norm", "decoder.norm", "decoder.word_embed.1"])
def test_comparison_notices_a_missing_or_additional_norm(norm: str) -> None:
    model, reference = authors_model(), arrays("eval")
    parent, name = norm.rsplit(".", 1)
    absent = isinstance(model.get_submodule(norm), nn.Identity)
    other = nn.LayerNorm(model.settings.d_model) if absent else nn.Identity()
    model.get_submodule(parent).register_module(name, other)
    assert deviation(outputs(model, reference)["logits"], reference["logits"]) > 100 * FLOAT32["logits"]
