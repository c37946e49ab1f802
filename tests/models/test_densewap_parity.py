"""DenseWAP against numbers from the authors' program: those of tests/fixtures, or of a folder PARITY_OTHERS_DIR.

Sizes, settings of the searches and full-precision values are read from the JSON files beside the arrays.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hmerbench.models.densewap import END, CoverageAttention, DenseWAP, GRUCell, Step
from hmerbench.models.inference.densewap_search import DenseWAPSearch
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.settings import DenseWAPSettings
from hmerbench.models.vocab import EOS, SPECIAL, Vocabulary
from tests.helpers.parity import (
    alone,
    arrays,
    check_clipped_step,
    check_published,
    check_training,
    deviation,
    recurrent_settings,
    sets,
    sidecar,
    under,
    with_authors_weights,
)

# Largest allowed deviation in float32; the authors' own noise is a third of it or less.
LIMITS: dict[str, float] = dict.fromkeys(("features", "init_state", "h1", "alpha", "h2"), 1e-5)
LIMITS |= {"feature_mask": 0.0, "alpha_past": 2e-5, "context": 5e-5, "logits": 5e-5, "loss": 2e-6}
FLOAT64 = 1e-10
SUM = 1e-4  # of a search

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
    c = sidecar(f"{name}_weights")["config"]
    settings = DenseWAPSettings(**recurrent_settings(c), embedding=c["m"])
    model = DenseWAP(settings, Vocabulary([*SPECIAL, *map(str, range(1, c["K"]))]))
    return with_authors_weights(model, name, NAMES)


@dataclass
class Inputs:
    images: Tensor
    mask: Tensor  # True = padding, unlike the authors'
    sizes: Tensor
    labels: list[list[str]]  # the words of class 1 on are called 1, 2, …


def inputs(name: str) -> Inputs:
    a = arrays(f"{name}_eval")
    labels = [[str(word) for word in column[:n].tolist()] for column, n in zip(a["y"].T, a["label_len"], strict=True)]
    return Inputs(a["images"], a["image_mask"] == 0, a["sizes"], labels)


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
    for i in range(len(batch.images)):
        image, mask = alone(batch.images, batch.sizes, i)
        live_Tb = torch.ones(len(batch.labels[i]) + 1, 1, dtype=torch.bool)
        theirs = under(f"alone{i}_", reference)
        assert {"h2", "logits", "loss"} <= theirs.keys()
        check(outcomes(model.float(), image, mask, batch.labels[i : i + 1]), theirs, live_Tb, LIMITS)
        ours = outcomes(model.double(), image, mask, batch.labels[i : i + 1])
        check(ours, under(f"f64/alone{i}_", reference), live_Tb, dict.fromkeys(ours, FLOAT64))


def test_training(name: str) -> None:
    model, batch = authors_model(name), inputs(name)
    reference, facts = arrays(f"{name}_train"), sidecar(f"{name}_train")

    def loss(model: DenseWAP) -> Tensor:
        return model(batch.images.double(), batch.mask, model.targets(batch.labels))[None]

    assert {"f64/total_gradnorm", "f64/clip/total_gradnorm"} <= reference.keys() and under("f64/after5/", reference)
    expected = torch.tensor(facts["losses_f64"], dtype=torch.float64)[:, None]
    check_training(model, NAMES, loss, expected, reference, facts)
    check_clipped_step(authors_model(name), NAMES, loss, reference)


SEARCHES = [(name, setting) for name in NETWORKS for setting in sidecar(f"{name}_beam")["searches"]]


@pytest.mark.parametrize("name, setting", SEARCHES)
def test_search(name: str, setting: str) -> None:
    """Every hypothesis of each image, and the choice."""
    batch, facts = inputs(name), sidecar(f"{name}_beam")["searches"][setting]
    options = SearchOptions(beam_size=facts["beam_size"], max_len=facts["max_len"] + 1)  # ours counts a start token
    reference = under(f"{setting}/", arrays(f"{name}_beam"))

    model = authors_model(name)
    with torch.no_grad():
        model.decoder.classes.bias[END] += facts["added_to_output_bias_of_id_0"]
    read = DenseWAPSearch(model)
    for i in range(len(batch.images)):
        (found,) = read([alone(batch.images, batch.sizes, i)], options)
        sequences, sums = reference[f"image{i}/seqs"], reference[f"image{i}/neg_logp"]
        theirs = {tuple(row[row > END].tolist()): cost for row, cost in zip(sequences, sums.tolist(), strict=True)}
        assert len(found) == len(theirs) == facts["images"][str(i)]["n"]
        costs = {tuple(word - EOS for word in h.ids): -h.score * (len(h.ids) + 1) for h in found}
        assert costs == pytest.approx(theirs, abs=SUM, rel=0)
        best = facts["images"][str(i)].get("best_seq_without_end")
        assert best is None or [word - EOS for word in found[0].ids] == best


def test_published_size() -> None:
    check_published(DenseWAP(DenseWAPSettings()), NAMES, sidecar("published_init")["densewap"])


# The comparisons above must notice mistakes that are easy to make.


def reset_before_product(self: GRUCell, products_x3n: Tensor, state_xn: Tensor) -> Tensor:
    n = state_xn.shape[-1]
    reset_xn, update_xn = torch.sigmoid(products_x3n + self.state(state_xn))[..., : 2 * n].chunk(2, dim=-1)
    candidate_xn = torch.tanh(products_x3n[..., 2 * n :] + self.state(reset_xn * state_xn)[..., 2 * n :])
    return torch.lerp(candidate_xn, state_xn, update_xn)


MISTAKES = {
    "no coverage": (CoverageAttention, "cover", lambda _, memory, past_bMhw: memory.keys_b1LA),
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
