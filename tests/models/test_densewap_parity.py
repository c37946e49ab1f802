"""DenseWAP against numbers from the authors' program: those of tests/fixtures, or of a folder PARITY_OTHERS_DIR.

Sizes, settings of the searches and full-precision values are read from the JSON files beside the arrays.
"""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from hmerbench.models.densewap import END, CoverageAttention, DenseWAP, GRUCell, Memory, Step
from hmerbench.models.inference.densewap_search import DenseWAPSearch
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.settings import DenseWAPSettings
from hmerbench.models.vocab import EOS, SPECIAL, Vocabulary
from tests.helpers.parity import arrays, close, deviation, sets, sidecar, under, under_authors_names, without_dropout
from tests.helpers.paths import PARITY_OTHERS

# Largest allowed deviation in float32; the authors' own noise is a third of it or less.
LIMITS = {
    "features": 1e-5,
    "feature_mask": 0.0,
    "init_state": 1e-5,
    "h1": 1e-5,
    "alpha": 1e-5,
    "alpha_past": 2e-5,
    "context": 5e-5,
    "h2": 1e-5,
    "logits": 5e-5,
    "loss": 2e-6,
}
FLOAT64 = 1e-10
SUM = 1e-4  # of a search
GRADIENT = 1e-8  # relative
CLIP, LOUD = 100.0, 10_000  # largest gradient norm; the loss is multiplied so that it is exceeded

# The authors' names of our layers; a cell of ours packs three of theirs: reset, update, candidate.
NAMES = {
    "encoder.net": ["encoder"],
    "encoder.start": ["init_GRU_model.fc"],
    "decoder.embedding": ["emb_model.embedding"],
    "decoder.attention.key": ["gru_model.conv_Ua"],
    "decoder.attention.query": ["gru_model.fc_Wa"],
    "decoder.attention.coverage": ["gru_model.conv_Q"],
    "decoder.attention.mix": ["gru_model.fc_Uf"],
    "decoder.attention.energy": ["gru_model.fc_va"],
    "decoder.from_context": ["gru_prob_model.fc_Wct"],
    "decoder.from_state": ["gru_prob_model.fc_Wht"],
    "decoder.from_previous": ["gru_prob_model.fc_Wyt"],
    "decoder.classes": ["gru_prob_model.fc_W0"],
    "decoder.cell1.input": [f"gru_model.fc_Wy{gate}" for gate in "rzh"],
    "decoder.cell1.state": [f"gru_model.fc_Uh{gate}" for gate in "rzh"],
    "decoder.cell2.input": [f"gru_model.fc_Wc{gate}" for gate in "rzh"],
    "decoder.cell2.state": [f"gru_model.fc_Uh{gate}2" for gate in "rzh"],
}


NETWORKS = sets("DenseWAP")


@pytest.fixture(scope="module", params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def authors_model(name: str) -> DenseWAP:
    """Our network with the authors' weights, in float32 and evaluation mode."""
    facts, weights = sidecar(f"{name}_weights"), arrays(f"{name}_weights")
    c = facts["config"]
    settings = DenseWAPSettings(
        growth_rate=c["growthRate"],
        num_layers=c["layers_per_block"],
        hidden=c["n"],
        embedding=c["m"],
        attention=c["dim_attention"],
        coverage_channels=c["coverage_channels"],
        coverage_kernel=c["coverage_kernel"],
    )
    model = DenseWAP(settings, Vocabulary([*SPECIAL, *map(str, range(1, c["K"]))]))
    ours = under_authors_names(model.state_dict(), NAMES)  # views
    assert ours.keys() == weights.keys()
    for key, tensor in ours.items():
        tensor.copy_(weights[key].view(tensor.shape))
    assert sum(p.numel() for p in model.parameters()) == facts["n_parameters"]
    return model.eval()


@dataclass
class Inputs:
    images: Tensor
    mask: Tensor  # True = padding, unlike the authors'
    sizes: list[tuple[int, int]]
    labels: list[list[str]]  # the words of class 1 on are called 1, 2, …


def inputs(name: str) -> Inputs:
    a = arrays(f"{name}_eval")
    labels = [[str(word) for word in column[:n].tolist()] for column, n in zip(a["y"].T, a["label_len"], strict=True)]
    return Inputs(a["images"], a["image_mask"] == 0, [(h, w) for h, w in a["sizes"].tolist()], labels)


@torch.no_grad()
def outcomes(model: DenseWAP, images: Tensor, mask: Tensor, labels: list[list[str]]) -> dict[str, Tensor]:
    """What the authors' files hold, as they hold it: time first."""
    features, trace = model.encoder(images.to(model.encoder.start.weight.dtype), mask), list[Step]()
    logits_bTV = model.decoder(features, model.targets(labels).words_bT, trace)
    attention_Tbhw = torch.stack([step.attention_bMhw[:, 0] for step in trace])
    return {
        "features": features.maps_bhwD.permute(0, 3, 1, 2),
        "feature_mask": (~features.mask_bhw).float(),
        "init_state": features.state_bn,
        "h1": torch.stack([step.middle_bMn[:, 0] for step in trace]),
        "alpha": attention_Tbhw,
        "alpha_past": attention_Tbhw.cumsum(0),
        "context": torch.stack([step.context_bMD[:, 0] for step in trace]),
        "h2": torch.stack([step.state_bMn[:, 0] for step in trace]),
        "logits": logits_bTV.transpose(0, 1),
        "loss": model(images.to(logits_bTV.dtype), mask, model.targets(labels)),
    }


def check(ours: dict[str, Tensor], theirs: dict[str, Tensor], live_Tb: Tensor, limits: dict[str, float]) -> None:
    """Compare what both hold, up to the end of each label: the authors' state stands still beyond it, ours does not."""
    for key in ours.keys() & theirs.keys():
        a, b = ours[key], theirs[key]
        if a.shape[:2] == live_Tb.shape:
            assert a.shape == b.shape
            a, b = a[live_Tb], b[live_Tb]
        assert deviation(a, b) <= limits[key], key


def test_evaluation(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_eval")
    live_Tb = reference["y_mask"].bool()
    ours = outcomes(model, batch.images, batch.mask, batch.labels)
    assert {"init_state", "h1", "alpha", "h2", "logits", "loss"} <= reference.keys()
    check(ours, reference, live_Tb, LIMITS)
    ours = outcomes(model.double(), batch.images, batch.mask, batch.labels)
    check(ours, under("f64/", reference), live_Tb, dict.fromkeys(ours, FLOAT64))
    assert ours["loss"].item() == pytest.approx(sidecar(f"{name}_eval")["loss_f64"], abs=FLOAT64, rel=0)


def test_every_image_alone(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_eval")
    for i, (height, width) in enumerate(batch.sizes):
        image, mask = batch.images[i : i + 1, :, :height, :width], torch.zeros(1, height, width, dtype=torch.bool)
        live_Tb = torch.ones(len(batch.labels[i]) + 1, 1, dtype=torch.bool)
        theirs = under(f"alone{i}_", reference)
        assert {"h2", "logits", "loss"} <= theirs.keys()
        check(outcomes(model.float(), image, mask, batch.labels[i : i + 1]), theirs, live_Tb, LIMITS)
        ours = outcomes(model.double(), image, mask, batch.labels[i : i + 1])
        check(ours, under(f"f64/alone{i}_", reference), live_Tb, dict.fromkeys(ours, FLOAT64))


def test_five_steps(name: str) -> None:
    """Losses, gradients and batch-norm statistics in float64, without dropout."""
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_train")
    without_dropout(model)
    facts = sidecar(f"{name}_train")
    optimizer, losses, norms = adadelta(model), list[float](), list[float]()
    for number in range(len(facts["losses_f64"])):
        optimizer.zero_grad()
        loss = model(batch.images.double(), batch.mask, model.targets(batch.labels))
        loss.backward()
        losses.append(loss.item())
        if number == 0:
            first, buffers = gradients(model), under_authors_names(dict(model.named_buffers()), NAMES)
            ours = torch.stack([first[key].norm() for key in facts["parameter_names"]])
            assert first.keys() == set(facts["parameter_names"])
            torch.testing.assert_close(ours, reference["f64/gradnorms"], rtol=GRADIENT, atol=1e-12)
            close(first, under("f64/grad/", reference), GRADIENT)
            close(buffers, under("f64/bn/", reference), GRADIENT)
            for kind in ("mean", "var"):
                ours = torch.stack([buffers[f"{key}.running_{kind}"].norm() for key in facts["bn_names"]])
                torch.testing.assert_close(ours, reference[f"f64/bn_{kind}_norms"], rtol=GRADIENT, atol=0)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        if number == 0:
            close(parameters(model), under("f64/after1/", reference), GRADIENT)
    assert losses == pytest.approx(facts["losses_f64"], abs=GRADIENT, rel=0)
    assert norms == pytest.approx(reference["f64/total_gradnorm"].tolist(), rel=GRADIENT)
    close(parameters(model), under("f64/after5/", reference), GRADIENT)


def test_clipped_step(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_train")
    without_dropout(model)
    optimizer = adadelta(model)
    (model(batch.images.double(), batch.mask, model.targets(batch.labels)) * LOUD).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    assert norm > CLIP
    assert norm.item() == pytest.approx(reference["f64/clip/total_gradnorm"].item(), rel=GRADIENT)
    close(gradients(model), under("f64/clip/grad/", reference), GRADIENT)
    optimizer.step()
    close(parameters(model), under("f64/clip/after1/", reference), GRADIENT)


def adadelta(model: DenseWAP) -> torch.optim.Optimizer:
    return torch.optim.Adadelta(model.parameters(), lr=1.0, rho=0.9, eps=1e-6, weight_decay=1e-4)


def parameters(model: DenseWAP) -> dict[str, Tensor]:
    return under_authors_names({key: p.detach() for key, p in model.named_parameters()}, NAMES)


def gradients(model: DenseWAP) -> dict[str, Tensor]:
    return under_authors_names({key: p.grad for key, p in model.named_parameters() if p.grad is not None}, NAMES)


SEARCHES = [(name, setting) for name in NETWORKS for setting in sidecar(f"{name}_beam")["searches"]]


@pytest.mark.parametrize("name, setting", SEARCHES)
def test_search(name: str, setting: str) -> None:
    """Every hypothesis of each image, and the choice."""
    batch, facts = inputs(name), sidecar(f"{name}_beam")["searches"][setting]
    options = SearchOptions(beam_size=facts["beam_size"], max_len=facts["max_len"] + 1)  # ours counts a start token
    reference = under(f"{setting}/", arrays(f"{name}_beam"))

    def search(images: Tensor, mask: Tensor) -> list[list[Hypothesis]]:
        model = authors_model(name)
        with torch.no_grad():
            model.decoder.classes.bias[END] += facts["added_to_output_bias_of_id_0"]
        return DenseWAPSearch(model)([(images, mask)], options)

    for i, (height, width) in enumerate(batch.sizes):
        (alone,) = search(batch.images[i : i + 1, :, :height, :width], batch.mask[i : i + 1, :height, :width])
        sequences, sums = reference[f"image{i}/seqs"], reference[f"image{i}/neg_logp"]
        theirs = {tuple(row[row > END].tolist()): cost for row, cost in zip(sequences, sums.tolist(), strict=True)}
        assert len(alone) == len(theirs) == facts["images"][str(i)]["n"]
        costs = {tuple(word - EOS for word in h.ids): -h.score * (len(h.ids) + 1) for h in alone}
        assert costs == pytest.approx(theirs, abs=SUM, rel=0)
        best = facts["images"][str(i)].get("best_seq_without_end")
        assert best is None or [word - EOS for word in alone[0].ids] == best


def test_published_size() -> None:
    """Number, shapes, constants and bounds of the parameters after initialisation."""
    facts = json.loads((PARITY_OTHERS / "published_init.json").read_text())["densewap"]
    model = DenseWAP(DenseWAPSettings())
    assert sum(p.numel() for p in model.parameters()) == facts["n_parameters"]
    ours = parameters(model)
    assert ours.keys() == facts["parameters"].keys()
    for key, theirs in facts["parameters"].items():
        tensor = ours[key].view(theirs["shape"])
        if theirs["std"] == 0:
            assert (tensor == theirs["mean"]).all(), key
        elif key.startswith("emb"):  # normal: no bound
            assert tensor.std().item() == pytest.approx(theirs["std"], rel=0.05)
        else:  # uniform: the largest value of many is near the bound
            fewest = 1 - 12 / tensor.numel()
            assert tensor.abs().max().item() == pytest.approx(theirs["max_abs"], rel=max(0.01, 1 - fewest)), key
            assert tensor.std().item() == pytest.approx(theirs["std"], rel=0.1), key


# The comparisons above must notice mistakes that are easy to make.


def without_coverage(_: CoverageAttention, memory: Memory, past_bMhw: Tensor) -> Tensor:
    return memory.keys_b1LA.expand(-1, past_bMhw.shape[1], -1, -1)


def reset_before_product(self: GRUCell, products_x3n: Tensor, state_xn: Tensor) -> Tensor:
    n = state_xn.shape[-1]
    reset_xn, update_xn = torch.sigmoid(products_x3n + self.state(state_xn))[..., : 2 * n].chunk(2, dim=-1)
    candidate_xn = torch.tanh(products_x3n[..., 2 * n :] + self.state(reset_xn * state_xn)[..., 2 * n :])
    return torch.lerp(candidate_xn, state_xn, update_xn)


MISTAKES = {
    "no coverage": (CoverageAttention, "cover", without_coverage),
    "reset before the product": (GRUCell, "forward", reset_before_product),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_comparison_notices(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_eval")
    monkeypatch.setattr(*MISTAKES[mistake])
    ours = outcomes(model, batch.images, batch.mask, batch.labels)
    live_Tb = reference["y_mask"].bool()
    for key in ("h1", "alpha", "logits"):
        assert deviation(ours[key][live_Tb], reference[key][live_Tb]) > 100 * LIMITS[key]
