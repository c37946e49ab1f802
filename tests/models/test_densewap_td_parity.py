"""DenseWAP-TD against numbers from the authors' program: those of tests/fixtures, or of a folder PARITY_OTHERS_DIR."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import hmerbench.models.densewap
import hmerbench.models.densewap_td
import hmerbench.models.trees
from hmerbench.models.densewap_td import DenseWAPTD, Losses, TreeTargets, tree_losses, tree_targets
from hmerbench.models.inference.densewap_search import TreeState, WrittenTree, tree_search
from hmerbench.models.settings import DenseWAPTDSettings
from hmerbench.models.trees import ILLEGAL, RELATIONS, Node, NoTree, to_latex, to_tree
from hmerbench.models.vocab import SPECIAL, Vocabulary
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
LIMITS = {"features": 1e-5, "context": 5e-5, "scores": 5e-5, "sum": 1e-4, "loss": 5e-6, "other": 1e-5}
FLOAT64 = 1e-10


def cell(pattern: str) -> list[str]:
    """The authors' names of what our cells pack: reset, update, candidate."""
    return ["gru_model.fc_" + pattern.replace("*", gate) for gate in "rzh"]


NAMES = {
    "encoder.net": ["encoder"],
    "encoder.start": ["init_GRU_model.fc"],
    "decoder.embedding": ["emb_model.embedding"],
    "decoder.parent.symbol_cell.input": cell("Wy*0"),
    "decoder.parent.symbol_cell.state": cell("Uh*0"),
    "decoder.parent.context_cell.input": cell("Wy*1"),
    "decoder.parent.context_cell.state": cell("Uh*1"),
    "decoder.child.symbol_cell.input": cell("Wy*"),
    "decoder.child.symbol_cell.state": cell("Uh*"),
    "decoder.child.context_cell.input": cell("Wc*"),
    "decoder.child.context_cell.state": cell("Uh*2"),
    "decoder.entry_key": ["fc_Uamem"],
    "decoder.entry_query": ["fc_Wamem"],
    "decoder.entry_energy": ["fc_vamem"],
    "decoder.from_context": ["gru_prob_model.fc_WctC"],
    "decoder.from_state": ["gru_prob_model.fc_WhtC"],
    "decoder.from_parent": ["gru_prob_model.fc_WytC"],
    "decoder.symbol": ["gru_prob_model.fc_W0C"],
    "decoder.parent_symbol": ["gru_prob_model.fc_W0P"],
    "decoder.from_contexts": ["gru_prob_model.fc_WctRe"],
    "decoder.relation": ["gru_prob_model.fc_W0Re"],
}
for half, letter in (("parent", "P"), ("child", "C")):
    NAMES |= {
        f"decoder.{half}.attention.{ours}": [f"gru_model.{theirs}{letter}"]
        for ours, theirs in (
            ("key", "conv_Ua"), ("query", "fc_Wa"), ("coverage", "conv_Q"), ("mix", "fc_Uf"), ("energy", "fc_va"),
        )
    }  # fmt: skip


@pytest.fixture(scope="module", params=sets("DenseWAP-TD"))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def authors_model(name: str, dtype: torch.dtype = torch.float32) -> DenseWAPTD:
    """Our network with the authors' weights, in evaluation mode."""
    facts = sidecar(f"{name}_weights")
    c = facts["config"]
    assert c["n"] == c["m"] and c["Kre"] == len(RELATIONS)
    settings = DenseWAPTDSettings(**recurrent_settings(c), relation_hidden=c["mre"])
    model = DenseWAPTD(settings, Vocabulary([*SPECIAL, *sorted(facts["dictionary"], key=facts["dictionary"].get)[1:]]))
    assert len(model.symbols) == c["K"]
    return with_authors_weights(model.to(dtype), name, NAMES)


@dataclass
class Inputs:
    images: Tensor
    mask: Tensor  # True = padding, unlike the authors'
    sizes: Tensor
    targets: TreeTargets
    weights: tuple[float, ...]  # of the losses in their sum

    def alone(self, image: int) -> tuple[Tensor, Tensor, TreeTargets]:
        """An image of the batch without padding, its mask and its targets."""
        steps = int((~self.targets.padding_bT[image]).sum())
        targets = TreeTargets(*(x_bT[image : image + 1, :steps] for x_bT in self.targets))
        return *alone(self.images, self.sizes, image), targets


def total(parts: Losses, weights: tuple[float, ...]) -> Tensor:
    return torch.stack([weight * part for weight, part in zip(weights, parts, strict=True)]).sum()


def inputs(name: str) -> Inputs:
    facts, a = sidecar(f"{name}_eval"), arrays(f"{name}_eval")
    targets = tree_targets([to_tree(caption.split()) for caption in facts["captions"]], facts["dictionary"])
    weights = tuple(facts["config"][f"{key}_lambda"] for key in ("ly", "ry", "re", "rpos", "KL"))
    return Inputs(a["in/x"], a["in/x_mask"] == 0, a["sizes"], targets, weights)


# ------------------------------------------------------------------------------------------- trees


def nodes(caption: str) -> list[list[Any]] | None:
    """A caption's tree as in the authors' files: symbol, number, parent's symbol and number, relation."""
    try:
        tree = to_tree(caption.split())
    except NoTree:
        return None
    tree.append(Node("</s>", len(tree), "End"))
    symbols = ("<s>", *(node.symbol for node in tree))
    return [[node.symbol, i, symbols[node.parent], node.parent, node.relation] for i, node in enumerate(tree, start=1)]


@pytest.mark.parametrize("name", sets("DenseWAP-TD", "trees"))
def test_trees(name: str) -> None:
    for case in sidecar(f"{name}_trees")["trees"]:
        assert nodes(case["caption"]) == case.get("nodes"), case["caption"]


@pytest.mark.parametrize("name", sets("DenseWAP-TD", "trees"))
def test_way_back(name: str) -> None:
    cases = [case for case in sidecar(f"{name}_trees")["trees"] if case.get("latex_again") is not None]
    assert any(ILLEGAL in case["latex_again"] for case in cases) and any(case["round_trip_equal"] for case in cases)
    for case in cases:
        latex = to_latex([Node(symbol, parent, relation) for symbol, _, _, parent, relation in case["nodes"][:-1]])
        assert " ".join(latex) == case["latex_again"]
        plain = [token for token in case["caption"].split() if token != "\\limits"]
        assert (latex == plain) == case["round_trip_equal"]


@pytest.mark.parametrize("name", sets("DenseWAP-TD", "trees"))
def test_comparison_of_trees_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hmerbench.models.trees, "WITH_LIMITS", ())
    assert any(nodes(case["caption"]) != case.get("nodes") for case in sidecar(f"{name}_trees")["trees"])


def test_targets(name: str) -> None:
    facts, reference, ours = sidecar(f"{name}_eval"), arrays(f"{name}_eval"), inputs(name).targets
    assert [key for key, _ in sorted(facts["relations"].items(), key=lambda item: item[1])] == list(RELATIONS)
    assert torch.equal(ours.symbols_bT.T, reference["in/ly"])
    assert torch.equal(ours.parents_bT.T, reference["in/rp"])
    assert torch.equal(ours.relations_bT.T, reference["in/re"])
    assert torch.equal(~ours.padding_bT.T, reference["in/ly_mask"] == 1)


# ------------------------------------------------------------------------------------------- the network


@torch.no_grad()
def outcomes(model: DenseWAPTD, images: Tensor, mask: Tensor, targets: TreeTargets) -> dict[str, Tensor]:
    """What the authors' files hold, as they hold it: time first."""
    features = model.encode(images.to(model.encoder.start.weight.dtype), mask)
    parent, child, scores = model.decoder(features, targets)
    parts = tree_losses(parent, child, scores, features.mask_bhw, targets)
    alpha_parent, alpha_child = (
        half.attention_bML.transpose(0, 1).unflatten(-1, features.mask_bhw.shape[1:]) for half in (parent, child)
    )
    context_child, context_parent = child.context_bMD.transpose(0, 1), parent.context_bMD.transpose(0, 1)
    return {
        "features": features.maps_bhwD.permute(0, 3, 1, 2),
        "feature_mask": (~features.mask_bhw).float(),
        "init_state": features.state_bn,
        "h01": parent.state_bMn.transpose(0, 1),
        "h2": child.state_bMn.transpose(0, 1),
        "context_child": context_child,
        "context_parent": context_parent,
        "context_both": torch.cat((context_child, context_parent), dim=-1),
        "alpha_child": alpha_child,
        "alpha_child_past": alpha_child.cumsum(0),
        "alpha_parent": alpha_parent,
        "alpha_parent_past": alpha_parent.cumsum(0),
        "memory_energy": scores.entries_bTS.permute(1, 2, 0),
        "scores_symbol": scores.symbols_bTV.transpose(0, 1),
        "scores_parent_symbol": scores.parent_symbols_bTV.transpose(0, 1),
        "scores_relation": scores.relations_bTR.transpose(0, 1),
        "losses": torch.stack([total(parts, hmerbench.models.densewap_td.WEIGHTS), *parts]),
    }


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor], padding_Tb: Tensor) -> dict[str, float]:
    """The largest of each; of padded steps the scores mean nothing."""
    found = {}
    for key in ours.keys() & theirs.keys():
        a, b = ours[key], theirs[key]
        if key.startswith("scores"):
            assert a.shape == b.shape
            a, b = a[~padding_Tb], b[~padding_Tb]
        found[key] = deviation(a, b)
    return found


def too_large(found: dict[str, float]) -> list[str]:
    limits = {key: LIMITS.get(key.rstrip("es"), LIMITS.get(key.split("_")[0], LIMITS["other"])) for key in found}
    return [f"{key}: {found[key]:.1e}" for key, limit in limits.items() if found[key] > limit]


def test_evaluation(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_eval")
    six = ("loss", "loss_symbol", "loss_parent_symbol", "loss_relation", "loss_parent_position", "loss_KL")
    reference["losses"] = torch.stack([reference[key] for key in six])
    padding_Tb, arguments = batch.targets.padding_bT.T, (batch.images, batch.mask, batch.targets)
    found = differences(outcomes(model, *arguments), reference, padding_Tb)
    assert found.keys() >= {"features", "alpha_child", "alpha_parent", "losses"} and too_large(found) == []
    assert batch.weights == hmerbench.models.densewap_td.WEIGHTS
    exact = differences(outcomes(authors_model(name, torch.float64), *arguments), under("f64/", reference), padding_Tb)
    assert exact.keys() >= {"h2", "scores_symbol", "losses"}
    assert {key: value for key, value in exact.items() if value > FLOAT64} == {}


def test_every_image_alone(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_eval")
    for i in range(len(batch.images)):
        image, mask, targets = batch.alone(i)
        found = differences(outcomes(model, image, mask, targets), under(f"alone{i}_", reference), targets.padding_bT.T)
        assert found.keys() >= {"losses", "memory_energy"} and too_large(found) == []


def test_training(name: str) -> None:
    """Losses of all steps, and their sum."""
    model, batch, reference = authors_model(name, torch.float64), inputs(name), arrays(f"{name}_train")

    def losses(model: DenseWAPTD) -> Tensor:
        parts = tree_losses(*model.decode(batch.images.double(), batch.mask, batch.targets), batch.targets)
        return torch.stack([total(parts, batch.weights), *parts])

    check_training(model, NAMES, losses, reference["f64/losses"], reference, sidecar(f"{name}_train"))
    if "f64/total_gradnorm" in reference:  # not in tests/fixtures, where two layers are one
        check_clipped_step(authors_model(name), NAMES, losses, reference)


def test_published_size() -> None:
    check_published(DenseWAPTD(DenseWAPTDSettings()), NAMES, sidecar("published_init")["densewap-td"])


# ------------------------------------------------------------------------------------------- the search


def searched(name: str, setting: str) -> list[tuple[list[WrittenTree], dict[str, Tensor]]]:
    """Of every image alone: our hypotheses and the authors'."""
    model, batch, options = authors_model(name), inputs(name), sidecar(f"{name}_beam")["searches"][setting]
    reference, pairs = arrays(f"{name}_beam"), []
    with torch.no_grad():
        model.decoder.symbol.bias[hmerbench.models.densewap.END] += options["added_to_output_bias_of_id_0"]
        for image in map(int, options["images"]):
            features = model.encode(*batch.alone(image)[:2])
            limits = options["beam_size"], options["max_len"], options["parents_per_step"]
            found = tree_search(model.decoder, [features], *limits)
            pairs.append((found, under(f"{setting}/image{image}/", reference)))
    return pairs


def same(ours: list[WrittenTree], theirs: dict[str, Tensor]) -> bool:
    """Whether all hypotheses are the same, in the order in which they end, with the same sums."""
    lengths = (theirs["symbols"] >= 0).sum(1).tolist()
    trees = [
        tuple(tuple(theirs[key][i, :length].tolist()) for key in ("symbols", "parents", "relations"))
        for i, length in enumerate(lengths)
    ]
    costs = pytest.approx(theirs["neg_logp"].tolist(), abs=LIMITS["sum"], rel=0)
    return [(x.symbols, x.parents, x.relations) for x in ours] == trees and [x.cost for x in ours] == costs


@pytest.mark.parametrize("setting", ["greedy", "main", "wide", "early", "short", "never"])
def test_search(name: str, setting: str) -> None:
    assert all(same(*pair) for pair in searched(name, setting))


def test_choice_and_its_latex(name: str) -> None:
    facts = sidecar(f"{name}_beam")
    words = sorted(facts["dictionary"], key=facts["dictionary"].get)
    for (ours, _), theirs in zip(searched(name, "main"), facts["searches"]["main"]["images"].values(), strict=True):
        best = min(ours, key=lambda tree: tree.cost / len(tree.symbols))
        assert " ".join(to_latex(best.nodes(words))) == theirs["best_latex"]


@torch.inference_mode()
def test_every_step_of_a_search(name: str) -> None:
    model, batch, reference = authors_model(name), inputs(name), arrays(f"{name}_beam")
    images = [i for i in range(len(batch.images)) if f"greedy/image{i}/trace/h2" in reference]
    assert images
    for image in images:
        theirs = under(f"greedy/image{image}/trace/", reference)
        state = TreeState(model.decoder, model.encode(*batch.alone(image)[:2]))
        written, first = [model.decoder.root], torch.tensor([0])
        for t in range(len(theirs["h2"])):
            parent_1S = state.seek_parents(torch.tensor(written[-1:]))
            entry = int(parent_1S.argmax())
            symbol_1V, relation_1R = state.seek_symbols(first, torch.tensor([written[entry]]))
            written.append(int(symbol_1V.argmax()))
            shape = theirs["alpha_child"].shape[1:]
            ours = {
                "h01": state.parent.state_bMn[0],
                "alpha_parent": state.parent.attention_bML.view(shape),
                "parent_probability": parent_1S.exp(),
                "symbol_probability": symbol_1V.exp(),
                "relation_probability": relation_1R.exp(),
                "h2": state.child.state_bMn[0],
                "alpha_child": state.child.attention_bML.view(shape),
            }
            expected = {key: values[t] for key, values in theirs.items()}
            expected["parent_probability"] = expected["parent_probability"][:, : t + 1]
            assert too_large(differences(ours, expected, first)) == []
            state.write(first)


# ------------------------------------------------------------------------------------------- what must be noticed


def uncovered(_: Any, memory: hmerbench.models.densewap.Memory, past_bMhw: Tensor) -> Tensor:
    return memory.keys_b1LA.expand(-1, past_bMhw.shape[1], -1, -1)


def averaged(energies: Tensor, visible: Tensor) -> Tensor:
    return (visible / visible.sum(-1, keepdim=True).clamp(min=1)).expand_as(energies)


MISTAKES = {
    "no coverage": (hmerbench.models.densewap.CoverageAttention, "cover", uncovered),
    "parents sought everywhere": (hmerbench.models.densewap_td, "shares", averaged),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_comparison_notices(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    model, batch = authors_model(name), inputs(name)
    ours = outcomes(model, batch.images, batch.mask, batch.targets)
    found = differences(ours, arrays(f"{name}_eval"), batch.targets.padding_bT.T)
    assert found["alpha_parent"] > 100 * LIMITS["other"] and found["scores_symbol"] > 100 * LIMITS["scores"]
    assert not all(same(*pair) for pair in searched(name, "main"))


def test_comparison_of_searches_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One parent tried instead of three."""
    monkeypatch.setattr(Tensor, "topk", lambda x, k, **rest: torch.topk(x, k if rest else 1, **rest))
    assert not all(same(*pair) for pair in searched(name, "wide"))
